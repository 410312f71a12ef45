// What the gradients of a norm are made of, wherever they are taken: with x̂ = (x − mean)·rstd and g = d_y·gain, d_x = rstd·(g − mean(g) −
// x̂·mean(g·x̂)) + other, and on the way the sums over rows that are gradients of the norm's parameters and of a bias: of d_y·x̂, of
// d_y, and of what is stored in d_x.
//
// Whoever includes this has said how many elements a pack has (W) and how many packs of a row a thread has (PACKS).
#pragma once

// What is summed besides the gradient of the gain: that of a shift, and the rows of the result.
#ifndef SHIFTS
#define SHIFTS 0
#endif
#ifndef SUMS_ROWS
#define SUMS_ROWS 0
#endif

constexpr int SUMS = 1 + SHIFTS + SUMS_ROWS;

// What a thread adds to its sums for one pack of a row, and to the two sums over the row.
__device__ __forceinline__ void sum_pack(const Kept<W>& d_y, const Kept<W>& x, const float (&gains)[W], float mean,
                                         float rstd, int k, float (&sums)[SUMS][PACKS][W], float& scaled,
                                         float& product) {
    float d[W], normal[W];
    d_y.get(d);
    x.get(normal);
#pragma unroll
    for (int e = 0; e < W; e++) {
        const float g = d[e] * gains[e], hat = (normal[e] - mean) * rstd;
        scaled += g;
        product += g * hat;
        sums[0][k][e] += d[e] * hat;
        if (SHIFTS) sums[SHIFTS][k][e] += d[e];
    }
}

// One pack of d_x as it is stored.
__device__ __forceinline__ Kept<W> pack_of(const Kept<W>& d_y, const Kept<W>& x, const Kept<W>& other,
                                           const float (&gains)[W], float mean, float rstd, float mean_scaled,
                                           float mean_product) {
    float d[W], normal[W], before[W];
    d_y.get(d);
    x.get(normal);
    other.get(before);
    const float slope = rstd * mean_product, offset = fmaf(-mean, slope, mean_scaled);
#pragma unroll
    for (int e = 0; e < W; e++) {
        const float rest = fmaf(normal[e], slope, offset);
        d[e] = fmaf(rstd, fmaf(d[e], gains[e], -rest), before[e]);
    }
    Kept<W> stored;
    stored.set(d);
    return stored;
}

// Stores a pack of d_x, and adds it to a thread's sums.
__device__ __forceinline__ void keep_pack(const Kept<W>& stored, real* to, int k, float (&sums)[SUMS][PACKS][W]) {
    stored.save(to);
    if constexpr (SUMS_ROWS) {
        float d[W];
        stored.get(d);
#pragma unroll
        for (int e = 0; e < W; e++) sums[SUMS - 1][k][e] += d[e];
    }
}

// A block adds its teams' sums in order and leaves them in `partials` [blocks, SUMS, columns].
template <int BLOCK, int LANES>
__device__ __forceinline__ void leave_sums(const float (&sums)[SUMS][PACKS][W], float* parts,
                                           float* __restrict__ partials, u32 columns) {
    constexpr u32 ROW = LANES * PACKS * W;
    const u32 lane = threadIdx.x % LANES, team = threadIdx.x / LANES;
    float* to = partials + (u64)blockIdx.x * SUMS * columns;
#pragma unroll
    for (int s = 0; s < SUMS; s++) {
        __syncthreads();
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
#pragma unroll
            for (int e = 0; e < W; e++) parts[team * ROW + (k * LANES + lane) * W + e] = sums[s][k][e];
        }
        __syncthreads();
        for (u32 column = threadIdx.x; column < columns; column += BLOCK) {
            float sum = 0.0f;
            for (u32 part = 0; part < BLOCK / LANES; part++) sum += parts[part * ROW + column];
            to[s * columns + column] = sum;
        }
    }
}

// Sums leave few registers, and so few threads, to wait for memory. Where a warp has a row, the next row is therefore copied
// into shared memory while the last one is worked on.
//
// The rows of d_y, x and other that a lane works on, one after the other.
template <int BLOCK> struct RowsAhead {
    const real* from[3];
    u64 rows;
    u32 columns, lane;
    // Shared memory: [2, 3, PACKS, BLOCK] packs. A thread reads what it copied itself.
    uint4* kept;
    u32 turn;
    __device__ __forceinline__ uint4* place(u32 turn, int part, int k) const {
        return kept + (((turn % 2) * 3 + part) * PACKS + k) * BLOCK + threadIdx.x;
    }
    __device__ __forceinline__ void ask(u64 row, u32 turn) const {
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * 32 + lane) * W;
            if (row < rows && column < columns) {
#pragma unroll
                for (int part = 0; part < 3; part++) copy_ahead(place(turn, part, k), from[part] + row * columns + column);
            }
        }
        end_group();
    }
    __device__ __forceinline__ void begin(uint4* shared, u64 row) {
        kept = shared;
        turn = 0;
        ask(row, 0);
    }
    // The row that was asked for last is there; the next one is asked for.
    __device__ __forceinline__ void take(u64 next) {
        ask(next, turn + 1);
        wait_for_all_but<1>();
    }
    __device__ __forceinline__ Kept<W> get(int part, int k) const {
        return *reinterpret_cast<const Kept<W>*>(place(turn, part, k));
    }
    __device__ __forceinline__ void end_row() { turn++; }
};
