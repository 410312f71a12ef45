// Numbers of eight bits from those of a tensor, or from what is computed of one on the way, as they stand and transposed.
//
// First the largest number is looked for in a part of the rows: a block of `largest_*` leaves one of PARTIALS. Then a block
// of `e4m3_*` or `e5m2_*` brings a tile of 128 × 128 numbers through registers: a thread owns 8 neighbouring columns of 4 or
// 8 rows, turns their bytes round in registers and leaves words of 4 rows in shared memory, from where columns are
// written. Rows and columns are multiples of 16. Sums of columns are taken of the numbers before they are rounded.
//
// `largest_weights` and `e4m3_weights` do that for many matrices at a time, which a table lists.
#include "prelude.cuh"
#include "eight_bits.cuh"
#include "gelu.cuh"

constexpr u32 THREADS = 512, TILE = 128, EACH = 8;
// Like PARTIALS for each of many matrices: a lane reads one.
constexpr u32 WEIGHT_PARTIALS = 32;

enum Source { STORED, GELU, GELU_GRAD, SLOPE };
// Whether it is computed from two tensors.
template <Source SOURCE> constexpr bool IS_PAIR = SOURCE == GELU_GRAD || SOURCE == SLOPE;

// Rows of a thread: more of them keep more on the way where much is calculated. Launchers know how many threads that makes.
template <Source SOURCE> constexpr int ROWS_EACH = SOURCE == STORED ? 4 : 8;
template <Source SOURCE> constexpr u32 TILE_THREADS = 16 * TILE / ROWS_EACH<SOURCE>;
// Blocks of a multiprocessor: as many as registers allow.
template <Source SOURCE> constexpr int BLOCKS = SOURCE == GELU ? 4 : 3;

// Eight neighbouring numbers as they are stored.
struct Eight {
    uint4 raw[sizeof(real) / 2];
    __device__ __forceinline__ void load(const real* from) {
#pragma unroll
        for (int i = 0; i < sizeof(real) / 2; i++) raw[i] = reinterpret_cast<const uint4*>(from)[i];
    }
    __device__ __forceinline__ void get(float (&to)[EACH]) const {
#pragma unroll
        for (int i = 0; i < sizeof(real) / 2; i++) widen<real>(raw[i], to + i * WIDTH);
    }
};

// Eight numbers of what is quantised.
template <Source SOURCE> struct Numbers {
    Eight first, second;
    __device__ __forceinline__ void load(const real* from, const real* other) {
        first.load(from);
        if constexpr (IS_PAIR<SOURCE>) second.load(other);
    }
    __device__ __forceinline__ void get(float (&x)[EACH]) const {
        first.get(x);
        if constexpr (SOURCE == GELU) {
#pragma unroll
            for (int e = 0; e < EACH; e++) x[e] = gelu_of(x[e]);
        }
        if constexpr (IS_PAIR<SOURCE>) {
            float d[EACH];
            second.get(d);
#pragma unroll
            for (int e = 0; e < EACH; e++) x[e] = d[e] * (SOURCE == SLOPE ? x[e] : gelu_slope(x[e]));
        }
    }
};

// What one of PARTS blocks does: it looks at rows that lie so many rows apart in each tensor. The bits of numbers without their signs are
// in the order of the numbers, and what is not a number comes last.
template <Source SOURCE, u32 PARTS>
__device__ __forceinline__ void largest(const real* first, const real* second, u32* partials, u32 rows, u32 columns,
                                        u32 stride, u32 second_stride, u32 part) {
    const u32 packs = columns / EACH, all = rows * packs;
    u32 most = 0;
#pragma unroll 4
    for (u32 i = part * THREADS + threadIdx.x; i < all; i += PARTS * THREADS) {
        Numbers<SOURCE> numbers;
        const u64 row = i / packs, column = i % packs * EACH;
        numbers.load(first + row * stride * columns + column, second + row * second_stride * columns + column);
        float x[EACH];
        numbers.get(x);
#pragma unroll
        for (int e = 0; e < EACH; e++) most = max(most, __float_as_uint(x[e]) & 0x7fffffffu);
    }
    leave_largest<THREADS>(most, partials + part);
}

// Where shared memory has the words of rows 8·pair … 8·pair + 7 of a column. Pairs are exchanged by the column's pack, so
// that neither the threads that write (one pair of all packs) nor those that read (all pairs of one column) meet in a bank.
__device__ __forceinline__ u32 place(u32 column, u32 pair) { return column * (TILE / 4) + (pair ^ column / EACH) * 2; }

// Brings the tile through that is so many tiles from the left and from the top.
template <Source SOURCE, bool E5M2, u32 PARTS>
__device__ __forceinline__ void quantise(const real* first, const real* second, const u32* partials, float* unit,
                                         unsigned char* as_it_is, unsigned char* transposed, float* sums, u32 rows,
                                         u32 columns, int top, u32 across, u32 down) {
    constexpr int EACH_ROWS = ROWS_EACH<SOURCE>, FOURS = EACH_ROWS / 4;
    constexpr u32 GROUPS = TILE / EACH_ROWS;
    __shared__ __align__(8) u32 tile[TILE * TILE / 4];
    const u32 pack = threadIdx.x % 16, group = threadIdx.x / 16;
    const u32 column = across * TILE + pack * EACH, first_row = down * TILE;
    Numbers<SOURCE> numbers[EACH_ROWS];
#pragma unroll
    for (int r = 0; r < EACH_ROWS; r++) {
        const u32 row = first_row + group * EACH_ROWS + r;
        const u64 at = (u64)row * columns + column;
        if (column < columns && row < rows) numbers[r].load(first + at, second + at);
    }
    // All of this was there before the kernel that looks for the largest number began, which is the one before.
    take_turn();
    const float scale = scale_from<PARTS>(partials, top);
    if (across == 0 && down == 0 && threadIdx.x == 0) *unit = 1.0f / scale;

    float total[EACH] = {};
#pragma unroll
    for (int four = 0; four < FOURS; four++) {
        u32 low[4] = {}, high[4] = {};
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const u32 row = first_row + group * EACH_ROWS + four * 4 + r;
            if (column >= columns || row >= rows) continue;
            float x[EACH];
            numbers[four * 4 + r].get(x);
#pragma unroll
            for (int e = 0; e < EACH; e++) total[e] += x[e];
#pragma unroll
            for (int e = 0; e < EACH; e++) x[e] *= scale;
            low[r] = two_bytes<E5M2>(x[0], x[1]) | two_bytes<E5M2>(x[2], x[3]) << 16;
            high[r] = two_bytes<E5M2>(x[4], x[5]) | two_bytes<E5M2>(x[6], x[7]) << 16;
            if (as_it_is) {
                *reinterpret_cast<uint2*>(as_it_is + (u64)row * columns + column) = make_uint2(low[r], high[r]);
            }
        }
        turn(low);
        turn(high);
        const u32 word = group * FOURS + four;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            tile[place(pack * EACH + c, word / 2) + word % 2] = low[c];
            tile[place(pack * EACH + 4 + c, word / 2) + word % 2] = high[c];
        }
    }
    __syncthreads();
    if (transposed) {
#pragma unroll
        for (int i = 0; i < TILE / GROUPS; i++) {
            const u32 own = GROUPS * i + group, to = across * TILE + own, row = first_row + pack * 8;
            const uint2 words = *reinterpret_cast<const uint2*>(&tile[place(own, pack)]);
            if (to < columns && row < rows) *reinterpret_cast<uint2*>(transposed + (u64)to * rows + row) = words;
        }
    }
    if (sums) {
        // The groups of rows, added in order.
        float* parts = reinterpret_cast<float*>(tile);
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EACH; e++) parts[group * TILE + pack * EACH + e] = total[e];
        __syncthreads();
        const u32 own = threadIdx.x, to = across * TILE + own;
        if (own < TILE && to < columns) {
            float sum = 0.0f;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) sum += parts[g * TILE + own];
            sums[(u64)down * columns + to] = sum;
        }
    }
}

#define KERNELS(name, SOURCE)                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        largest_##name(const real* first, const real* second, u32* partials, u32 rows, u32 columns, u32 stride,        \
                       u32 second_stride) {                                                                            \
        take_turn();                                                                                                   \
        largest<SOURCE, PARTIALS>(first, second, partials, rows, columns, stride, second_stride, blockIdx.x);          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS<SOURCE>, BLOCKS<SOURCE>)                                 \
        e4m3_##name(const real* first, const real* second, const u32* partials, float* unit, unsigned char* as_it_is,  \
                    unsigned char* transposed, float* sums, u32 rows, u32 columns) {                                   \
        quantise<SOURCE, false, PARTIALS>(first, second, partials, unit, as_it_is, transposed, sums, rows, columns,    \
                                          SAMPLED_TOP<false>, blockIdx.x, blockIdx.y);                                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS<SOURCE>, BLOCKS<SOURCE>)                                 \
        e5m2_##name(const real* first, const real* second, const u32* partials, float* unit, unsigned char* as_it_is,  \
                    unsigned char* transposed, float* sums, u32 rows, u32 columns) {                                   \
        quantise<SOURCE, true, PARTIALS>(first, second, partials, unit, as_it_is, transposed, sums, rows, columns,     \
                                         SAMPLED_TOP<true>, blockIdx.x, blockIdx.y);                                   \
    }

KERNELS(stored, STORED)
KERNELS(gelu, GELU)
KERNELS(gelu_grad, GELU_GRAD)
KERNELS(slope, SLOPE)

// Stored numbers whose unit follows from the largest of others, which comes below what the caller says.
extern "C" __global__ void __launch_bounds__(TILE_THREADS<STORED>)
    e5m2_bounded(const real* first, const real* second, const u32* partials, float* unit, unsigned char* as_it_is,
                 unsigned char* transposed, float* sums, u32 rows, u32 columns, u32 top) {
    quantise<STORED, true, PARTIALS>(first, second, partials, unit, as_it_is, transposed, sums, rows, columns, top,
                                     blockIdx.x, blockIdx.y);
}

// One of many weights: its numbers, where its unit and its copies go, every how many rows one is looked at, and how many tiles those
// before it take.
struct Weight {
    const real* numbers;
    float* unit;
    unsigned char *as_it_is, *transposed;
    u32 rows, columns, stride, first_tile;
};

// Whose tile it is: that of the last weight that does not begin behind it. The lanes of a warp look through the list together.
__device__ __forceinline__ u32 weight_of(const Weight* weights, u32 count, u32 tile) {
    u32 begun = 0;
    for (u32 i = threadIdx.x % 32; i - threadIdx.x % 32 < count; i += 32) {
        begun += __popc(__ballot_sync(0xffffffffu, i < count && weights[i].first_tile <= tile));
    }
    return begun - 1;
}

extern "C" __global__ void __launch_bounds__(THREADS) largest_weights(const Weight* weights, u32* partials) {
    take_turn();
    const u32 index = blockIdx.x / WEIGHT_PARTIALS, part = blockIdx.x % WEIGHT_PARTIALS;
    const Weight& weight = weights[index];
    const u32 rows = (weight.rows + weight.stride - 1) / weight.stride;
    largest<STORED, WEIGHT_PARTIALS>(weight.numbers, nullptr, partials + index * WEIGHT_PARTIALS, rows, weight.columns,
                                     weight.stride, weight.stride, part);
}

__device__ __forceinline__ void quantise_weights(const Weight* weights, u32 count, const u32* partials) {
    const u32 index = weight_of(weights, count, blockIdx.x);
    const Weight weight = weights[index];
    const u32 tile = blockIdx.x - weight.first_tile, tiles_across = (weight.columns + TILE - 1) / TILE;
    quantise<STORED, false, WEIGHT_PARTIALS>(weight.numbers, nullptr, partials + index * WEIGHT_PARTIALS, weight.unit,
                                             weight.as_it_is, weight.transposed, nullptr, weight.rows, weight.columns,
                                             SAMPLED_TOP<false>, tile % tiles_across, tile / tiles_across);
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS<STORED>, BLOCKS<STORED>)
    e4m3_weights(const Weight* weights, u32 count, const u32* partials) {
    quantise_weights(weights, count, partials);
}
