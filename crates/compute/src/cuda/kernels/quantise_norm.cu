// Layer norm and RMS norm over rows of C elements whose result is written as e4m3 alone, as it stands and transposed.
//
// A block has ROWS neighbouring rows and a warp one of them at a time, PACKS packs of W elements to a lane, so C ≤ 32·PACKS·W; its
// next row is on the way meanwhile. Bytes wait in shared memory until the block's rows are there, and then leave by columns.
// No number of a norm's result is larger than √C·max|gain| + max|shift|, which decides the unit before any of them is known.
#include "prelude.cuh"
#include "eight_bits.cuh"

#ifndef PACKS
#define PACKS 3
#endif

constexpr int W = WIDTH;
constexpr u32 THREADS = 256, WARPS = THREADS / 32, ROWS = 32;
// The bound of a row comes below two to this power.
constexpr int TOP = 8;

#include "byte_tile.cuh"

// A lane's part of a row: a, and b where there is a sum.
template <bool ADDS> struct Part {
    Kept<W> a[PACKS], b[ADDS ? PACKS : 1];
    __device__ __forceinline__ void load(const real* from, const real* other, u64 at, u32 lane, u32 columns) {
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * 32 + lane) * W;
            if (column >= columns) continue;
            a[k].load(from + at + column);
            if constexpr (ADDS) b[k].load(other + at + column);
        }
    }
};

// The bits of the largest of a row of parameters, without signs; what is not a number comes last.
__device__ __forceinline__ u32 largest(const real* parameters, u32 lane, u32 columns) {
    u32 most = 0;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const u32 column = (k * 32 + lane) * W;
        if (column >= columns) continue;
        float values[W];
        load(parameters + column, values);
#pragma unroll
        for (int e = 0; e < W; e++) most = max(most, __float_as_uint(values[e]) & 0x7fffffffu);
    }
    return __reduce_max_sync(0xffffffffu, most);
}

// b may have a bias, which is added to it first. `root` is √C. `row_words` is a multiple of 32, at least C / 4.
template <bool ADDS, bool CENTRES>
__device__ __forceinline__ void norm(const real* __restrict__ a, const real* __restrict__ b,
                                     const real* __restrict__ bias, const real* __restrict__ gain,
                                     const real* __restrict__ shift, real* __restrict__ sum,
                                     float* __restrict__ means, float* __restrict__ rstds,
                                     float* __restrict__ unit, unsigned char* __restrict__ as_it_is,
                                     unsigned char* __restrict__ transposed, u32 rows, u32 columns, u32 row_words,
                                     float root, float eps) {
    extern __shared__ __align__(16) u32 shared[];
    const ByteTile<THREADS, ROWS> tile{shared, row_words};
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * ROWS;
    Part<ADDS> next;
    if (first + warp < rows) next.load(a, b, (u64)(first + warp) * columns, lane, columns);
    const float most_gain = __uint_as_float(largest(gain, lane, columns));
    const float most_shift = shift ? __uint_as_float(largest(shift, lane, columns)) : 0.0f;
    // Rounded as on any other device, for the same unit.
    const float scale = scale_of(__float_as_uint(__fadd_rn(__fmul_rn(root, most_gain), most_shift)), TOP);
    if (blockIdx.x == 0 && threadIdx.x == 0) *unit = 1.0f / scale;

    for (u32 own = warp; own < ROWS && first + own < rows; own += WARPS) {
        const u32 row = first + own;
        const u64 at = (u64)row * columns;
        Part<ADDS> part = next;
        if (own + WARPS < ROWS && row + WARPS < rows) next.load(a, b, at + (u64)WARPS * columns, lane, columns);
        float total = 0.0f;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * 32 + lane) * W;
            if (column >= columns) continue;
            float x[W];
            part.a[k].get(x);
            if constexpr (ADDS) {
                float other[W];
                part.b[k].get(other);
                if (bias) {
                    float biases[W];
                    load(bias + column, biases);
#pragma unroll
                    for (int e = 0; e < W; e++) other[e] += biases[e];
                }
#pragma unroll
                for (int e = 0; e < W; e++) x[e] += other[e];
                part.a[k].set(x);
                part.a[k].save(sum + at + column);
                part.a[k].get(x);
            }
#pragma unroll
            for (int e = 0; e < W; e++) total += x[e];
        }
        const float mean = CENTRES ? warp_sum(total) / (float)columns : 0.0f;
        float squares = 0.0f;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            if ((k * 32 + lane) * W >= columns) continue;
            float x[W];
            part.a[k].get(x);
#pragma unroll
            for (int e = 0; e < W; e++) squares += (x[e] - mean) * (x[e] - mean);
        }
        const float rstd = 1.0f / sqrtf(warp_sum(squares) / (float)columns + eps);
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const u32 column = (k * 32 + lane) * W;
            if (column >= columns) continue;
            float x[W], gains[W];
            part.a[k].get(x);
            load(gain + column, gains);
#pragma unroll
            for (int e = 0; e < W; e++) x[e] = (x[e] - mean) * rstd * gains[e];
            if (shift) {
                float shifts[W];
                load(shift + column, shifts);
#pragma unroll
                for (int e = 0; e < W; e++) x[e] += shifts[e];
            }
#pragma unroll
            for (int e = 0; e < W; e++) x[e] *= scale;
            const Bytes bytes = bytes_of<false>(x);
            if (as_it_is) *reinterpret_cast<Bytes*>(as_it_is + at + column) = bytes;
            tile.put(own, column, bytes);
        }
        if (lane == 0) {
            if constexpr (CENTRES) means[row] = mean;
            rstds[row] = rstd;
        }
    }
    if (transposed) tile.write_columns(transposed, first, rows, columns);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    quantise_layer_norm(const real* x, const real* gain, const real* shift, float* means, float* rstds, float* unit,
                        unsigned char* as_it_is, unsigned char* transposed, u32 rows, u32 columns, u32 row_words,
                        float root, float eps) {
    take_turn();
    norm<false, true>(x, nullptr, nullptr, gain, shift, nullptr, means, rstds, unit, as_it_is, transposed, rows,
                      columns, row_words, root, eps);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    quantise_add_layer_norm(const real* a, const real* b, const real* gain, const real* shift, real* sum, float* means,
                            float* rstds, float* unit, unsigned char* as_it_is, unsigned char* transposed, u32 rows,
                            u32 columns, u32 row_words, float root, float eps) {
    take_turn();
    norm<true, true>(a, b, nullptr, gain, shift, sum, means, rstds, unit, as_it_is, transposed, rows, columns,
                     row_words, root, eps);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    quantise_add_biased_layer_norm(const real* a, const real* b, const real* bias, const real* gain, const real* shift,
                                   real* sum, float* means, float* rstds, float* unit, unsigned char* as_it_is,
                                   unsigned char* transposed, u32 rows, u32 columns, u32 row_words, float root,
                                   float eps) {
    take_turn();
    norm<true, true>(a, b, bias, gain, shift, sum, means, rstds, unit, as_it_is, transposed, rows, columns, row_words,
                     root, eps);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    quantise_rms_norm(const real* x, const real* gain, float* rstds, float* unit, unsigned char* as_it_is,
                      unsigned char* transposed, u32 rows, u32 columns, u32 row_words, float root, float eps) {
    take_turn();
    norm<false, false>(x, nullptr, nullptr, gain, nullptr, nullptr, nullptr, rstds, unit, as_it_is, transposed, rows,
                       columns, row_words, root, eps);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    quantise_add_rms_norm(const real* a, const real* b, const real* gain, real* sum, float* rstds, float* unit,
                          unsigned char* as_it_is, unsigned char* transposed, u32 rows, u32 columns, u32 row_words,
                          float root, float eps) {
    take_turn();
    norm<true, false>(a, b, nullptr, gain, nullptr, sum, nullptr, rstds, unit, as_it_is, transposed, rows, columns,
                      row_words, root, eps);
}
