// Draws a token from every row of logits and moves the row on, so that the next step finds its input on the card.
//
// A block owns a row. Numbers are compared as keys whose order is theirs; what top-k and top-p let through is everything
// above one key, and the first so many ids with that very key. The key is found bit by bit, from counts or from weights, which
// are whole numbers, so that their sums do not depend on any order. The draw itself goes through the ids in order: sums of
// segments of 32 first, then the lanes of one.
//
// Under top-k few ids are left to look at. The k-th of the segments' greatest keys is at most the k-th of all keys, so every id that
// may be drawn is among those of at least that key, in the segments whose greatest is; they are gathered in order and all else happens
// among them, unless they are too many.
#include "prelude.cuh"

constexpr u32 THREADS = 1024, WARPS = THREADS / 32;
// Bits of a key below this one say nothing: bf16 leaves them empty.
constexpr int LOWEST_BIT = REAL == 1 ? 16 : 0;
constexpr u32 EMPTY_BITS = (1u << LOWEST_BIT) - 1;
// Ids that are looked at one by one: a thread has one.
constexpr u32 MOST_FEW = 512;

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

// The sum over the block, given to every thread, with one wait: calls take turns with two lists of a place per warp.
struct Counter {
    u32 (*places)[WARPS];
    u32 turn;
    __device__ __forceinline__ u32 total(u32 x) {
        turn ^= 1;
        const u32 sum = __reduce_add_sync(0xffffffffu, x);
        if (threadIdx.x % 32 == 0) places[turn][threadIdx.x / 32] = sum;
        __syncthreads();
        return __reduce_add_sync(0xffffffffu, places[turn][threadIdx.x % 32]);
    }
    __device__ __forceinline__ u32 most(u32 x) {
        turn ^= 1;
        const u32 own = __reduce_max_sync(0xffffffffu, x);
        if (threadIdx.x % 32 == 0) places[turn][threadIdx.x / 32] = own;
        __syncthreads();
        return __reduce_max_sync(0xffffffffu, places[turn][threadIdx.x % 32]);
    }
};

// Ids that may be drawn, in their order, and their keys.
struct Few {
    u32 ids[MOST_FEW], keys[MOST_FEW];
    u32 least, ties;
};

constexpr u32 NOBODY = 0xffffffffu, TOO_MANY = 0xfffffffeu;

// Draws under top-k; TOO_MANY where too many ids have to be looked at, NOBODY where rounding leaves none. `greatest` are the segments'
// greatest keys, `counts` has a place for each.
__device__ __forceinline__ u32 draw_of_few(const real* from, u32 vocabulary, u32 segments, const u32* greatest, u32* counts, Few& few,
                                           Counter& counter, u64* shared, u32* chosen, u32 top_k, float top_p, float min_p,
                                           const Weight& weight, u64 bits) {
    const u32 lane = threadIdx.x % 32;
    u32 lower = 0;
    for (int bit = 31; bit >= LOWEST_BIT; bit--) {
        const u32 trial = lower | 1u << bit;
        u32 own = 0;
        for (u32 segment = threadIdx.x; segment < segments; segment += THREADS) own += greatest[segment] >= trial;
        if (counter.total(own) >= top_k) lower = trial;
    }
    for (u32 segment = threadIdx.x / 32; segment < segments; segment += WARPS) {
        u32 count = 0;
        if (greatest[segment] >= lower) {
            const u32 i = segment * 32 + lane;
            count = __popc(__ballot_sync(0xffffffffu, i < vocabulary && key_of(to_float(from[i])) >= lower));
        }
        if (lane == 0) counts[segment] = count;
    }
    __syncthreads();
    const u32 per_thread = (segments + THREADS - 1) / THREADS, first = threadIdx.x * per_thread;
    u32 own = 0;
    for (u32 segment = first; segment < first + per_thread && segment < segments; segment++) own += counts[segment];
    const u32 size = counter.total(own);
    if (size > MOST_FEW) return TOO_MANY;
    u32 before = (u32)block_before(own, shared);
    for (u32 segment = first; segment < first + per_thread && segment < segments; segment++) {
        const u32 count = counts[segment];
        counts[segment] = before;
        before += count;
    }
    __syncthreads();
    for (u32 segment = threadIdx.x / 32; segment < segments; segment += WARPS) {
        if (greatest[segment] < lower) continue;
        const u32 i = segment * 32 + lane, key = i < vocabulary ? key_of(to_float(from[i])) : 0;
        const bool is_in = i < vocabulary && key >= lower;
        const u32 all = __ballot_sync(0xffffffffu, is_in);
        if (is_in) {
            const u32 place = counts[segment] + __popc(all & ((1u << lane) - 1));
            few.ids[place] = i;
            few.keys[place] = key;
        }
    }
    __syncthreads();

    const bool is_there = threadIdx.x < size;
    const u32 key = is_there ? few.keys[threadIdx.x] : 0;
    const u64 whole = is_there ? weight.whole(of_key(key)) : 0;
    // How many have a greater key, and how many the same, before this one and in all.
    u32 greater = 0, same = 0, rank = 0;
    if (is_there) {
        for (u32 other = 0; other < size; other++) {
            const u32 its = few.keys[other];
            greater += its > key;
            same += its == key;
            rank += its == key && other < threadIdx.x;
        }
        if (greater < top_k && greater + same >= top_k) {
            few.least = key;
            few.ties = top_k - greater;
        }
    }
    __syncthreads();
    u32 least = few.least, ties = few.ties;
    if (top_p > 0.0f && top_p < 1.0f) {
        const u64 total = block_total(key > least ? whole : 0, shared) + ties * weight.whole(of_key(least));
        u64 goal = (u64)((double)top_p * (double)total);
        goal = goal > 0 ? goal : 1;
        u64 above = 0;
        if (is_there) {
            for (u32 other = 0; other < size; other++) {
                const u32 its = few.keys[other];
                if (its > key) above += weight.whole(of_key(its));
            }
        }
        // The least key of those that reach the goal together is the greatest that reaches it with all that are not below.
        const u32 least_p = counter.most(is_there && above + same * whole >= goal ? key : 0);
        if (is_there && key == least_p) {
            const u32 wanted = whole == 0 ? vocabulary : (u32)((goal - above + whole - 1) / whole);
            few.ties = least_p == least && ties < wanted ? ties : wanted;
        }
        __syncthreads();
        least = least_p > least ? least_p : least;
        ties = few.ties;
    }
    const bool stays = is_there && (key > least || (key == least && rank < ties)) && weight.of(of_key(key)) >= min_p;
    const u64 mass = stays ? whole : 0;
    const u64 total = block_total(mass, shared);
    const u64 passed = block_before(mass, shared);
    const u64 goal = (u64)((double)bits / 9007199254740992.0 * (double)total);
    if (threadIdx.x == 0) *chosen = NOBODY;
    __syncthreads();
    if (mass > 0 && goal >= passed && goal < passed + mass) *chosen = few.ids[threadIdx.x];
    __syncthreads();
    return *chosen;
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
    // The row in shared memory, where it fits, and the greatest key of every segment.
    __shared__ u32 turns[2][WARPS];
    __shared__ Few few;
    Counter counter = {turns, 0};
    const real* from = logits + (u64)row * vocabulary;
    real* held = reinterpret_cast<real*>(equals + (segments + 3) / 4 * 4);
    u32* greatest = reinterpret_cast<u32*>(masses);
    constexpr int AHEAD = 16;
    u32 highest = 0;
    for (u32 first = threadIdx.x / 32; first < segments; first += WARPS * AHEAD) {
        real x[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const u32 i = (first + a * WARPS) * 32 + lane;
            if (i < vocabulary) x[a] = from[i];
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const u32 segment = first + a * WARPS, i = segment * 32 + lane;
            if (segment >= segments) break;
            if (is_held && i < vocabulary) held[i] = x[a];
            const u32 most = __reduce_max_sync(0xffffffffu, i < vocabulary ? key_of(to_float(x[a])) : 0);
            highest = most > highest ? most : highest;
            if (lane == 0) greatest[segment] = most;
        }
    }
    if (is_held) from = held;
    const float temperature = limits[3 * row], top_p = limits[3 * row + 1], min_p = limits[3 * row + 2];
    const u32 top_k = keys[4 * row + 3];

    // The likeliest token, and of several the first.
    highest = counter.most(highest);
    u32 first_of_highest = 0;
    for (u32 segment = threadIdx.x; segment < segments; segment += THREADS) {
        // The first segment has the greatest number from the end.
        if (greatest[segment] == highest && segments - segment > first_of_highest) first_of_highest = segments - segment;
    }
    const u32 segment_of_highest = segments - counter.most(first_of_highest);
    if (threadIdx.x < 32) {
        const u32 i = segment_of_highest * 32 + lane;
        const u32 those = __ballot_sync(0xffffffffu, i < vocabulary && key_of(to_float(from[i])) == highest);
        if (lane == 0) chosen = segment_of_highest * 32 + (u32)__ffs(those) - 1;
    }
    __syncthreads();
    const u32 likeliest = chosen;
    const uint4 random = philox(keys[4 * row], keys[4 * row + 1], make_uint4(lengths[2 * row], keys[4 * row + 2], 0, 0));
    const u64 bits = ((u64)random.x << 32 | random.y) >> 11;
    const Weight weight = {of_key(highest), temperature > 0.0f ? 1.0f / temperature : 0.0f};
    const bool has_k = top_k > 0 && top_k < vocabulary, has_p = top_p > 0.0f && top_p < 1.0f;

    u32 of_few = TOO_MANY;
    if (temperature > 0.0f && has_k && top_k <= segments) {
        of_few = draw_of_few(from, vocabulary, segments, greatest, equals, few, counter, shared, &chosen, top_k, top_p, min_p, weight, bits);
        __syncthreads();
    }
    if (of_few != TOO_MANY) {
        if (threadIdx.x == 0) chosen = of_few == NOBODY ? likeliest : of_few;
        __syncthreads();
    } else if (temperature > 0.0f) {
        if (threadIdx.x == 0) chosen = likeliest;
        __syncthreads();
        u32 least = 0, ties = vocabulary;
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

// Logits after bias and penalties, a thread each; the last token of the text is counted first. Every step rounds as on the host, so
// that tokens are the host's.
extern "C" __global__ void adjust(const real* __restrict__ logits, const float* __restrict__ penalties, const u32* __restrict__ prompts,
                                  const u32* __restrict__ ids, const u32* __restrict__ lengths, const float* __restrict__ bias,
                                  u32* __restrict__ seen, float* __restrict__ adjusted, u32 vocabulary) {
    const u32 row = blockIdx.y, id = blockIdx.x * blockDim.x + threadIdx.x;
    if (id >= vocabulary) return;
    const u64 at = (u64)row * vocabulary + id;
    u32 times = seen[at];
    if (id == ids[row]) {
        times = (times > 1 ? times : 1) + (lengths[2 * row] > prompts[row]);
        seen[at] = times;
    }
    float x = __fadd_rn(to_float(logits[at]), bias[at]);
    if (times > 0) {
        const float repetition = penalties[3 * row], presence = penalties[3 * row + 1], frequency = penalties[3 * row + 2];
        if (repetition > 0.0f && repetition != 1.0f) x = x > 0.0f ? __fdiv_rn(x, repetition) : __fmul_rn(x, repetition);
        if (times > 1) x = __fsub_rn(x, __fadd_rn(presence, __fmul_rn(frequency, (float)(times - 1))));
    }
    adjusted[at] = x;
}
