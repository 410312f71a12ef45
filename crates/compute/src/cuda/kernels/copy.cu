// Moves and conversions: columns of rows (Split, Concat), rows into a cache, state writes and casts between element
// types.
//
// Moves do not know element types: they are in units of 16, 8, 4 or 2 bytes, the largest that every address and row
// length is a multiple of. A thread owns one unit at a time; lengths and strides are counted in units.
#include "prelude.cuh"

constexpr u32 THREADS = 256;

template <typename Unit>
__device__ __forceinline__ void copy_columns(const Unit* from, Unit* to, u64 rows, u32 length, u64 from_stride,
                                             u64 to_stride) {
    const u64 n = rows * length, step = (u64)gridDim.x * THREADS;
#pragma unroll 2
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        u64 row;
        u32 column;
        locate(i, length, row, column);
        to[row * to_stride + column] = from[row * from_stride + column];
    }
}

// Columns of rows at a stride. Positions behind the cache's end are padding that nothing ever reads.
template <typename Unit>
__device__ __forceinline__ void append(const Unit* rows, const u32* places, Unit* cache, u32 n_samples,
                                       u32 n_positions, u32 n_rows, u32 capacity, u32 length, u32 stride) {
    const u64 n = (u64)n_samples * n_positions * length, step = (u64)gridDim.x * THREADS;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        u64 row, sample;
        u32 column, position;
        locate(i, length, row, column);
        locate(row, n_positions, sample, position);
        const u32 row_of_cache = places[2 * sample];
        const u64 place = (u64)places[2 * sample + 1] + position;
        if (row_of_cache < n_rows && place < capacity) {
            cache[((u64)row_of_cache * capacity + place) * length + column] = rows[row * stride + column];
        }
    }
}

// A move for each block of the grid's second dimension: the first positions of one row of a cache to another.
template <typename Unit>
__device__ __forceinline__ void copy_rows(const u32* moves, Unit* cache, u32 n_rows, u32 capacity, u32 length) {
    const u32 from = moves[3 * blockIdx.y], to = moves[3 * blockIdx.y + 1], wanted = moves[3 * blockIdx.y + 2];
    if (from >= n_rows || to >= n_rows) return;
    const u64 row = (u64)capacity * length, n = (u64)(wanted < capacity ? wanted : capacity) * length;
    const u64 step = (u64)gridDim.x * THREADS;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) cache[to * row + i] = cache[from * row + i];
}

#define MOVES(bytes, Unit)                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        copy_columns_##bytes(const Unit* from, Unit* __restrict__ to, u64 rows, u32 length,                            \
                             u64 from_stride, u64 to_stride) {                                                         \
        take_turn();                                                                                                   \
        copy_columns(from, to, rows, length, from_stride, to_stride);                                                  \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        cache_append_##bytes(const Unit* rows, const u32* places, Unit* __restrict__ cache,                            \
                             u32 n_samples, u32 n_positions, u32 n_rows, u32 capacity, u32 length, u32 stride) {       \
        take_turn();                                                                                                   \
        append(rows, places, cache, n_samples, n_positions, n_rows, capacity, length, stride);                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        cache_copy_##bytes(const u32* moves, Unit* cache, u32 n_rows, u32 capacity, u32 length) {                      \
        take_turn();                                                                                                   \
        copy_rows(moves, cache, n_rows, capacity, length);                                                             \
    }
MOVES(16, uint4)
MOVES(8, uint2)
MOVES(4, u32)
MOVES(2, u16)

// to = from, or to + from, rounded to what `to` stores.
template <typename From, typename To>
__device__ __forceinline__ void convert(const From* from, To* to, u64 n, u32 adds, u32 wide) {
    constexpr int W = sizeof(From) < sizeof(To) ? 16 / sizeof(From) : 16 / sizeof(To);
    const u64 packs = wide ? n / W : 0;
    const u64 first = (u64)blockIdx.x * THREADS + threadIdx.x, step = (u64)gridDim.x * THREADS;
#pragma unroll 2
    for (u64 pack = first; pack < packs; pack += step) {
        float x[W];
        load(from + pack * W, x);
        if (adds) {
            float before[W];
            load((const To*)to + pack * W, before);
#pragma unroll
            for (int e = 0; e < W; e++) x[e] += before[e];
        }
        store(to + pack * W, x);
    }
    for (u64 e = packs * W + first; e < n; e += step) {
        const float x = to_float(from[e]);
        to[e] = from_float<To>(adds ? to_float(to[e]) + x : x);
    }
}

#define CONVERSION(from_name, From, to_name, To)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        convert_##from_name##_##to_name(const From* from, To* __restrict__ to, u64 n, u32 adds,                        \
                                        u32 wide) {                                                                    \
        take_turn();                                                                                                   \
        convert(from, to, n, adds, wide);                                                                              \
    }
CONVERSION(f32, float, f32, float)
CONVERSION(f32, float, bf16, bf16)
CONVERSION(f32, float, f16, f16)
CONVERSION(bf16, bf16, f32, float)
CONVERSION(bf16, bf16, bf16, bf16)
CONVERSION(bf16, bf16, f16, f16)
CONVERSION(f16, f16, f32, float)
CONVERSION(f16, f16, bf16, bf16)
CONVERSION(f16, f16, f16, f16)
