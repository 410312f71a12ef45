// Cross-entropy over rows of V logits, its gradient, and both at once for the chunks of a fused head.
//
// A block owns a row. Rows may begin anywhere: a row is a body of whole 16-byte packs between at most WIDTH − 1
// elements on either side (its edges), of which a thread takes at most one. Pack i belongs to thread i mod blockDim.x.
//
// With label smoothing s and z-loss z the loss is weight·((1 − s)·(lse − logit of target) + s·(lse − mean logit) +
// z·lse²). An ignored target has no loss and no gradient; one outside the vocabulary is reported.
#include "prelude.cuh"
#include "loss.cuh"

constexpr u32 MOST_THREADS = 512;

// e^(x − base) as exactly as the stored type can show: halves take one multiplication.
struct Exponent {
    float base;
    __device__ __forceinline__ explicit Exponent(float at) : base(REAL == 0 ? at : -LOG2_E * at) {}
    __device__ __forceinline__ float operator()(float x) const {
#if REAL == 0
        return expf(x - base);
#else
        return power_of_two(fmaf(x, LOG2_E, base));
#endif
    }
};

// Where the parts of a row lie.
struct Row {
    u32 before, packs, edge;
    bool has_edge;
    __device__ __forceinline__ Row(const real* row, u32 columns) {
        const u32 off = (u32)((u64)row % 16) / sizeof(real);
        before = off == 0 ? 0 : min(WIDTH - off, columns);
        packs = (columns - before) / WIDTH;
        const u32 behind = columns - before - packs * WIDTH;
        has_edge = threadIdx.x < before + behind;
        edge = threadIdx.x < before ? threadIdx.x : threadIdx.x + packs * WIDTH;
    }
    __device__ __forceinline__ u32 column(u32 pack) const { return before + pack * WIDTH; }
};

// d logit = scale·(pull·probability − wanted), where the target is wanted with 1 − s and everything with s/V.
struct Gradient {
    float factor, spread, at_target;
    Exponent exponent;
    __device__ __forceinline__ Gradient(float scale, float log_sum_exp, u32 columns, float smoothing, float z_loss)
        : factor(scale * (1.0f + 2.0f * z_loss * log_sum_exp)), spread(scale * smoothing / (float)columns),
          at_target(scale * (1.0f - smoothing)), exponent(log_sum_exp) {}
    template <int N> __device__ __forceinline__ void apply(float (&x)[N], u32 column, u32 target) const {
#pragma unroll
        for (int e = 0; e < N; e++) x[e] = factor * exponent(x[e]) - spread;
        // Below `column` the difference wraps around to something large.
        if (target - column < N) {
#pragma unroll
            for (int e = 0; e < N; e++) x[e] -= target - column == e ? at_target : 0.0f;
        }
    }
};

__device__ __forceinline__ void zero_row(real* to, const Row& row) {
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    for (u32 pack = threadIdx.x; pack < row.packs; pack += blockDim.x) {
        *reinterpret_cast<uint4*>(to + row.column(pack)) = zeros;
    }
    if (row.has_edge) to[row.edge] = from_float<real>(0.0f);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    cross_entropy(const real* logits, const u32* targets, const float* weights,
                  float* __restrict__ losses, float* __restrict__ log_sum_exps, u32 columns, float smoothing,
                  float z_loss, u32* fault) {
    take_turn();
    const u64 index = blockIdx.x;
    const real* from = logits + index * columns;
    const Row row(from, columns);
    Gathered gathered{minus_infinity(), 0.0f, 0.0f};
    const bool wants_sum = smoothing > 0.0f;
#pragma unroll 4
    for (u32 pack = threadIdx.x; pack < row.packs; pack += blockDim.x) {
        float x[WIDTH];
        load(from + row.column(pack), x);
        gathered.add(x, wants_sum);
    }
    if (row.has_edge) {
        const float x[1] = {to_float(from[row.edge])};
        gathered.add(x, wants_sum);
    }
    const Total total = gathered.finish(columns, wants_sum);
    const u32 target = targets[index];
    const bool is_counted = counts(target, columns, fault);
    if (threadIdx.x == 0) {
        log_sum_exps[index] = total.log_sum_exp();
        losses[index] = is_counted ? total.loss(to_float(from[target]), weights[index], smoothing, z_loss) : 0.0f;
    }
}

// Logits and their gradient must lie alike relative to multiples of 16 bytes.
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    cross_entropy_grad(const real* logits, const u32* targets, const float* weights, const float* log_sum_exps,
                       const float* d_losses, real* __restrict__ d_logits, u32 columns, float smoothing,
                       float z_loss, u32* fault) {
    take_turn();
    const u64 index = blockIdx.x;
    const real* from = logits + index * columns;
    real* to = d_logits + index * columns;
    const Row row(from, columns);
    const u32 target = targets[index];
    if (!counts(target, columns, fault)) {
        zero_row(to, row);
        return;
    }
    const Gradient gradient(weights[index] * d_losses[index], log_sum_exps[index], columns, smoothing, z_loss);
#pragma unroll 4
    for (u32 pack = threadIdx.x; pack < row.packs; pack += blockDim.x) {
        const u32 column = row.column(pack);
        float x[WIDTH];
        load(from + column, x);
        gradient.apply(x, column, target);
        store(to + column, x);
    }
    if (row.has_edge) {
        float x[1] = {to_float(from[row.edge])};
        gradient.apply(x, row.edge, target);
        to[row.edge] = from_float<real>(x[0]);
    }
}

// The loss of every row and, where there are d_losses, the gradient in the logits' place. Rows are `leading` elements
// apart; what lies between them is left alone. KEEPS a row's packs in shared memory, so that logits are read once: all
// copies are under way before the first is used, and every thread waits for its own alone, in four groups. Otherwise
// logits are read again, most likely from the second-level cache.
template <bool KEEPS>
__device__ __forceinline__ void head_rows(real* logits, const u32* __restrict__ targets,
                                          const float* __restrict__ weights, const float* __restrict__ d_losses,
                                          float* __restrict__ losses, u32 columns, u32 leading, float smoothing,
                                          float z_loss, u32* fault) {
    extern __shared__ uint4 kept[];
    const u64 index = blockIdx.x;
    real* from = logits + index * leading;
    const Row row(from, columns);
    const u32 target = targets[index];
    if (!counts(target, columns, fault)) {
        if (threadIdx.x == 0) losses[index] = 0.0f;
        if (d_losses) zero_row(from, row);
        return;
    }
    // Read before any thread writes: barriers lie between.
    const float logit = to_float(from[target]);
    const bool wants_sum = smoothing > 0.0f;
    Gathered gathered{minus_infinity(), 0.0f, 0.0f};
    if constexpr (KEEPS) {
        const u32 rounds = (row.packs + blockDim.x - 1) / blockDim.x, share = (rounds + 3) / 4;
#pragma unroll
        for (u32 group = 0; group < 4; group++) {
            for (u32 round = group * share; round < (group + 1) * share; round++) {
                const u32 pack = round * blockDim.x + threadIdx.x;
                if (pack < row.packs) copy_ahead(kept + pack, from + row.column(pack));
            }
            end_group();
        }
        const auto gather = [&](u32 group) {
            for (u32 round = group * share; round < (group + 1) * share; round++) {
                const u32 pack = round * blockDim.x + threadIdx.x;
                if (pack < row.packs) {
                    float x[WIDTH];
                    widen<real>(kept[pack], x);
                    gathered.add(x, wants_sum);
                }
            }
        };
        wait_for_all_but<3>();
        gather(0);
        wait_for_all_but<2>();
        gather(1);
        wait_for_all_but<1>();
        gather(2);
        wait_for_all_but<0>();
        gather(3);
    } else {
#pragma unroll 4
        for (u32 pack = threadIdx.x; pack < row.packs; pack += blockDim.x) {
            float x[WIDTH];
            load((const real*)from + row.column(pack), x);
            gathered.add(x, wants_sum);
        }
    }
    float edge[1] = {0.0f};
    if (row.has_edge) {
        edge[0] = to_float(from[row.edge]);
        gathered.add(edge, wants_sum);
    }
    const Total total = gathered.finish(columns, wants_sum);
    const float weight = weights[index];
    if (threadIdx.x == 0) losses[index] = total.loss(logit, weight, smoothing, z_loss);
    if (!d_losses) return;
    const Gradient gradient(weight * d_losses[index], total.log_sum_exp(), columns, smoothing, z_loss);
#pragma unroll 2
    for (u32 pack = threadIdx.x; pack < row.packs; pack += blockDim.x) {
        const u32 column = row.column(pack);
        float x[WIDTH];
        if constexpr (KEEPS) widen<real>(kept[pack], x);
        else load((const real*)from + column, x);
        gradient.apply(x, column, target);
        store(from + column, x);
    }
    if (row.has_edge) {
        gradient.apply(edge, row.edge, target);
        from[row.edge] = from_float<real>(edge[0]);
    }
}

// Dynamic shared memory: 16 bytes for every pack of a row.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 2)
    head_loss_rows(real* logits, const u32* targets, const float* weights, const float* d_losses, float* losses,
                   u32 columns, u32 leading, float smoothing, float z_loss, u32* fault) {
    take_turn();
    head_rows<true>(logits, targets, weights, d_losses, losses, columns, leading, smoothing, z_loss, fault);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 2)
    head_loss_long_rows(real* logits, const u32* targets, const float* weights, const float* d_losses, float* losses,
                        u32 columns, u32 leading, float smoothing, float z_loss, u32* fault) {
    take_turn();
    head_rows<false>(logits, targets, weights, d_losses, losses, columns, leading, smoothing, z_loss, fault);
}
