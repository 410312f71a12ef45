// Losses of rows of V logits and, on the way, the gradient of the logits as bytes of e5m2; then the same bytes transposed.
//
// A block has a row at a time, whose logits wait in shared memory until their sum of exponentials is known, so that memory is read once.
// While a row's gradient is written, the next row is copied into its place: a thread reads and replaces its own packs alone.
// Rows and columns are multiples of 16, and all begin at multiples of 16 bytes.
#include "prelude.cuh"
#include "eight_bits.cuh"
#include "loss.cuh"

constexpr int W = WIDTH;
#include "byte_tile.cuh"

constexpr u32 THREADS = 512;

// No gradient of a logit is larger than its row's share of the loss, but for what a small z-loss adds.
extern "C" __global__ void __launch_bounds__(THREADS)
    largest_loss_grad(const u32* targets, const float* weights, const float* d_losses, u32* partials, u32 rows) {
    take_turn();
    u32 most = 0;
    for (u32 row = blockIdx.x * THREADS + threadIdx.x; row < rows; row += PARTIALS * THREADS) {
        if (targets[row] != IGNORED) most = max(most, __float_as_uint(weights[row] * d_losses[row]) & 0x7fffffffu);
    }
    leave_largest<THREADS>(most, partials + blockIdx.x);
}

// A number rounded to the bits of e5m2, up or down by the place of its row: `round_by_place`. What is not finite stays so.
__device__ __forceinline__ float round_by_place(float x, u32 row) {
    constexpr u32 GOLDEN_STEP = 0x9e3779b9u, LEFT_OVER = 21;
    const u32 bits = __float_as_uint(x) + (row * GOLDEN_STEP >> (32 - LEFT_OVER));
    return isfinite(x) ? __uint_as_float(bits >> LEFT_OVER << LEFT_OVER) : x;
}

// d logit = factor·2^(logit·log₂e + base) − spread, and − at_target where the target is, multiplied for its byte: powers of two change no
// bit of it. With label smoothing s the target is wanted with 1 − s and everything with s/V.
struct LossRow {
    float factor, base, spread, at_target;
    __device__ __forceinline__ LossRow(float share, float log_sum_exp, u32 columns, float smoothing, float z_loss,
                                       float scale)
        : factor(share * (1.0f + 2.0f * z_loss * log_sum_exp) * scale), base(-LOG2_E * log_sum_exp),
          spread(share * smoothing / (float)columns * scale), at_target(share * (1.0f - smoothing) * scale) {}
    __device__ __forceinline__ float beside_target(float logit) const {
        return factor * power_of_two(fmaf(logit, LOG2_E, base)) - spread;
    }
    // To nearest, −(1 − p) would become −1 for every unlikely target.
    __device__ __forceinline__ unsigned char byte_at_target(float logit, u32 row) const {
        return two_bytes<true>(round_by_place(beside_target(logit) - at_target, row), 0.0f);
    }
};

// A thread's packs of a row, every blockDim.x-th, in GROUPS parts that are copied and waited for one after the other. Rows that do not fit
// into shared memory are read twice, the second time most likely from the second-level cache.
constexpr u32 GROUPS = 4;

template <bool KEEPS> struct Packs {
    const real* logits;
    uint4* kept;
    u32 columns, share;
    __device__ __forceinline__ Packs(const real* logits, uint4* kept, u32 columns)
        : logits(logits), kept(kept), columns(columns),
          share((columns / WIDTH + GROUPS * blockDim.x - 1) / (GROUPS * blockDim.x)) {}
    __device__ __forceinline__ void ask_for(u32 row, u32 pack) const {
        if constexpr (KEEPS) copy_ahead(kept + pack, logits + (u64)row * columns + pack * WIDTH);
    }
    template <typename Do> __device__ __forceinline__ void each(u32 group, Do act) const {
        const u32 packs = columns / WIDTH, first = group * share * blockDim.x + threadIdx.x;
        const u32 end = min(packs, (group + 1) * share * blockDim.x);
#pragma unroll 2
        for (u32 pack = first; pack < end; pack += blockDim.x) act(pack);
    }
    __device__ __forceinline__ void get(u32 row, u32 pack, float (&x)[WIDTH]) const {
        if constexpr (KEEPS) widen<real>(kept[pack], x);
        else load(logits + (u64)row * columns + pack * WIDTH, x);
    }
    // The first copies of a row, or what stands for them.
    __device__ __forceinline__ void begin(u32 row) const {
#pragma unroll 1
        for (u32 group = 0; group < GROUPS; group++) {
            if constexpr (KEEPS) each(group, [&](u32 pack) { ask_for(row, pack); });
            end_group();
        }
    }
};

template <bool KEEPS>
__device__ __forceinline__ void loss_rows(const real* logits, const u32* targets, const float* weights,
                                          const float* d_losses, float* losses, const u32* partials, float* unit,
                                          unsigned char* bytes, u32 first_row, u32 rows, u32 columns, float smoothing,
                                          float z_loss, u32* fault) {
    extern __shared__ uint4 kept[];
    const float scale = scale_from<PARTIALS>(partials, SAMPLED_TOP<true>);
    if (blockIdx.x == 0 && threadIdx.x == 0) *unit = 1.0f / scale;
    const Packs<KEEPS> packs(logits, kept, columns);
    const bool wants_sum = smoothing > 0.0f;
    packs.begin(blockIdx.x);
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        const u32 target = targets[row], next = row + gridDim.x;
        const float weight = weights[row], d_loss = d_losses[row];
        Gathered gathered{minus_infinity(), 0.0f, 0.0f};
        const auto gather = [&](u32 pack) {
            float x[WIDTH];
            packs.get(row, pack, x);
            gathered.add(x, wants_sum);
        };
        wait_for_all_but<3>();
        packs.each(0, gather);
        wait_for_all_but<2>();
        packs.each(1, gather);
        wait_for_all_but<1>();
        packs.each(2, gather);
        wait_for_all_but<0>();
        packs.each(3, gather);
        const bool is_counted = counts(target, columns, fault);
        const float logit = is_counted ? to_float(logits[(u64)row * columns + target]) : 0.0f;
        const Total total = gathered.finish(columns, wants_sum);
        if (threadIdx.x == 0) losses[row] = is_counted ? total.loss(logit, weight, smoothing, z_loss) : 0.0f;
        const LossRow gradient(is_counted ? weight * d_loss : 0.0f, total.log_sum_exp(), columns, smoothing, z_loss,
                               scale);
        unsigned char* const to = bytes + (u64)row * columns;
#pragma unroll 1
        for (u32 group = 0; group < GROUPS; group++) {
            packs.each(group, [&](u32 pack) {
                float x[WIDTH];
                packs.get(row, pack, x);
                if (next < rows) packs.ask_for(next, pack);
#pragma unroll
                for (int e = 0; e < WIDTH; e++) x[e] = gradient.beside_target(x[e]);
                *reinterpret_cast<Bytes*>(to + pack * WIDTH) = bytes_of<true>(x);
            });
            end_group();
        }
        // The thread that has written the pack of the target does so again there.
        if (is_counted && threadIdx.x == target / WIDTH % blockDim.x) {
            to[target] = gradient.byte_at_target(logit, first_row + row);
        }
    }
}

// Dynamic shared memory: 16 bytes for every pack of a row.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    e5m2_loss_rows(const real* logits, const u32* targets, const float* weights, const float* d_losses, float* losses,
                   const u32* partials, float* unit, unsigned char* bytes, u32 first_row, u32 rows, u32 columns,
                   float smoothing, float z_loss, u32* fault) {
    take_turn();
    loss_rows<true>(logits, targets, weights, d_losses, losses, partials, unit, bytes, first_row, rows, columns,
                    smoothing, z_loss, fault);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    e5m2_loss_long_rows(const real* logits, const u32* targets, const float* weights, const float* d_losses,
                        float* losses, const u32* partials, float* unit, unsigned char* bytes, u32 first_row, u32 rows,
                        u32 columns, float smoothing, float z_loss, u32* fault) {
    take_turn();
    loss_rows<false>(logits, targets, weights, d_losses, losses, partials, unit, bytes, first_row, rows, columns,
                     smoothing, z_loss, fault);
}

// Bytes of rows become bytes of columns. A block has a tile of TILE × TILE, a thread four rows of SIXTEEN columns, which leave as words of
// four rows by way of shared memory: 32 words a column, where sixteens of columns change places, so that neither those who write (four
// words of eight sixteens) nor those who read (a column) meet in a bank.
constexpr u32 TILE = 128, SIXTEEN = 16, TILE_THREADS = TILE * TILE / (4 * SIXTEEN);

extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    transpose_bytes(const unsigned char* from, unsigned char* __restrict__ to, u32 rows, u32 columns) {
    take_turn();
    __shared__ __align__(16) u32 tile[TILE * TILE / 4];
    const u32 part = threadIdx.x % 8, other = threadIdx.x / 8;
    const u32 row = blockIdx.y * TILE + other * 4, column = blockIdx.x * TILE + part * SIXTEEN;
    if (row < rows && column < columns) {
        u32 words[4][4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const uint4 four = *reinterpret_cast<const uint4*>(from + (u64)(row + r) * columns + column);
            words[0][r] = four.x;
            words[1][r] = four.y;
            words[2][r] = four.z;
            words[3][r] = four.w;
        }
#pragma unroll
        for (int four = 0; four < 4; four++) {
            turn(words[four]);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                tile[(part * SIXTEEN + four * 4 + c) * (TILE / 4) + (other ^ part * 4)] = words[four][c];
            }
        }
    }
    __syncthreads();
    const u32 first_row = blockIdx.y * TILE + part * SIXTEEN;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 own = i * (TILE / 4) + other, own_column = blockIdx.x * TILE + own;
        if (first_row >= rows || own_column >= columns) continue;
        *reinterpret_cast<uint4*>(to + (u64)own_column * rows + first_row) =
            *reinterpret_cast<const uint4*>(&tile[own * (TILE / 4) + (part ^ own / SIXTEEN) * 4]);
    }
}
