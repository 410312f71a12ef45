// All gradients of a norm, as in norm.cu, where that of what it normalises is written as e5m2 as well, as it stands and transposed.
//
// First `largest_*` compute the gradient of those rows that would be looked at if it lay in memory, which decides the unit. Then a block
// has ROWS neighbouring rows at a time and a warp one of them, PACKS packs of W elements to a lane, so C ≤ 32·PACKS·W. Bytes wait in
// shared memory until the block's rows are there, and then leave by columns. Blocks that run at a time have rows side by side: what
// they write of a column makes whole lines of the second-level cache together.
#include "prelude.cuh"
#include "eight_bits.cuh"

#ifndef PACKS
#define PACKS 3
#endif

constexpr int W = WIDTH;
constexpr u32 THREADS = 256, WARPS = THREADS / 32, ROWS = 32;
// Blocks of a multiprocessor: as many as sums leave registers for.
constexpr int BLOCKS = 2;
// Threads of a block that looks for the largest number, of which there are PARTIALS.
constexpr u32 LARGEST_THREADS = 128, LARGEST_WARPS = LARGEST_THREADS / 32;

#include "byte_tile.cuh"
#include "norm_grad.cuh"

// The means over a row that its gradient needs, and on the way a lane's sums over rows. `get` gives a pack of d_y (0) or x (1).
struct Means { float scaled, product; };

template <bool CENTRES, typename Get>
__device__ __forceinline__ Means means_of(const Get& get, const real* __restrict__ gain, float mean, float rstd, u32 lane,
                                          u32 columns, float (&sums)[SUMS][PACKS][W]) {
    float scaled = 0.0f, product = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const u32 column = (k * 32 + lane) * W;
        if (column >= columns) continue;
        float gains[W];
        load(gain + column, gains);
        sum_pack(get(0, k), get(1, k), gains, mean, rstd, k, sums, scaled, product);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        scaled += __shfl_xor_sync(0xffffffffu, scaled, distance);
        product += __shfl_xor_sync(0xffffffffu, product, distance);
    }
    return {CENTRES ? scaled / (float)columns : 0.0f, product / (float)columns};
}

// The largest number of every `stride`-th row.
template <bool CENTRES>
__device__ __forceinline__ void largest(const real* __restrict__ d_y, const real* __restrict__ x,
                                        const real* __restrict__ gain, const float* __restrict__ means,
                                        const float* __restrict__ rstds, const real* __restrict__ other,
                                        u32* __restrict__ partials, u32 rows, u32 columns, u32 stride) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 most = 0;
    for (u32 i = blockIdx.x * LARGEST_WARPS + warp; i * stride < rows; i += PARTIALS * LARGEST_WARPS) {
        const u32 row = i * stride;
        const u64 at = (u64)row * columns;
        Kept<W> packs[3][PACKS];
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * 32 + lane) * W;
            if (column >= columns) continue;
            packs[0][k].load(d_y + at + column);
            packs[1][k].load(x + at + column);
            packs[2][k].load(other + at + column);
        }
        const float mean = CENTRES ? means[row] : 0.0f, rstd = rstds[row];
        const auto get = [&](int part, int k) { return packs[part][k]; };
        float sums[SUMS][PACKS][W] = {};
        const Means of = means_of<CENTRES>(get, gain, mean, rstd, lane, columns, sums);
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * 32 + lane) * W;
            if (column >= columns) continue;
            float gains[W], d[W];
            load(gain + column, gains);
            pack_of(get(0, k), get(1, k), get(2, k), gains, mean, rstd, of.scaled, of.product).get(d);
#pragma unroll
            for (int e = 0; e < W; e++) most = max(most, __float_as_uint(d[e]) & 0x7fffffffu);
        }
    }
    leave_largest<LARGEST_THREADS>(most, partials + blockIdx.x);
}

template <bool CENTRES>
__device__ __forceinline__ void quantise(const real* __restrict__ d_y, const real* __restrict__ x,
                                         const real* __restrict__ gain, const float* __restrict__ means,
                                         const float* __restrict__ rstds, const real* __restrict__ other,
                                         real* __restrict__ d_x, float* __restrict__ partials,
                                         const u32* __restrict__ largest, float* __restrict__ unit,
                                         unsigned char* __restrict__ as_it_is, unsigned char* __restrict__ transposed,
                                         u32 rows, u32 columns, u32 row_words) {
    extern __shared__ uint4 shared[];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, step = gridDim.x * ROWS;
    // Behind what is copied ahead.
    const ByteTile<THREADS, ROWS> tile{reinterpret_cast<u32*>(shared + 2 * 3 * PACKS * THREADS), row_words};
    float sums[SUMS][PACKS][W] = {};
    RowsAhead<THREADS> in{{d_y, x, other}, rows, columns, lane};
    const u32 first = blockIdx.x * ROWS;
    in.begin(shared, first + warp);
    // Statistics are asked for a row ahead, too.
    const auto mean_of = [=](u32 row) { return CENTRES && row < rows ? means[row] : 0.0f; };
    const auto rstd_of = [=](u32 row) { return row < rows ? rstds[row] : 0.0f; };
    float next_mean = mean_of(first + warp), next_rstd = rstd_of(first + warp);
    // All of this was there before the kernel that looks for the largest number began, which is the one before.
    take_turn();
    const float scale = scale_from<PARTIALS>(largest, SAMPLED_TOP<true>);
    if (blockIdx.x == 0 && threadIdx.x == 0) *unit = 1.0f / scale;

    for (u32 top = first; top < rows; top += step) {
        for (u32 own = warp; own < ROWS && top + own < rows; own += WARPS) {
            const u32 row = top + own, next = own + WARPS < ROWS ? row + WARPS : top + step + warp;
            const float mean = next_mean, rstd = next_rstd;
            next_mean = mean_of(next);
            next_rstd = rstd_of(next);
            in.take(next);
            const auto get = [&](int part, int k) { return in.get(part, k); };
            const Means of = means_of<CENTRES>(get, gain, mean, rstd, lane, columns, sums);
#pragma unroll
            for (int k = 0; k < PACKS; k++) {
                const u32 column = (k * 32 + lane) * W;
                if (column >= columns) continue;
                const u64 at = (u64)row * columns + column;
                float gains[W], d[W];
                load(gain + column, gains);
                const Kept<W> stored =
                    pack_of(get(0, k), get(1, k), get(2, k), gains, mean, rstd, of.scaled, of.product);
                keep_pack(stored, d_x + at, k, sums);
                stored.get(d);
#pragma unroll
                for (int e = 0; e < W; e++) d[e] *= scale;
                const Bytes bytes = bytes_of<true>(d);
                *reinterpret_cast<Bytes*>(as_it_is + at) = bytes;
                tile.put(own, column, bytes);
            }
            in.end_row();
        }
        tile.write_columns(transposed, top, rows, columns);
        __syncthreads();
    }
    // Rows were asked for past the last one, of which nothing came: shared memory is free.
    leave_sums<THREADS, 32>(sums, reinterpret_cast<float*>(shared), partials, columns);
}

extern "C" __global__ void __launch_bounds__(LARGEST_THREADS)
    largest_layer_norm_grad(const real* d_y, const real* x, const real* gain, const float* means, const float* rstds,
                            const real* other, u32* partials, u32 rows, u32 columns, u32 stride) {
    take_turn();
    largest<true>(d_y, x, gain, means, rstds, other, partials, rows, columns, stride);
}

extern "C" __global__ void __launch_bounds__(LARGEST_THREADS)
    largest_rms_norm_grad(const real* d_y, const real* x, const real* gain, const float* rstds, const real* other,
                          u32* partials, u32 rows, u32 columns, u32 stride) {
    take_turn();
    largest<false>(d_y, x, gain, nullptr, rstds, other, partials, rows, columns, stride);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    quantise_layer_norm_grads(const real* d_y, const real* x, const real* gain, const float* means, const float* rstds,
                              const real* other, real* d_x, float* partials, const u32* largest, float* unit,
                              unsigned char* as_it_is, unsigned char* transposed, u32 rows, u32 columns,
                              u32 row_words) {
    quantise<true>(d_y, x, gain, means, rstds, other, d_x, partials, largest, unit, as_it_is, transposed, rows,
                   columns, row_words);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    quantise_rms_norm_grads(const real* d_y, const real* x, const real* gain, const float* rstds, const real* other,
                            real* d_x, float* partials, const u32* largest, float* unit, unsigned char* as_it_is,
                            unsigned char* transposed, u32 rows, u32 columns, u32 row_words) {
    quantise<false>(d_y, x, gain, nullptr, rstds, other, d_x, partials, largest, unit, as_it_is, transposed, rows,
                    columns, row_words);
}
