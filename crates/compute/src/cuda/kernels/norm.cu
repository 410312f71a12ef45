// Layer norm and RMS norm over rows of C elements, forward and backward, alone or with the residual sum around them.
//
// TEAM threads own a row: part of a warp, a warp, or a whole block. Each keeps PACKS packs of W elements in registers,
// as they are stored, so that a row is read once; pack k·TEAM + lane starts at column W·(k·TEAM + lane). The launcher
// chooses TEAM, PACKS and WIDE so that TEAM·PACKS·W ≥ C. Mean and variance are two sums, not one pass over squares.
// Rows are in order of blocks, and a block goes on to further rows.
#include "prelude.cuh"

#ifndef TEAM
#define TEAM 32
#endif
#ifndef PACKS
#define PACKS 3
#endif
#ifndef WIDE
#define WIDE 1
#endif

// With few rows nothing hides how far away gains and shifts are: each thread keeps those of its columns, which it asks for before the
// kernel before has ended where they are settled.
#ifndef FEW_ROWS
#define FEW_ROWS 0
#endif

constexpr int W = WIDE ? WIDTH : 1;
constexpr int THREADS = TEAM <= 32 ? 256 : TEAM;
constexpr int ROWS = THREADS / TEAM;

#include "norm_grad.cuh"

__device__ __forceinline__ float team_sum(float x) {
    if constexpr (TEAM <= 32) {
#pragma unroll
        for (int distance = TEAM / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
        return x;
    } else {
        __shared__ float warps[32];
        return block_sum(x, warps);
    }
}

// Two sums at once, for both to be on their way at a time.
__device__ __forceinline__ void team_sums(float& a, float& b) {
    if constexpr (TEAM <= 32) {
#pragma unroll
        for (int distance = TEAM / 2; distance > 0; distance /= 2) {
            a += __shfl_xor_sync(0xffffffffu, a, distance);
            b += __shfl_xor_sync(0xffffffffu, b, distance);
        }
    } else {
        a = team_sum(a);
        b = team_sum(b);
    }
}

// Rows as they lie, one behind the other.
struct InOrder {
    static constexpr bool BY_ID = false;
    __device__ __forceinline__ void look_up(u64, bool) {}
    __device__ __forceinline__ bool is_there(u32) const { return true; }
    __device__ __forceinline__ u64 begin(u64 row, u32 columns) const { return row * columns; }
};
// Rows of a table by id. One that is not there is reported and counts for nothing.
struct ById {
    static constexpr bool BY_ID = true;
    const u32* ids;
    u32 table_rows;
    u32* fault;
    u32 id = 0;
    __device__ __forceinline__ void look_up(u64 row, bool lives) { id = lives ? ids[row] : 0; }
    __device__ __forceinline__ bool is_there(u32 lane) const {
        if (id < table_rows) return true;
        if (lane == 0) report_fault(fault, id, table_rows);
        return false;
    }
    __device__ __forceinline__ u64 begin(u64, u32 columns) const { return (u64)id * columns; }
};

// y = norm(x) with x = a, or x = a + b rounded to what is stored; b + bias in place of b where there is one. What was added up or looked
// up is kept in `sum`. RMS norm has no mean.
template <bool ADDS, bool CENTRES, typename Rows = InOrder>
__device__ __forceinline__ void norm(const real* __restrict__ a, const real* __restrict__ b,
                                     const real* __restrict__ bias, const real* __restrict__ gain,
                                     const real* __restrict__ shift, real* __restrict__ sum, real* __restrict__ y,
                                     float* __restrict__ means, float* __restrict__ rstds, u64 rows, u32 columns,
                                     float eps, u32 is_settled, Rows rows_of_a = {}, Rows rows_of_b = {}) {
    const u32 lane = threadIdx.x % TEAM;
    Kept<W> own_gain[PACKS], own_shift[PACKS];
    // Nothing is touched before, save what is settled.
    if (!FEW_ROWS || !is_settled) wait_for_kernel_before();
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const u32 column = (k * TEAM + lane) * W;
        if (FEW_ROWS && column < columns) {
            own_gain[k].load(gain + column);
            if (CENTRES && shift) own_shift[k].load(shift + column);
        }
    }
    if (FEW_ROWS && is_settled) wait_for_kernel_before();
    let_next_begin();
    for (u64 first = (u64)blockIdx.x * ROWS; first < rows; first += (u64)gridDim.x * ROWS) {
        const u64 row = first + threadIdx.x / TEAM, at = row * columns;
        const bool lives = row < rows;
        rows_of_a.look_up(row, lives);
        if (ADDS) rows_of_b.look_up(row, lives);
        const bool has_a = lives && rows_of_a.is_there(lane), has_b = ADDS && lives && rows_of_b.is_there(lane);
        Kept<W> x[PACKS];
        const real* its = a + rows_of_a.begin(row, columns);
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * TEAM + lane) * W;
            if (Rows::BY_ID) x[k].clear();
            if (has_a && column < columns) x[k].load(its + column);
        }
        if constexpr (ADDS) {
            Kept<W> other[PACKS];
            const real* others = b + rows_of_b.begin(row, columns);
#pragma unroll
            for (int k = 0; k < PACKS; k++) {
                const u32 column = (k * TEAM + lane) * W;
                if (Rows::BY_ID) other[k].clear();
                if (has_b && column < columns) other[k].load(others + column);
            }
#pragma unroll
            for (int k = 0; k < PACKS; k++) {
                const u32 column = (k * TEAM + lane) * W;
                if (lives && column < columns) {
                    float left[W], right[W];
                    x[k].get(left);
                    other[k].get(right);
                    if (bias) {
                        float biases[W];
                        load(bias + column, biases);
#pragma unroll
                        for (int e = 0; e < W; e++) right[e] += biases[e];
                    }
#pragma unroll
                    for (int e = 0; e < W; e++) left[e] += right[e];
                    x[k].set(left);
                }
            }
        }
        if constexpr (ADDS || Rows::BY_ID) {
#pragma unroll
            for (int k = 0; k < PACKS; k++) {
                const u32 column = (k * TEAM + lane) * W;
                if (lives && column < columns) x[k].save(sum + at + column);
            }
        }
        float mean = 0.0f;
        if constexpr (CENTRES) {
            float total = 0.0f;
#pragma unroll
            for (int k = 0; k < PACKS; k++) {
                if (lives && (k * TEAM + lane) * W < columns) {
                    float values[W];
                    x[k].get(values);
#pragma unroll
                    for (int e = 0; e < W; e++) total += values[e];
                }
            }
            mean = team_sum(total) / (float)columns;
        }
        float squares = 0.0f;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            if (lives && (k * TEAM + lane) * W < columns) {
                float values[W];
                x[k].get(values);
#pragma unroll
                for (int e = 0; e < W; e++) squares += (values[e] - mean) * (values[e] - mean);
            }
        }
        const float rstd = 1.0f / sqrtf(team_sum(squares) / (float)columns + eps);
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * TEAM + lane) * W;
            if (lives && column < columns) {
                float values[W], gains[W];
                x[k].get(values);
                if (FEW_ROWS) own_gain[k].get(gains);
                else load(gain + column, gains);
#pragma unroll
                for (int e = 0; e < W; e++) values[e] = (values[e] - mean) * rstd * gains[e];
                if (CENTRES && shift) {
                    float shifts[W];
                    if (FEW_ROWS) own_shift[k].get(shifts);
                    else load(shift + column, shifts);
#pragma unroll
                    for (int e = 0; e < W; e++) values[e] += shifts[e];
                }
                store(y + at + column, values);
            }
        }
        if (lives && lane == 0) {
            if constexpr (CENTRES) means[row] = mean;
            rstds[row] = rstd;
        }
    }
}

// With x̂ = (x − mean)·rstd and g = d_y·gain: d_x = rstd·(g − mean(g) − x̂·mean(g·x̂)), plus `other` where there is
// one. RMS norm has no mean.
template <bool CENTRES>
__device__ __forceinline__ void norm_grad(const real* __restrict__ d_y, const real* __restrict__ x,
                                          const real* __restrict__ gain, const float* __restrict__ means,
                                          const float* __restrict__ rstds, const real* __restrict__ other,
                                          real* __restrict__ d_x, u64 rows, u32 columns) {
    const u32 lane = threadIdx.x % TEAM;
    for (u64 first = (u64)blockIdx.x * ROWS; first < rows; first += (u64)gridDim.x * ROWS) {
        const u64 row = first + threadIdx.x / TEAM, at = row * columns;
        const bool lives = row < rows;
        Kept<W> ds[PACKS], xs[PACKS], others[PACKS];
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * TEAM + lane) * W;
            if (lives && column < columns) {
                ds[k].load(d_y + at + column);
                xs[k].load(x + at + column);
                if (other) others[k].load(other + at + column);
            }
        }
        const float rstd = lives ? rstds[row] : 0.0f;
        const float mean = CENTRES && lives ? means[row] : 0.0f;
        float scaled = 0.0f, product = 0.0f;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * TEAM + lane) * W;
            if (lives && column < columns) {
                float d[W], normal[W], gains[W];
                ds[k].get(d);
                xs[k].get(normal);
                load(gain + column, gains);
#pragma unroll
                for (int e = 0; e < W; e++) {
                    const float g = d[e] * gains[e];
                    scaled += g;
                    product += g * ((normal[e] - mean) * rstd);
                }
            }
        }
        const float mean_scaled = CENTRES ? team_sum(scaled) / (float)columns : 0.0f;
        const float mean_product = team_sum(product) / (float)columns;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * TEAM + lane) * W;
            if (lives && column < columns) {
                float d[W], normal[W], gains[W];
                ds[k].get(d);
                xs[k].get(normal);
                load(gain + column, gains);
#pragma unroll
                for (int e = 0; e < W; e++) {
                    const float inner = d[e] * gains[e] - mean_scaled - (normal[e] - mean) * rstd * mean_product;
                    d[e] = rstd * inner;
                }
                if (other) {
                    float before[W];
                    others[k].get(before);
#pragma unroll
                    for (int e = 0; e < W; e++) d[e] += before[e];
                }
                store(d_x + at + column, d);
            }
        }
    }
}

// The same, and on the way sums over rows: see norm_grad.cuh. A thread sums its columns over the rows of its team.
constexpr int SUM_THREADS = TEAM <= 32 ? 128 : TEAM;
// Where a row has a whole block and a thread one pack of it, the next rows are copied ahead: see below.
constexpr bool AHEAD = WIDE && PACKS == 1 && TEAM > 32 && TEAM <= 512;
// Warps of a multiprocessor that registers allow.
constexpr int SUM_WARPS = AHEAD ? 28 : 16;
constexpr int SUM_BLOCKS = TEAM <= 32 ? 4 : TEAM < SUM_WARPS * 32 ? SUM_WARPS * 32 / TEAM : 1;

#if TEAM <= 32
constexpr int SUM_TEAMS = SUM_THREADS / TEAM;

#if WIDE && TEAM == 32
typedef RowsAhead<SUM_THREADS> RowsInTurn;
#else
// The rows of d_y, x and other that a thread works on, one after the other.
struct RowsInTurn {
    const real* from[3];
    u64 rows;
    u32 columns, lane;
    u64 row;
    Kept<W> packs[3][PACKS];
    __device__ __forceinline__ void begin(uint4*, u64 first) { row = first; }
    __device__ __forceinline__ void take(u64 next) {
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * TEAM + lane) * W;
            if (row < rows && column < columns) {
#pragma unroll
                for (int part = 0; part < 3; part++) packs[part][k].load(from[part] + row * columns + column);
            }
        }
        row = next;
    }
    __device__ __forceinline__ Kept<W> get(int part, int k) const { return packs[part][k]; }
    __device__ __forceinline__ void end_row() {}
};
#endif

template <bool CENTRES>
__device__ __forceinline__ void norm_grads(const real* __restrict__ d_y, const real* __restrict__ x,
                                           const real* __restrict__ gain, const float* __restrict__ means,
                                           const float* __restrict__ rstds, const real* __restrict__ other,
                                           real* __restrict__ d_x, float* __restrict__ partials, u64 rows,
                                           u32 columns) {
    extern __shared__ uint4 shared[];
    const u32 lane = threadIdx.x % TEAM, team = threadIdx.x / TEAM;
    float sums[SUMS][PACKS][W];
#pragma unroll
    for (int s = 0; s < SUMS; s++) {
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
#pragma unroll
            for (int e = 0; e < W; e++) sums[s][k][e] = 0.0f;
        }
    }
    const u64 step = (u64)gridDim.x * SUM_TEAMS;
    RowsInTurn in{{d_y, x, other}, rows, columns, lane};
    in.begin(shared, (u64)blockIdx.x * SUM_TEAMS + team);
    // Statistics are asked for a row ahead, too.
    const auto mean_of = [=](u64 row) { return CENTRES && row < rows ? means[row] : 0.0f; };
    const auto rstd_of = [=](u64 row) { return row < rows ? rstds[row] : 0.0f; };
    float next_mean = mean_of((u64)blockIdx.x * SUM_TEAMS + team);
    float next_rstd = rstd_of((u64)blockIdx.x * SUM_TEAMS + team);
    for (u64 first = (u64)blockIdx.x * SUM_TEAMS; first < rows; first += step) {
        const u64 row = first + team, at = row * columns;
        const bool lives = row < rows;
        const float mean = next_mean, rstd = next_rstd;
        next_mean = mean_of(row + step);
        next_rstd = rstd_of(row + step);
        in.take(row + step);
        float scaled = 0.0f, product = 0.0f;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * TEAM + lane) * W;
            if (lives && column < columns) {
                float gains[W];
                load(gain + column, gains);
                sum_pack(in.get(0, k), in.get(1, k), gains, mean, rstd, k, sums, scaled, product);
            }
        }
        team_sums(scaled, product);
        const float mean_scaled = CENTRES ? scaled / (float)columns : 0.0f;
        const float mean_product = product / (float)columns;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * TEAM + lane) * W;
            if (lives && column < columns) {
                float gains[W];
                load(gain + column, gains);
                const Kept<W> stored = pack_of(in.get(0, k), in.get(1, k), in.get(2, k), gains, mean, rstd, mean_scaled,
                                               mean_product);
                keep_pack(stored, d_x + at + column, k, sums);
            }
        }
        in.end_row();
    }
    // Rows were asked for past the last one, of which nothing came: shared memory is free.
    leave_sums<SUM_THREADS, TEAM>(sums, reinterpret_cast<float*>(shared), partials, columns);
}
#else
// A long row has a whole block, and a thread as few columns of it as possible: the fewer sums it keeps, the more threads wait
// for memory. AHEAD, two rows are worked on at a time, for one barrier, while the next two are copied into shared memory. What
// is not arithmetic is kept short: it is what the threads would otherwise be busy with.
constexpr int AT_ONCE = AHEAD ? 2 : 1, WARPS = TEAM / 32;

// Numbers that are summed over a row, for as many rows as are worked on at a time.
constexpr int TOTALS = 2 * AT_ONCE;
struct alignas(4 * TOTALS) Totals { float of[TOTALS]; };

// The sum over a warp of one of these numbers: lane l has that of number l / (32 / TOTALS). Each gives half of what it has to
// another lane and keeps the other half, until one number is left.
__device__ __forceinline__ float sum_totals(Totals own, u32 lane) {
    u32 distance = 16;
#pragma unroll
    for (int half = TOTALS / 2; half > 0; half /= 2, distance /= 2) {
        const bool is_upper = lane & distance;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float lower = own.of[i], upper = own.of[i + half], given = is_upper ? lower : upper;
            own.of[i] = (is_upper ? upper : lower) + __shfl_xor_sync(0xffffffffu, given, distance);
        }
    }
    for (; distance > 0; distance /= 2) own.of[0] += __shfl_xor_sync(0xffffffffu, own.of[0], distance);
    return own.of[0];
}

// A thread's part of the rows of d_y, x and other, AT_ONCE of them after another; `at` is where its part of the first begins.
struct RowsInTurn {
    const real* from[3];
    u64 rows;
    u32 columns;
    // Shared memory: [2, AT_ONCE, 3, TEAM] packs. A thread reads what it copied itself.
    uint4* kept;
    Kept<W> packs[AHEAD ? 1 : 3][AHEAD ? 1 : PACKS];

    __device__ __forceinline__ uint4* place(u32 turn, int r, int part) const {
        return kept + ((turn * AT_ONCE + r) * 3 + part) * TEAM + threadIdx.x;
    }
    __device__ __forceinline__ void ask(u64 first, u64 at, u32 turn) {
        if constexpr (AHEAD) {
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++) {
                if (first + r >= rows || threadIdx.x * W >= columns) continue;
#pragma unroll
                for (int part = 0; part < 3; part++) copy_ahead(place(turn, r, part), from[part] + at + r * columns);
            }
            end_group();
        }
    }
    // Rows `first`.. are there; those a step further are asked for.
    __device__ __forceinline__ void take(u64 first, u64 at, u64 step, u32 turn) {
        if constexpr (AHEAD) {
            ask(first + step, at + step * columns, turn ^ 1);
            wait_for_all_but<1>();
        } else {
#pragma unroll
            for (int k = 0; k < PACKS; k++) {
                if (first >= rows || (k * TEAM + threadIdx.x) * W >= columns) continue;
#pragma unroll
                for (int part = 0; part < 3; part++) packs[part][k].load(from[part] + at + k * TEAM * W);
            }
        }
    }
    __device__ __forceinline__ Kept<W> get(u32 turn, int r, int part, int k) const {
        if constexpr (AHEAD) {
            return *reinterpret_cast<const Kept<W>*>(place(turn, r, part));
        } else {
            return packs[part][k];
        }
    }
};

template <bool CENTRES>
__device__ __forceinline__ void norm_grads(const real* __restrict__ d_y, const real* __restrict__ x,
                                           const real* __restrict__ gain, const float* __restrict__ means,
                                           const float* __restrict__ rstds, const real* __restrict__ other,
                                           real* __restrict__ d_x, float* __restrict__ partials, u64 rows,
                                           u32 columns) {
    extern __shared__ uint4 shared[];
    // Of every warp the sums of its part of the rows, in one of two places in turn: a warp that is ahead writes into the other one.
    __shared__ Totals warps[2][WARPS];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float share = 1.0f / (float)columns;
    float sums[SUMS][PACKS][W] = {};
    float gains[PACKS][W];
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const u32 column = (k * TEAM + threadIdx.x) * W;
        if (column < columns) load(gain + column, gains[k]);
    }
    const u64 step = (u64)gridDim.x * AT_ONCE, stride = step * columns;
    u64 first = (u64)blockIdx.x * AT_ONCE, at = first * columns + threadIdx.x * W;
    RowsInTurn in{{d_y, x, other}, rows, columns, shared};
    in.ask(first, at, 0);
    // Statistics are asked for ahead, too.
    float mean[AT_ONCE], rstd[AT_ONCE];
    const auto know = [&](u64 first) {
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            mean[r] = CENTRES && first + r < rows ? means[first + r] : 0.0f;
            rstd[r] = first + r < rows ? rstds[first + r] : 0.0f;
        }
    };
    know(first);
    for (u32 turn = 0; first < rows; first += step, at += stride, turn ^= 1) {
        in.take(first, at, step, turn);
        Totals own = {};
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
#pragma unroll
            for (int k = 0; k < PACKS; k++) {
                if (first + r >= rows || (k * TEAM + threadIdx.x) * W >= columns) continue;
                sum_pack(in.get(turn, r, 0, k), in.get(turn, r, 1, k), gains[k], mean[r], rstd[r], k, sums,
                         own.of[2 * r], own.of[2 * r + 1]);
            }
        }
        const float total = sum_totals(own, lane);
        if (lane % (32 / TOTALS) == 0) warps[turn][warp].of[lane / (32 / TOTALS)] = total;
        float own_mean[AT_ONCE], own_rstd[AT_ONCE];
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            own_mean[r] = mean[r];
            own_rstd[r] = rstd[r];
        }
        know(first + step);
        __syncthreads();
        Totals all = {};
#pragma unroll 8
        for (int w = 0; w < WARPS; w++) {
            const Totals part = warps[turn][w];
#pragma unroll
            for (int i = 0; i < TOTALS; i++) all.of[i] += part.of[i];
        }
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            const float mean_scaled = CENTRES ? all.of[2 * r] * share : 0.0f, mean_product = all.of[2 * r + 1] * share;
#pragma unroll
            for (int k = 0; k < PACKS; k++) {
                if (first + r >= rows || (k * TEAM + threadIdx.x) * W >= columns) continue;
                const Kept<W> stored = pack_of(in.get(turn, r, 0, k), in.get(turn, r, 1, k), in.get(turn, r, 2, k),
                                               gains[k], own_mean[r], own_rstd[r], mean_scaled, mean_product);
                keep_pack(stored, d_x + at + r * columns + k * TEAM * W, k, sums);
            }
        }
    }
    float* to = partials + (u64)blockIdx.x * SUMS * columns;
#pragma unroll
    for (int s = 0; s < SUMS; s++) {
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * TEAM + threadIdx.x) * W;
            if (column < columns) store<W>(to + s * columns + column, sums[s][k]);
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm(const real* x, const real* gain, const real* shift, real* y, float* means, float* rstds, u64 rows,
               u32 columns, float eps, u32 is_settled) {
    norm<false, true>(x, nullptr, nullptr, gain, shift, nullptr, y, means, rstds, rows, columns, eps, is_settled);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    add_layer_norm(const real* a, const real* b, const real* gain, const real* shift, real* sum, real* y,
                   float* means, float* rstds, u64 rows, u32 columns, float eps, u32 is_settled) {
    norm<true, true>(a, b, nullptr, gain, shift, sum, y, means, rstds, rows, columns, eps, is_settled);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    add_biased_layer_norm(const real* a, const real* b, const real* bias, const real* gain, const real* shift,
                          real* sum, real* y, float* means, float* rstds, u64 rows, u32 columns, float eps,
                          u32 is_settled) {
    norm<true, true>(a, b, bias, gain, shift, sum, y, means, rstds, rows, columns, eps, is_settled);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm(const real* x, const real* gain, real* y, float* rstds, u64 rows, u32 columns, float eps,
             u32 is_settled) {
    norm<false, false>(x, nullptr, nullptr, gain, nullptr, nullptr, y, nullptr, rstds, rows, columns, eps, is_settled);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    add_rms_norm(const real* a, const real* b, const real* gain, real* sum, real* y, float* rstds, u64 rows,
                 u32 columns, float eps, u32 is_settled) {
    norm<true, false>(a, b, nullptr, gain, nullptr, sum, y, nullptr, rstds, rows, columns, eps, is_settled);
}

// The same with rows of tables: a step begins with these.
extern "C" __global__ void __launch_bounds__(THREADS)
    embed_rms_norm(const real* table, const u32* ids, const real* gain, real* x, real* y, float* rstds, u32 table_rows,
                   u32* fault, u64 rows, u32 columns, float eps, u32 is_settled) {
    norm<false, false>(table, nullptr, nullptr, gain, nullptr, x, y, nullptr, rstds, rows, columns, eps, is_settled,
                       ById{ids, table_rows, fault});
}

extern "C" __global__ void __launch_bounds__(THREADS)
    embed_add_layer_norm(const real* a, const u32* a_ids, const real* b, const u32* b_ids, const real* gain,
                         const real* shift, real* sum, real* y, float* means, float* rstds, u32 a_rows, u32 b_rows,
                         u32* fault, u64 rows, u32 columns, float eps, u32 is_settled) {
    norm<true, true>(a, b, nullptr, gain, shift, sum, y, means, rstds, rows, columns, eps, is_settled,
                     ById{a_ids, a_rows, fault}, ById{b_ids, b_rows, fault});
}

extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm_grad(const real* d_y, const real* x, const real* gain, const float* means, const float* rstds,
                    const real* other, real* d_x, u64 rows, u32 columns) {
    take_turn();
    norm_grad<true>(d_y, x, gain, means, rstds, other, d_x, rows, columns);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm_grad(const real* d_y, const real* x, const real* gain, const float* rstds, const real* other, real* d_x,
                  u64 rows, u32 columns) {
    take_turn();
    norm_grad<false>(d_y, x, gain, nullptr, rstds, other, d_x, rows, columns);
}

extern "C" __global__ void __launch_bounds__(SUM_THREADS, SUM_BLOCKS)
    layer_norm_grads(const real* d_y, const real* x, const real* gain, const float* means, const float* rstds,
                     const real* other, real* d_x, float* partials, u64 rows, u32 columns) {
    take_turn();
    norm_grads<true>(d_y, x, gain, means, rstds, other, d_x, partials, rows, columns);
}

extern "C" __global__ void __launch_bounds__(SUM_THREADS, SUM_BLOCKS)
    rms_norm_grads(const real* d_y, const real* x, const real* gain, const float* rstds, const real* other, real* d_x,
                   float* partials, u64 rows, u32 columns) {
    take_turn();
    norm_grads<false>(d_y, x, gain, nullptr, rstds, other, d_x, partials, rows, columns);
}
