// Attention of one new query per sample over a cache. A block per (sample, key head, GROUP of its query heads) reads
// keys and values once, 16 bytes of a row to a lane; lanes that share a row are a team, and teams take keys in turn. While some
// keys are worked on the next are on their way; the first are before the kernel before has ended. The newest key and value may still
// lie beside the query: then they go into the cache on the way.
#include "attention.cuh"

// Query heads of a block.
#ifndef GROUP
#define GROUP 1
#endif
// Warps of a block: with few keys, fewer of them have less to add up.
#ifndef WARPS
#define WARPS 8
#endif
// What operands of products are rounded to where elements are f32: 0 f32, 1 bf16, 2 f16.
#ifndef PRODUCTS
#define PRODUCTS 0
#endif

constexpr int THREADS = 32 * WARPS;
// A lane holds eight elements of a row.
constexpr int SHARE = 8, SHARE_PACKS = SHARE / WIDTH, TEAM = HEAD / SHARE, TEAMS = THREADS / TEAM;
// Keys of a team that are on their way at a time, as many as registers hold.
constexpr int FLIGHT = GROUP * HEAD <= 256 ? 4 : 2;
// Blocks that a multiprocessor has room for: as many heads of samples as there are begin at once.
constexpr int AT_ONCE = GROUP * HEAD == 64 && REAL != 0 && WIDE ? 768 / THREADS : 1;

// As products take it: other storage than f32 is rounded already.
__device__ __forceinline__ float factor(float x) {
#if REAL == 0 && PRODUCTS == 1
    return to_float(from_float<bf16>(x));
#elif REAL == 0 && PRODUCTS == 2
    return to_float(from_float<f16>(x));
#else
    return x;
#endif
}
__device__ __forceinline__ float rounded(float x) {
#if REAL == 0
    return factor(x);
#else
    return to_float(from_float<real>(x));
#endif
}

struct Share { uint4 packs[SHARE_PACKS]; };

// The lane's share of a row, zeroes where there is none.
__device__ __forceinline__ Share load_share(const real* row, bool there, int column, int size) {
    Share share;
#pragma unroll
    for (int i = 0; i < SHARE_PACKS; i++) {
        const int first = column + i * WIDTH;
#if WIDE
        share.packs[i] = make_uint4(0, 0, 0, 0);
        if (there && first < size) share.packs[i] = *reinterpret_cast<const uint4*>(row + first);
#else
        union { uint4 raw; real at[WIDTH]; } both;
#pragma unroll
        for (int e = 0; e < WIDTH; e++) both.at[e] = there && first + e < size ? row[first + e] : from_float<real>(0.0f);
        share.packs[i] = both.raw;
#endif
    }
    return share;
}

__device__ __forceinline__ void factors(const Share& share, float (&to)[SHARE]) {
#pragma unroll
    for (int i = 0; i < SHARE_PACKS; i++) widen<real>(share.packs[i], to + i * WIDTH);
#pragma unroll
    for (int e = 0; e < SHARE; e++) to[e] = factor(to[e]);
}

__device__ __forceinline__ float shrink_to(float before, float now) {
    return before == MINUS_INFINITY ? 0.0f : exp_real(before - now);
}

// Keys or values of a team on their way.
struct Flight {
    Share shares[FLIGHT];
    __device__ __forceinline__ void load(const real* from, u32 stride, int first, int end, int column, int size) {
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const int key = first + i * TEAMS;
            const bool there = key < end;
            shares[i] = load_share(from + (there ? (u64)key * stride : 0), there, column, size);
        }
    }
};

// A query head, and what it has gathered so far.
struct Query {
    float query[SHARE], sums[SHARE], max, total;
    __device__ __forceinline__ void begin(const Share& share) {
        factors(share, query);
#pragma unroll
        for (int e = 0; e < SHARE; e++) sums[e] = 0.0f;
        max = MINUS_INFINITY;
        total = 0.0f;
    }
    // Given to all lanes of the team.
    __device__ __forceinline__ float score(const Share& key, float scale) const {
        float own[SHARE], score = 0.0f;
        factors(key, own);
#pragma unroll
        for (int e = 0; e < SHARE; e++) score = fmaf(query[e], own[e], score);
#pragma unroll
        for (int distance = TEAM / 2; distance > 0; distance /= 2) score += __shfl_xor_sync(0xffffffffu, score, distance);
        return score * scale;
    }
    // The one key so far.
    __device__ __forceinline__ void take_first(float score, const Share& value) {
        factors(value, sums);
        max = score;
        total = 1.0f;
    }
    __device__ __forceinline__ void take(const float (&scores)[FLIGHT], const Flight& values) {
        float now = max;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) now = fmaxf(now, scores[i]);
        const float shrink = shrink_to(max, now), offset = now == MINUS_INFINITY ? 0.0f : now;
        max = now;
        total *= shrink;
#pragma unroll
        for (int e = 0; e < SHARE; e++) sums[e] *= shrink;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const float numerator = exp_real(scores[i] - offset), weight = rounded(numerator);
            float own[SHARE];
            factors(values.shares[i], own);
            total += numerator;
#pragma unroll
            for (int e = 0; e < SHARE; e++) sums[e] = fmaf(weight, own[e], sums[e]);
        }
    }
    // Adds up the teams of the warp, always in the same order.
    __device__ __forceinline__ void join_teams() {
#pragma unroll
        for (int distance = TEAM; distance < 32; distance *= 2) {
            const float now = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, distance));
            const float shrink = shrink_to(max, now);
            max = now;
            total *= shrink;
            total += __shfl_xor_sync(0xffffffffu, total, distance);
#pragma unroll
            for (int e = 0; e < SHARE; e++) {
                sums[e] *= shrink;
                sums[e] += __shfl_xor_sync(0xffffffffu, sums[e], distance);
            }
        }
    }
};

// Where places and caches are settled they are read before the kernel before has ended.
extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
attention_decode(const real* q, real* k, real* v, const real* new_k, const real* new_v, real* out,
                 float* log_sum_exp, const u32* places,
                 u32 rows, u32 keys, u32 heads, u32 group, u32 size, u32 q_stride, u32 kv_stride, u32 window, float scale,
                 u32 is_settled) {
    constexpr int STRIDE = TEAMS * FLIGHT;
    __shared__ float shared_sums[WARPS][GROUP][HEAD], shared_max[WARPS][GROUP], shared_total[WARPS][GROUP];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, team = threadIdx.x / TEAM;
    const int column = threadIdx.x % TEAM * SHARE;
    const u32 b = blockIdx.z, kv_head = blockIdx.y;
    const u32 first_head = kv_head * group + blockIdx.x * GROUP, end_head = (kv_head + 1) * group;
    if (!is_settled) wait_for_kernel_before();
    const Range seen = seen_by(sight_of(b, 1, keys, window, 1, places, nullptr, nullptr), 0);
    const u64 row = key_row(b, places, rows);
    // Where the newest key and value come beside the query they are not in the cache yet. They are the last that the query sees.
    const bool has_newest = new_k && places[2 * b + 1] < keys;
    const int newest = seen.end - 1, end = has_newest ? newest : seen.end;
    k += row * keys * kv_stride + kv_head * size;
    v += row * keys * kv_stride + kv_head * size;
    Flight key_flight, value_flight;
    key_flight.load(k, kv_stride, seen.first + team, end, column, size);
    value_flight.load(v, kv_stride, seen.first + team, end, column, size);
    if (is_settled) wait_for_kernel_before();
    let_next_begin();

    Query queries[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        const bool there = first_head + g < end_head;
        queries[g].begin(load_share(q + (u64)b * q_stride + (there ? first_head + g : 0) * size, there, column, size));
    }
    if (has_newest && warp == 0) {
        const u64 from = (u64)b * q_stride + kv_head * size;
        const Share key = load_share(new_k + from, true, column, size), value = load_share(new_v + from, true, column, size);
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            const float score = queries[g].score(key, scale);
            if (team == 0) queries[g].take_first(score, value);
        }
        // One block takes them into the cache.
        if (blockIdx.x == 0 && places[2 * b] < rows) {
            for (u32 i = lane; i < size; i += 32) {
                k[(u64)newest * kv_stride + i] = new_k[from + i];
                v[(u64)newest * kv_stride + i] = new_v[from + i];
            }
        }
    }
    for (int first = seen.first; first < end; first += STRIDE) {
        float scores[GROUP][FLIGHT];
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) {
                const float score = queries[g].score(key_flight.shares[i], scale);
                scores[g][i] = first + team + i * TEAMS < end ? score : MINUS_INFINITY;
            }
        }
        if (first + STRIDE < end) key_flight.load(k, kv_stride, first + STRIDE + team, end, column, size);
#pragma unroll
        for (int g = 0; g < GROUP; g++) queries[g].take(scores[g], value_flight);
        if (first + STRIDE < end) value_flight.load(v, kv_stride, first + STRIDE + team, end, column, size);
    }

    // Teams of a warp, then warps, always in the same order.
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        queries[g].join_teams();
        if (lane < TEAM) {
#pragma unroll
            for (int e = 0; e < SHARE; e++) shared_sums[warp][g][column + e] = queries[g].sums[e];
            shared_max[warp][g] = queries[g].max;
            shared_total[warp][g] = queries[g].total;
        }
    }
    __syncthreads();
    for (int place = threadIdx.x; place < GROUP * HEAD; place += THREADS) {
        const int g = place / HEAD, at = place % HEAD;
        if (first_head + g >= end_head || at >= (int)size) continue;
        float now = shared_max[0][g], all = 0.0f, sum = 0.0f;
#pragma unroll
        for (int other = 1; other < WARPS; other++) now = fmaxf(now, shared_max[other][g]);
#pragma unroll
        for (int other = 0; other < WARPS; other++) {
            const float shrink = shrink_to(shared_max[other][g], now);
            all += shared_total[other][g] * shrink;
            sum += shared_sums[other][g][at] * shrink;
        }
        out[((u64)b * heads + first_head + g) * size + at] = from_float<real>(sum / all);
        if (at == 0) log_sum_exp[(u64)b * heads + first_head + g] = now + logf(all);
    }
}
