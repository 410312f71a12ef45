// Sums over rows (gradients of biases, gains and shifts) and over everything (the sum of losses, the global norm).
//
// All in two stages through working memory: how many parts there are, and so the order of every sum, depends on shapes
// alone.
#include "prelude.cuh"

#ifndef WIDE
#define WIDE 1
#endif

constexpr int W = WIDE ? WIDTH : 1;
constexpr u32 THREADS = 256;

// Sums of columns over a chunk of rows. blockIdx.x takes `across`·W columns, blockIdx.y a chunk; of a block's threads
// `across` (a power of two) lie along a row with W columns each, and the rest are rows apart. `partials` is [chunks,
// SUMS, columns]. add_row(at, row, sums) adds the W elements at flat index `at`, in `row`, to the thread's sums.
template <int SUMS, typename F>
__device__ __forceinline__ void sum_columns(float* partials, u64 rows, u32 columns, u32 chunk_rows, u32 across,
                                            F add_row) {
    __shared__ float shared[THREADS * W];
    const u32 down = THREADS / across, x = threadIdx.x % across, y = threadIdx.x / across;
    const u32 first_column = blockIdx.x * across * W, column = first_column + x * W;
    const u64 first = (u64)blockIdx.y * chunk_rows;
    const u64 end = first + chunk_rows < rows ? first + chunk_rows : rows;
    float sums[SUMS][W];
#pragma unroll
    for (int s = 0; s < SUMS; s++) {
#pragma unroll
        for (int e = 0; e < W; e++) sums[s][e] = 0.0f;
    }
    if (column < columns) {
#pragma unroll 4
        for (u64 row = first + y; row < end; row += down) add_row(row * columns + column, row, sums);
    }
#pragma unroll
    for (int s = 0; s < SUMS; s++) {
        __syncthreads();
#pragma unroll
        for (int e = 0; e < W; e++) shared[(y * across + x) * W + e] = sums[s][e];
        __syncthreads();
        for (u32 i = threadIdx.x; i < across * W; i += THREADS) {
            float sum = 0.0f;
            for (u32 part = 0; part < down; part++) sum += shared[part * across * W + i];
            if (first_column + i < columns) {
                partials[((u64)blockIdx.y * SUMS + s) * columns + first_column + i] = sum;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    bias_columns(const real* d_y, float* __restrict__ partials, u64 rows, u32 columns, u32 chunk_rows,
                 u32 across) {
    take_turn();
    sum_columns<1>(partials, rows, columns, chunk_rows, across, [=](u64 at, u64, float (&sums)[1][W]) {
        float d[W];
        load(d_y + at, d);
#pragma unroll
        for (int e = 0; e < W; e++) sums[0][e] += d[e];
    });
}

// d_gain = Σ d_y·(x − mean)·rstd and, where `shifts`, d_shift = Σ d_y.
template <int SUMS>
__device__ __forceinline__ void layer_norm_sums(const real* __restrict__ d_y, const real* __restrict__ x,
                                                const float* __restrict__ means, const float* __restrict__ rstds,
                                                float* __restrict__ partials, u64 rows, u32 columns, u32 chunk_rows,
                                                u32 across) {
    sum_columns<SUMS>(partials, rows, columns, chunk_rows, across, [=](u64 at, u64 row, float (&sums)[SUMS][W]) {
        float d[W], values[W];
        load(d_y + at, d);
        load(x + at, values);
        const float mean = means[row], rstd = rstds[row];
#pragma unroll
        for (int e = 0; e < W; e++) {
            sums[0][e] += d[e] * ((values[e] - mean) * rstd);
            if (SUMS == 2) sums[SUMS - 1][e] += d[e];
        }
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm_gain_columns(const real* d_y, const real* x, const float* means, const float* rstds, float* partials,
                            u64 rows, u32 columns, u32 chunk_rows, u32 across) {
    take_turn();
    layer_norm_sums<1>(d_y, x, means, rstds, partials, rows, columns, chunk_rows, across);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm_columns(const real* d_y, const real* x, const float* means, const float* rstds, float* partials,
                       u64 rows, u32 columns, u32 chunk_rows, u32 across) {
    take_turn();
    layer_norm_sums<2>(d_y, x, means, rstds, partials, rows, columns, chunk_rows, across);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm_columns(const real* d_y, const real* x, const float* rstds,
                     float* __restrict__ partials, u64 rows, u32 columns, u32 chunk_rows, u32 across) {
    take_turn();
    sum_columns<1>(partials, rows, columns, chunk_rows, across, [=](u64 at, u64 row, float (&sums)[1][W]) {
        float d[W], values[W];
        load(d_y + at, d);
        load(x + at, values);
        const float rstd = rstds[row];
#pragma unroll
        for (int e = 0; e < W; e++) sums[0][e] += d[e] * (values[e] * rstd);
    });
}

// Adds the chunks' sums of 32 columns (blockIdx.x) of one of the sums (blockIdx.y): every warp those of every 32nd
// chunk, then all warps.
extern "C" __global__ void __launch_bounds__(1024)
    finish_columns(const float* partials, float* first, float* second, float* third, u32 columns,
                   u32 chunks, u32 adds) {
    take_turn();
    __shared__ float sums[32][33];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    const float* from = partials + (u64)blockIdx.y * columns + column;
    const u64 stride = (u64)gridDim.y * columns;
    float sum = 0.0f;
    if (column < columns) {
#pragma unroll 16
        for (u32 chunk = warp; chunk < chunks; chunk += 32) sum += from[chunk * stride];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    // A warp per column now, so that the tree of the sum is a warp's.
    const u32 own = blockIdx.x * 32 + warp;
    const float total = warp_sum(sums[lane][warp]);
    if (lane == 0 && own < columns) {
        float* to = (blockIdx.y == 0 ? first : blockIdx.y == 1 ? second : third) + own;
        *to = adds ? *to + total : total;
    }
}

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

// The sum over a block of any number of warps, in thread 0.
__device__ __forceinline__ double block_sum(double x, double* warps) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    return threadIdx.x < 32 ? warp_sum(threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0.0) : 0.0;
}

// Σ f(x) over the elements of a block in double precision, which no sum of f32 squares overflows.
template <typename T, typename F>
__device__ __forceinline__ void sum_all(const T* __restrict__ x, double* partials, u64 n, u32 wide, F f) {
    constexpr int N = 16 / sizeof(T);
    __shared__ double warps[THREADS / 32];
    const u64 packs = wide ? n / N : 0;
    const u64 first = (u64)blockIdx.x * THREADS + threadIdx.x, step = (u64)gridDim.x * THREADS;
    double sums[N] = {};
#pragma unroll 4
    for (u64 pack = first; pack < packs; pack += step) {
        float values[N];
        load(x + pack * N, values);
#pragma unroll
        for (int e = 0; e < N; e++) sums[e] = f(values[e], sums[e]);
    }
    for (u64 e = packs * N + first; e < n; e += step) sums[0] = f(to_float(x[e]), sums[0]);
#pragma unroll
    for (int e = 1; e < N; e++) sums[0] += sums[e];
    const double sum = block_sum(sums[0], warps);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_parts(const real* x, double* partials, u64 n, u32 wide) {
    take_turn();
    sum_all(x, partials, n, wide, [](float x, double sum) { return sum + (double)x; });
}

extern "C" __global__ void __launch_bounds__(THREADS) square_parts(const float* x, double* partials, u64 n, u32 wide) {
    take_turn();
    sum_all(x, partials, n, wide, [](float x, double sum) { return fma((double)x, (double)x, sum); });
}

// One block.
__device__ __forceinline__ double sum_parts_of(const double* partials, u32 count) {
    __shared__ double warps[32];
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) sum += partials[i];
    return block_sum(sum, warps);
}

extern "C" __global__ void __launch_bounds__(1024) finish_sum(const double* partials, float* sum, u32 count) {
    take_turn();
    const double total = sum_parts_of(partials, count);
    if (threadIdx.x == 0) *sum = (float)total;
}

// A finite norm stays finite, because a norm that is not says that a gradient is not.
extern "C" __global__ void __launch_bounds__(1024) finish_norm(const double* partials, float* norm, u32 count) {
    take_turn();
    const double root = sqrt(sum_parts_of(partials, count));
    const double most = 3.4028234663852886e38;
    if (threadIdx.x == 0) *norm = isfinite(root) && root > most ? (float)most : (float)root;
}
