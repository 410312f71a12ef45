// Draws a token from every row of logits and moves the row on, so that the next step finds its input on the card.
//
// A block owns a row. Numbers are compared as keys whose order is theirs; what top-k and top-p let through is everything
// above one key, and the first so many ids with that very key. The key is found bit by bit, from counts or from weights, which
// are whole numbers, so that their sums do not depend on any order. The draw itself goes through the ids in order: sums of
// segments of 32 first, then the lanes of one.
#include "prelude.cuh"

constexpr u32 THREADS = 1024, WARPS = THREADS / 32;
// Bits of a key below this one say nothing: bf16 leaves them empty.
constexpr int LOWEST_BIT = REAL == 1 ? 16 : 0;
constexpr u32 EMPTY_BITS = (1u << LOWEST_BIT) - 1;

__device__ __forceinline__ u32 key_of(float x) {
    const u32 bits = __float_as_uint(x);
    return (bits & 0x80000000u ? ~bits : bits | 0x80000000u) & ~EMPTY_BITS;
}
__device__ __forceinline__ float of_key(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~(key | EMPTY_BITS));
}

__device__ __forceinline__ u64 warp_total(u64 x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

// The sum over the block, given to every thread. `shared` has a place per warp.
__device__ __forceinline__ u64 block_total(u64 x, u64* shared) {
    x = warp_total(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_total(shared[threadIdx.x % 32]);
}

// The sum over the threads before this one.
__device__ __forceinline__ u64 block_before(u64 x, u64* shared) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 sum = x;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const u64 other = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) sum += other;
    }
    __syncthreads();
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    u64 before = 0;
    for (u32 other = 0; other < warp; other++) before += shared[other];
    return before + sum - x;
}

// Whole numbers of the share of the likeliest token's weight.
struct Weight {
    float highest, scale;
    __device__ __forceinline__ float of(float x) const { return expf((x - highest) * scale); }
    __device__ __forceinline__ u64 whole(float x) const { return (u64)(of(x) * 2147483648.0f); }
};

// The greatest key that is at most every key of the best ones: so many of them, or as many as reach a weight.
template <typename Amount>
__device__ __forceinline__ u32 threshold(u64 goal, u64* shared, Amount amount) {
    u32 key = 0;
    for (int bit = 31; bit >= LOWEST_BIT; bit--) {
        const u32 trial = key | 1u << bit;
        if (block_total(amount(trial), shared) >= goal) key = trial;
    }
    return key;
}

extern "C" __global__ void __launch_bounds__(THREADS)
draw(const real* __restrict__ logits, const float* __restrict__ limits, const u32* __restrict__ keys, u32* ids,
     u32* positions, u32* places, u32* lengths, u32* drawn, u32 vocabulary, u32 kept, u32 context, u32 is_held) {
    extern __shared__ uint4 memory[];
    __shared__ u64 shared[WARPS];
    __shared__ u32 chosen;
    const u32 row = blockIdx.x, lane = threadIdx.x % 32;
    const u32 segments = (vocabulary + 31) / 32;
    u64* masses = reinterpret_cast<u64*>(memory);
    u32* equals = reinterpret_cast<u32*>(masses + segments);
    // The row in shared memory, where it fits.
    const real* from = logits + (u64)row * vocabulary;
    if (is_held) {
        real* held = reinterpret_cast<real*>(equals + (segments + 3) / 4 * 4);
        for (u32 i = threadIdx.x; i < vocabulary; i += THREADS) held[i] = from[i];
        from = held;
        __syncthreads();
    }
    const float temperature = limits[3 * row], top_p = limits[3 * row + 1], min_p = limits[3 * row + 2];
    const u32 top_k = keys[4 * row + 3];

    // The likeliest token, and of several the first.
    u64 best = 0;
    for (u32 i = threadIdx.x; i < vocabulary; i += THREADS) {
        const u64 own = (u64)key_of(to_float(from[i])) << 32 | (0xffffffffu - i);
        best = own > best ? own : best;
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const u64 other = __shfl_xor_sync(0xffffffffu, best, distance);
        best = other > best ? other : best;
    }
    if (lane == 0) shared[threadIdx.x / 32] = best;
    __syncthreads();
    best = shared[lane];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const u64 other = __shfl_xor_sync(0xffffffffu, best, distance);
        best = other > best ? other : best;
    }
    const u32 likeliest = 0xffffffffu - (u32)best;
    if (threadIdx.x == 0) chosen = likeliest;
    __syncthreads();

    if (temperature > 0.0f) {
        const Weight weight = {of_key((u32)(best >> 32)), 1.0f / temperature};
        u32 least = 0, ties = vocabulary;
        const bool has_k = top_k > 0 && top_k < vocabulary, has_p = top_p > 0.0f && top_p < 1.0f;
        if (has_k) {
            const auto count = [&](u32 key) {
                u64 sum = 0;
                for (u32 i = threadIdx.x; i < vocabulary; i += THREADS) sum += key_of(to_float(from[i])) >= key;
                return sum;
            };
            least = threshold(top_k, shared, count);
            ties = top_k - (u32)block_total(least == 0xffffffffu ? 0 : count(least + 1), shared);
        }
        if (has_p) {
            const auto mass = [&](u32 key) {
                u64 sum = 0;
                for (u32 i = threadIdx.x; i < vocabulary; i += THREADS) {
                    const float x = to_float(from[i]);
                    if (key_of(x) >= key) sum += weight.whole(x);
                }
                return sum;
            };
            const u64 each = weight.whole(of_key(least));
            u64 total = block_total(has_k ? mass(least + 1) : mass(0), shared);
            if (has_k) total += ties * each;
            u64 goal = (u64)((double)top_p * (double)total);
            goal = goal > 0 ? goal : 1;
            const u32 least_p = threshold(goal, shared, mass);
            const u64 above = block_total(least_p == 0xffffffffu ? 0 : mass(least_p + 1), shared);
            const u64 own = weight.whole(of_key(least_p));
            const u32 wanted = own == 0 ? vocabulary : (u32)((goal - above + own - 1) / own);
            // Where both limits end at one key, the fewer of its tokens stay.
            ties = has_k && least_p == least && ties < wanted ? ties : wanted;
            least = least_p > least ? least_p : least;
        }

        // How many ids of every segment have the least key, and how many those before it.
        const u32 per_thread = (segments + THREADS - 1) / THREADS;
        const u32 first = threadIdx.x * per_thread;
        for (u32 segment = threadIdx.x / 32; segment < segments; segment += WARPS) {
            const u32 i = segment * 32 + lane;
            const u32 same = __ballot_sync(0xffffffffu, i < vocabulary && key_of(to_float(from[i])) == least);
            if (lane == 0) equals[segment] = __popc(same);
        }
        __syncthreads();
        u64 own = 0;
        for (u32 segment = first; segment < first + per_thread && segment < segments; segment++) own += equals[segment];
        u32 before = (u32)block_before(own, shared);
        for (u32 segment = first; segment < first + per_thread && segment < segments; segment++) {
            const u32 count = equals[segment];
            equals[segment] = before;
            before += count;
        }
        __syncthreads();

        const auto stays = [&](u32 segment, float x, bool is_there) {
            const u32 key = key_of(x);
            const u32 same = __ballot_sync(0xffffffffu, is_there && key == least);
            const u32 rank = equals[segment] + __popc(same & ((1u << lane) - 1));
            return is_there && (key > least || (key == least && rank < ties)) && weight.of(x) >= min_p;
        };
        for (u32 segment = threadIdx.x / 32; segment < segments; segment += WARPS) {
            const u32 i = segment * 32 + lane;
            const float x = i < vocabulary ? to_float(from[i]) : 0.0f;
            const bool is_in = stays(segment, x, i < vocabulary);
            u64 mass = 0;
            if (__any_sync(0xffffffffu, is_in)) mass = warp_total(is_in ? weight.whole(x) : 0);
            if (lane == 0) masses[segment] = mass;
        }
        __syncthreads();
        u64 mine = 0;
        for (u32 segment = first; segment < first + per_thread && segment < segments; segment++) mine += masses[segment];
        const u64 total = block_total(mine, shared);
        u64 passed = block_before(mine, shared);
        const uint4 words = philox(keys[4 * row], keys[4 * row + 1],
                                   make_uint4(lengths[2 * row], keys[4 * row + 2], 0, 0));
        const u64 bits = ((u64)words.x << 32 | words.y) >> 11;
        const u64 goal = (u64)((double)bits / 9007199254740992.0 * (double)total);
        __syncthreads();
        // The thread whose segments hold the goal names the one; its warp's lanes are gone through by the first warp.
        if (goal >= passed && goal < passed + mine) {
            for (u32 segment = first; segment < first + per_thread && segment < segments; segment++) {
                if (goal < passed + masses[segment]) {
                    shared[0] = (u64)segment << 32;
                    shared[1] = goal - passed;
                    chosen = 0xffffffffu;
                    break;
                }
                passed += masses[segment];
            }
        }
        __syncthreads();
        if (chosen == 0xffffffffu && threadIdx.x < 32) {
            const u32 segment = (u32)(shared[0] >> 32), i = segment * 32 + lane;
            const u64 rest = shared[1];
            const float x = i < vocabulary ? to_float(from[i]) : 0.0f;
            const u64 own_mass = stays(segment, x, i < vocabulary) ? weight.whole(x) : 0;
            u64 sum = own_mass;
#pragma unroll
            for (int distance = 1; distance < 32; distance *= 2) {
                const u64 other = __shfl_up_sync(0xffffffffu, sum, distance);
                if (lane >= distance) sum += other;
            }
            const u32 found = __ballot_sync(0xffffffffu, rest < sum && own_mass > 0);
            if (lane == 0) chosen = found ? segment * 32 + (u32)__ffs(found) - 1 : likeliest;
        }
        __syncthreads();
    }

    if (threadIdx.x == 0) {
        const u32 id = chosen, place = lengths[2 * row + 1];
        drawn[(u64)row * kept + place % kept] = id;
        ids[row] = id;
        positions[row] = positions[row] + 1 < context ? positions[row] + 1 : context - 1;
        places[2 * row + 1] += 1;
        lengths[2 * row] += 1;
        lengths[2 * row + 1] = place + 1;
    }
}
