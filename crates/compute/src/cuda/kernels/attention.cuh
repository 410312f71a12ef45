// What all attention kernels share: the rule of which keys a query sees, and where heads lie. B samples, T queries, S
// keys, H query heads, Hkv key heads, D head size; a head is padded to HEAD elements inside a kernel.
#pragma once
#include "prelude.cuh"

#ifndef HEAD
#define HEAD 64
#endif
// Whether rows of heads begin at multiples of 16 bytes, so that they can be moved in pieces of 16 bytes.
#ifndef WIDE
#define WIDE 1
#endif

#define MINUS_INFINITY __int_as_float(0xff800000)
constexpr float LOG2_E = 1.4426950408889634f;
// Queries whose ranges are summed up together where documents have borders.
constexpr int RANGE_BLOCK = 64;

__device__ __forceinline__ int least(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int most(int a, int b) { return a > b ? a : b; }

// Keys first..end.
struct Range { int first, end; };

// The ranges of several queries: the least and the most of their firsts and of their ends.
struct Spread { int least_first, most_first, least_end, most_end; };

// The constants of the rule. Without a window `window` is larger than any position.
struct Sight {
    int keys, window, start;
    bool causal;
    // Where samples have borders: the range of every query, and the spread of every RANGE_BLOCK of them.
    const int2* ranges;
    const int4* spreads;
};

// The rule of op/attention.rs. `t` is below the number of queries.
__device__ __forceinline__ Range seen_by(const Sight& sight, int t) {
    Range seen;
    if (sight.ranges) {
        int2 range = sight.ranges[t];
        seen.first = range.x;
        seen.end = range.y;
        return seen;
    }
    int position = sight.start + t;
    seen.end = sight.causal ? least(position + 1, sight.keys) : sight.keys;
    seen.end = least(seen.end, position + sight.window);
    seen.first = least(most(position + 1 - sight.window, 0), seen.end - 1);
    return seen;
}

// What queries t..until see; a bound on it where there are borders. t < until.
__device__ __forceinline__ Spread seen_by_all(const Sight& sight, int t, int until) {
    Spread all;
    if (sight.ranges) {
        int4 spread = sight.spreads[t / RANGE_BLOCK];
        for (int block = t / RANGE_BLOCK + 1; block <= (until - 1) / RANGE_BLOCK; block++) {
            int4 other = sight.spreads[block];
            spread.x = least(spread.x, other.x);
            spread.y = most(spread.y, other.y);
            spread.z = least(spread.z, other.z);
            spread.w = most(spread.w, other.w);
        }
        all.least_first = spread.x;
        all.most_first = spread.y;
        all.least_end = spread.z;
        all.most_end = spread.w;
        return all;
    }
    // Without borders both ends of the range only grow.
    Range least_seen = seen_by(sight, t), most_seen = seen_by(sight, until - 1);
    all.least_first = least_seen.first;
    all.most_first = most_seen.first;
    all.least_end = least_seen.end;
    all.most_end = most_seen.end;
    return all;
}

// The rule for sample b. A position is at most a quarter of the range, so that sums of two stay inside it.
__device__ __forceinline__ Sight sight_of(u32 b, u32 queries, u32 keys, u32 window, u32 causal, const u32* places,
                                          const int2* ranges, const int4* spreads) {
    Sight sight;
    sight.keys = (int)keys;
    sight.window = (int)window;
    sight.start = places ? least((int)(places[2 * b + 1] & 0x7fffffffu), 0x1fffffff) : 0;
    sight.causal = causal != 0;
    sight.ranges = ranges ? ranges + (u64)b * queries : nullptr;
    sight.spreads = ranges ? spreads + (u64)b * ((queries + RANGE_BLOCK - 1) / RANGE_BLOCK) : nullptr;
    return sight;
}

// The row of keys and values that sample b reads: its own, or one of a cache of `rows`.
__device__ __forceinline__ u64 key_row(u32 b, const u32* places, u32 rows) {
    if (!places) return b;
    const u32 row = places[2 * b];
    return row < rows ? row : rows - 1;
}

__device__ __forceinline__ float four_lanes_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float four_lanes_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// ---- Kernels that come before ------------------------------------------------------------------------------------

// The ranges of queries where samples have borders, and the spreads of blocks of them. A block per (RANGE_BLOCK
// queries, sample), a thread per query.
extern "C" __global__ void __launch_bounds__(RANGE_BLOCK)
attention_ranges(const u32* borders, int2* ranges, int4* spreads, u32 queries, u32 causal, u32 window) {
    __shared__ u32 own[RANGE_BLOCK];
    __shared__ int firsts[RANGE_BLOCK], ends[RANGE_BLOCK], document_end;
    int count = (int)queries, begin = (int)blockIdx.x * RANGE_BLOCK, t = begin + (int)threadIdx.x;
    int until = least(begin + RANGE_BLOCK, count);
    borders += (u64)blockIdx.y * queries;
    bool is_there = t < count;
    own[threadIdx.x] = is_there ? borders[t] : 0;
    if (threadIdx.x == 0) document_end = count;
    __syncthreads();
    // Where the document of the block's last query ends, found by all threads together.
    u32 border = own[until - 1 - begin];
    if (!causal) {
        for (int other = until; other < count; other += RANGE_BLOCK) {
            int at = other + (int)threadIdx.x;
            bool is_past = at < count && borders[at] != border;
            if (is_past) atomicMin(&document_end, at);
            if (__syncthreads_or(is_past)) break;
        }
        __syncthreads();
    }
    if (is_there) {
        int first = (int)(own[threadIdx.x] & 0x7fffffffu), end = t + 1;
        if (!causal) {
            while (end < until && own[end - begin] == own[threadIdx.x]) end++;
            if (end == until) end = own[threadIdx.x] == border ? document_end : until;
        }
        end = least(end, t + (int)window);
        first = least(most(first, t + 1 - (int)window), end - 1);
        firsts[threadIdx.x] = first;
        ends[threadIdx.x] = end;
        ranges[(u64)blockIdx.y * queries + t] = make_int2(first, end);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int4 spread = make_int4(firsts[0], firsts[0], ends[0], ends[0]);
        for (int i = 1; i < until - begin; i++) {
            spread.x = least(spread.x, firsts[i]);
            spread.y = most(spread.y, firsts[i]);
            spread.z = least(spread.z, ends[i]);
            spread.w = most(spread.w, ends[i]);
        }
        spreads[blockIdx.y * gridDim.x + blockIdx.x] = spread;
    }
}

// delta [B,H,T] = Σ d_out·out over a head. Eight lanes to a row, 32 queries to a block, a block per (32 queries, head,
// sample).
extern "C" __global__ void __launch_bounds__(256)
attention_delta(const real* d_out, const real* out, float* delta, u32 queries, u32 heads, u32 size) {
    u32 query = blockIdx.x * 32 + threadIdx.x / 8, b = blockIdx.z, h = blockIdx.y;
    u64 at = (((u64)b * queries + query) * heads + h) * size;
    float sum = 0.0f;
    if (query < queries) {
#if WIDE
        constexpr int PIECE = Wide<real>::N;
        for (u32 i = threadIdx.x % 8 * PIECE; i < size; i += 8 * PIECE) {
            Wide<real> a = load_wide(d_out + at + i), c = load_wide(out + at + i);
#pragma unroll
            for (int j = 0; j < PIECE; j++) sum += to_float(a.at[j]) * to_float(c.at[j]);
        }
#else
        for (u32 i = threadIdx.x % 8; i < size; i += 8) sum += to_float(d_out[at + i]) * to_float(out[at + i]);
#endif
    }
    sum = four_lanes_sum(sum);
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    if (threadIdx.x % 8 == 0 && query < queries) delta[((u64)b * heads + h) * queries + query] = sum;
}
