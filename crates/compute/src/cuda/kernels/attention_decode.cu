// Attention of one new query per sample over a cache. A block per (sample, key head, GROUP of its query heads) reads
// keys and values once, 16 bytes of a row to a lane; lanes that share a row are a team, and teams take keys in turn. The
// newest key and value may still lie beside the query: then they go into the cache on the way.
#include "attention.cuh"

// Query heads of a block.
#ifndef GROUP
#define GROUP 1
#endif
// What operands of products are rounded to where elements are f32: 0 f32, 1 bf16, 2 f16.
#ifndef PRODUCTS
#define PRODUCTS 0
#endif

constexpr int WARPS = 8, THREADS = 32 * WARPS;
// A lane holds eight elements of a row.
constexpr int SHARE = 8, TEAM = HEAD / SHARE, TEAMS = THREADS / TEAM;
// Keys of a team that are on their way at a time.
constexpr int FLIGHT = 4;

__device__ __forceinline__ float factor(float x) {
#if REAL != 0
    return to_float(from_float<real>(x));
#elif PRODUCTS == 1
    return to_float(from_float<bf16>(x));
#elif PRODUCTS == 2
    return to_float(from_float<f16>(x));
#else
    return x;
#endif
}

struct Share { real at[SHARE]; };

// The lane's share of a row, zeroes where there is none.
__device__ __forceinline__ Share load_share(const real* row, bool there, int column, int size) {
    Share share;
#if WIDE
    constexpr int PIECE = Wide<real>::N;
#pragma unroll
    for (int piece = 0; piece < SHARE / PIECE; piece++) {
        Wide<real> wide;
        bool is_inside = there && column + piece * PIECE < size;
        if (is_inside) wide = load_wide(row + column + piece * PIECE);
#pragma unroll
        for (int i = 0; i < PIECE; i++) share.at[piece * PIECE + i] = is_inside ? wide.at[i] : from_float<real>(0.0f);
    }
#else
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        share.at[i] = there && column + i < size ? row[column + i] : from_float<real>(0.0f);
    }
#endif
    return share;
}

__device__ __forceinline__ float shrink_to(float before, float now) {
    return before == MINUS_INFINITY ? 0.0f : expf(before - now);
}

extern "C" __global__ void __launch_bounds__(THREADS)
attention_decode(const real* q, real* k, real* v, const real* new_k, const real* new_v, real* out,
                 float* log_sum_exp, const u32* places,
                 u32 rows, u32 keys, u32 heads, u32 group, u32 size, u32 q_stride, u32 kv_stride, u32 window, float scale) {
    __shared__ float shared_sums[WARPS][GROUP][HEAD], shared_max[WARPS][GROUP], shared_total[WARPS][GROUP];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, team = threadIdx.x / TEAM;
    int column = threadIdx.x % TEAM * SHARE;
    u32 b = blockIdx.z, kv_head = blockIdx.y;
    u32 first_head = kv_head * group + blockIdx.x * GROUP, end_head = (kv_head + 1) * group;
    Range seen = seen_by(sight_of(b, 1, keys, window, 1, places, nullptr, nullptr), 0);

    const u64 row = key_row(b, places, rows);
    // The newest key and value, where they come beside the query: read from there, and taken into the cache by one block.
    int newest = -1;
    if (new_k) {
        const u32 start = places[2 * b + 1];
        newest = start < keys ? (int)start : -1;
        new_k += (u64)b * q_stride + kv_head * size;
        new_v += (u64)b * q_stride + kv_head * size;
        if (newest >= 0 && blockIdx.x == 0 && places[2 * b] < rows) {
            const u64 to = (row * keys + start) * kv_stride + kv_head * size;
            for (u32 column = threadIdx.x; column < size; column += THREADS) {
                k[to + column] = new_k[column];
                v[to + column] = new_v[column];
            }
        }
    }
    k += row * keys * kv_stride + kv_head * size;
    v += row * keys * kv_stride + kv_head * size;
    float query[GROUP][SHARE], sums[GROUP][SHARE], max[GROUP], total[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        bool there = first_head + g < end_head;
        Share share = load_share(q + (u64)b * q_stride + (there ? first_head + g : 0) * size, there, column, size);
#pragma unroll
        for (int i = 0; i < SHARE; i++) {
            query[g][i] = factor(to_float(share.at[i]));
            sums[g][i] = 0.0f;
        }
        max[g] = MINUS_INFINITY;
        total[g] = 0.0f;
    }

    for (int base = seen.first; base < seen.end; base += TEAMS * FLIGHT) {
        Share k_shares[FLIGHT], v_shares[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            int key = base + i * TEAMS + team;
            bool there = key < seen.end;
            u64 at = there ? (u64)key * kv_stride : 0;
            k_shares[i] = load_share(key == newest ? new_k : k + at, there, column, size);
            v_shares[i] = load_share(key == newest ? new_v : v + at, there, column, size);
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float scores[FLIGHT], now = max[g];
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) {
                float score = 0.0f;
#pragma unroll
                for (int j = 0; j < SHARE; j++) score = fmaf(query[g][j], factor(to_float(k_shares[i].at[j])), score);
#pragma unroll
                for (int distance = TEAM / 2; distance > 0; distance /= 2) {
                    score += __shfl_xor_sync(0xffffffffu, score, distance);
                }
                scores[i] = base + i * TEAMS + team < seen.end ? score * scale : MINUS_INFINITY;
                now = fmaxf(now, scores[i]);
            }
            float shrink = shrink_to(max[g], now), offset = now == MINUS_INFINITY ? 0.0f : now;
            max[g] = now;
            total[g] *= shrink;
#pragma unroll
            for (int j = 0; j < SHARE; j++) sums[g][j] *= shrink;
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) {
                float numerator = expf(scores[i] - offset), rounded = factor(numerator);
                total[g] += numerator;
#pragma unroll
                for (int j = 0; j < SHARE; j++) {
                    sums[g][j] = fmaf(rounded, factor(to_float(v_shares[i].at[j])), sums[g][j]);
                }
            }
        }
    }

    // Teams of a warp, then warps, always in the same order.
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
#pragma unroll
        for (int distance = TEAM; distance < 32; distance *= 2) {
            float now = fmaxf(max[g], __shfl_xor_sync(0xffffffffu, max[g], distance));
            float shrink = shrink_to(max[g], now);
            max[g] = now;
            total[g] *= shrink;
            total[g] += __shfl_xor_sync(0xffffffffu, total[g], distance);
#pragma unroll
            for (int j = 0; j < SHARE; j++) {
                sums[g][j] *= shrink;
                sums[g][j] += __shfl_xor_sync(0xffffffffu, sums[g][j], distance);
            }
        }
        if (lane < TEAM) {
#pragma unroll
            for (int j = 0; j < SHARE; j++) shared_sums[warp][g][column + j] = sums[g][j];
            shared_max[warp][g] = max[g];
            shared_total[warp][g] = total[g];
        }
    }
    __syncthreads();
    for (int place = threadIdx.x; place < GROUP * HEAD; place += THREADS) {
        int g = place / HEAD, at = place % HEAD;
        if (first_head + g >= end_head || at >= (int)size) continue;
        float now = shared_max[0][g], all = 0.0f, sum = 0.0f;
#pragma unroll
        for (int other = 1; other < WARPS; other++) now = fmaxf(now, shared_max[other][g]);
#pragma unroll
        for (int other = 0; other < WARPS; other++) {
            float shrink = shrink_to(shared_max[other][g], now);
            all += shared_total[other][g] * shrink;
            sum += shared_sums[other][g][at] * shrink;
        }
        out[((u64)b * heads + first_head + g) * size + at] = from_float<real>(sum / all);
        if (at == 0) log_sum_exp[(u64)b * heads + first_head + g] = now + logf(all);
    }
}
