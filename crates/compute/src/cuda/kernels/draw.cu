// Draws a token from every row of logits and moves the row on, so that the next step finds its input on the card.
//
// A block owns a row. Numbers are compared as keys whose order is theirs; what top-k and top-p let through is everything
// above one key, and the first so many ids with that very key. The key is found bit by bit, from counts or from weights, which
// are whole numbers, so that their sums do not depend on any order. The draw itself goes through the ids in order: sums of
// segments of 32 first, then the lanes of one.
//
// Under top-k few ids are left to look at. The k-th of the threads' greatest keys is at most the k-th of all keys, so every id that
// may be drawn is among those of at least that key, which threads have whose greatest reaches it; they are gathered and all else happens
// among them, unless they are too many.
#include "prelude.cuh"

constexpr u32 THREADS = 1024, WARPS = THREADS / 32;
// Bits of a key below this one say nothing: bf16 leaves them empty.
constexpr int LOWEST_BIT = REAL == 1 ? 16 : 0;
constexpr u32 EMPTY_BITS = (1u << LOWEST_BIT) - 1;
// Ids that are looked at one by one: a thread has one.
constexpr u32 MOST_FEW = 512;
// Packs of a thread that are on their way at a time: all of them for a vocabulary of 65,536 halves.
constexpr u32 AHEAD = 8;
// Lanes that look at one of the few together.
constexpr u32 TEAM = 4;
// Steps below the highest key in which the k-th is looked for first, and bits of a step.
constexpr u32 STEPS = 512, STEP_BITS = 16;
// Minus infinity in every element of a word.
constexpr u32 NOTHING = REAL == 0 ? 0xff800000u : REAL == 1 ? 0xff80ff80u : 0xfc00fc00u;

__device__ __forceinline__ u32 key_of(float x) {
    const u32 bits = __float_as_uint(x);
    return (bits & 0x80000000u ? ~bits : bits | 0x80000000u) & ~EMPTY_BITS;
}
__device__ __forceinline__ float of_key(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~(key | EMPTY_BITS));
}

// The greatest of the numbers of some packs.
struct Greatest {
#if REAL == 0
    u32 key = 0;
    __device__ __forceinline__ void take(u32 word) {
        const u32 its = key_of(__uint_as_float(word));
        key = its > key ? its : key;
    }
    __device__ __forceinline__ u32 get() const { return key; }
#else
    // Pairs of halves as whole numbers with a sign, which are in the order of the halves; negative ones are in the opposite order.
    u32 most = NOTHING, least = NOTHING;
    __device__ __forceinline__ void take(u32 word) {
        most = __vmaxs2(most, word);
        least = __vmins2(least, word);
    }
    __device__ __forceinline__ u32 get() const {
        const int above = max((int)most >> 16, (int)(most << 16) >> 16), below = min((int)least >> 16, (int)(least << 16) >> 16);
        real greatest;
        greatest.bits = (u16)(above >= 0 ? above : below);
        return key_of(to_float(greatest));
    }
#endif
    __device__ __forceinline__ void take(const uint4& pack) {
        take(pack.x);
        take(pack.y);
        take(pack.z);
        take(pack.w);
    }
};

// A row in packs of 16 bytes that lie at multiples of 16: the first may begin before the row, and the last end behind it.
struct Packs {
    const uint4* at;
    // Elements of the first pack that are before the row.
    u32 lead;
    u32 count;
    __device__ __forceinline__ Packs(const real* row, u32 vocabulary) {
        lead = (u32)(reinterpret_cast<u64>(row) / sizeof(real) % WIDTH);
        at = reinterpret_cast<const uint4*>(row - lead);
        count = (lead + vocabulary + WIDTH - 1) / WIDTH;
    }
    __device__ __forceinline__ bool is_whole(u32 pack, u32 vocabulary) const {
        return pack * WIDTH >= lead && (pack + 1) * WIDTH <= lead + vocabulary;
    }
    // A pack that is not whole: what is not of the row becomes minus infinity.
    __device__ __forceinline__ uint4 clip(uint4 raw, u32 pack, u32 vocabulary) const {
        union { uint4 raw; real elements[WIDTH]; } both, nothing;
        both.raw = raw;
        nothing.raw = make_uint4(NOTHING, NOTHING, NOTHING, NOTHING);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            if (pack * WIDTH + e - lead >= vocabulary) both.elements[e] = nothing.elements[e];
        }
        return both.raw;
    }
};

// The packs of a row that are not whole, which may be the first and the last. Memory is given out in multiples of packs, so that each can
// be asked for as it lies there, together with the others.
struct Ends {
    static constexpr u32 NONE = 0xffffffffu;
    // Those of this thread, and what lies there.
    u32 packs[2];
    uint4 raw[2];
    __device__ __forceinline__ Ends(const Packs& of, u32 vocabulary) {
        packs[0] = 0;
        packs[1] = of.count - 1;
#pragma unroll
        for (int end = 0; end < 2; end++) {
            const bool is_own = packs[end] % THREADS == threadIdx.x && !of.is_whole(packs[end], vocabulary);
            if (!is_own || (end == 1 && of.count == 1)) packs[end] = NONE;
            else raw[end] = of.at[packs[end]];
        }
    }
};

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

// Ids that may be drawn, in any order.
struct Few {
    // The key of each, and below it its id with all bits turned over: what comes first is the greatest.
    u64 both[MOST_FEW];
    // How each compares, see `compare`.
    u32 places[MOST_FEW];
    // In the order of ids, and what each weighs if it stays.
    u32 ids[MOST_FEW];
    u64 masses[MOST_FEW];
    u32 size, ties;
    double fraction;
    u32 greatest[WARPS];
    // Threads that have some of them.
    u16 owners[THREADS];
    u32 n_owners;
};
__device__ __forceinline__ u64 both_of(u32 key, u32 id) { return (u64)key << 32 | ~id; }
__device__ __forceinline__ u32 key_in(u64 both) { return (u32)(both >> 32); }
__device__ __forceinline__ u32 id_in(u64 both) { return ~(u32)both; }

// The greatest key of the block, given to every thread.
__device__ __forceinline__ u32 block_most(u32 key, Few& few) {
    const u32 own = __reduce_max_sync(0xffffffffu, key);
    __syncthreads();
    if (threadIdx.x % 32 == 0) few.greatest[threadIdx.x / 32] = own;
    __syncthreads();
    return __reduce_max_sync(0xffffffffu, few.greatest[threadIdx.x % 32]);
}

// A key that k of the threads' greatest reach, and few more do.
__device__ __forceinline__ u32 near_kth(u32 greatest, u32 highest, int k) {
    const u32 step = (highest - greatest) >> STEP_BITS;
    if (__syncthreads_count(step < STEPS) >= k) {
        // The most steps such that fewer than k are nearer.
        u32 steps = 0;
#pragma unroll 1
        for (u32 more = STEPS / 2; more > 0; more /= 2) {
            if (__syncthreads_count(step < steps + more) < k) steps += more;
        }
        const u32 distance = steps << STEP_BITS | ((1u << STEP_BITS) - 1);
        return highest > distance ? highest - distance : 0;
    }
    // It is far below: bit by bit.
    u32 key = 0;
    for (int bit = 31; bit >= LOWEST_BIT; bit--) {
        const u32 trial = key | 1u << bit;
        if (__syncthreads_count(greatest >= trial) >= k) key = trial;
    }
    return key;
}

// Gathers the ids of at least a key, or as many of them as there is room for; `first` becomes the least of those with the `highest` key.
// `few.size` and `few.n_owners` are zero and `first` no less than any id.
__device__ __forceinline__ void gather(const real* from, const Packs& packs, u32 vocabulary, u32 greatest, u32 lower, u32 highest,
                                       Few& few, u32* first) {
    const u32 lane = threadIdx.x % 32, elements = (packs.count + THREADS - 1) / THREADS * WIDTH;
    // Warps share what those threads have whose greatest key is high enough.
    const u32 owners = __ballot_sync(0xffffffffu, greatest >= lower);
    u32 before = 0;
    if (lane == 0 && owners) before = atomicAdd(&few.n_owners, (u32)__popc(owners));
    before = __shfl_sync(0xffffffffu, before, 0);
    if (greatest >= lower) few.owners[before + __popc(owners & ((1u << lane) - 1))] = (u16)threadIdx.x;
    __syncthreads();
    const u32 n_owners = few.n_owners;
#pragma unroll 1
    for (u32 at = threadIdx.x / 32; at < n_owners; at += WARPS) {
        const u32 owner = few.owners[at];
#pragma unroll 2
        for (u32 e = lane; e < elements; e += 32) {
            const u32 id = (owner + e / WIDTH * THREADS) * WIDTH + e % WIDTH - packs.lead;
            if (id >= vocabulary) continue;
            const u32 key = key_of(to_float(from[id]));
            if (key < lower) continue;
            if (key == highest) atomicMin(first, id);
            const u32 place = atomicAdd(&few.size, 1u);
            if (place < MOST_FEW) few.both[place] = both_of(key, id);
        }
    }
    __syncthreads();
}

// The sum over the lanes of a team.
template <typename T> __device__ __forceinline__ T team_total(T x) {
#pragma unroll
    for (int distance = TEAM / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

// For each of the few, how many come before it, and how many have a lower id: sixteen bits each.
__device__ __forceinline__ void compare(Few& few, u32 size) {
    const u32 of_warp = threadIdx.x / 32 * (32 / TEAM);
    for (u32 first = of_warp; first < size; first += THREADS / TEAM) {
        const u32 at = first + threadIdx.x % 32 / TEAM;
        const u64 own = few.both[at < size ? at : 0];
        u32 counts = 0;
#pragma unroll 4
        for (u32 other = threadIdx.x % TEAM; other < size; other += TEAM) {
            const u64 its = few.both[other];
            counts += (its > own) + ((u32)its > (u32)own ? 1u << 16 : 0u);
        }
        counts = team_total(counts);
        if (at < size && threadIdx.x % TEAM == 0) few.places[at] = counts;
    }
    __syncthreads();
}

// Draws under top-k from those that were gathered; `chosen` stays as it is where rounding leaves none. `chance` gives the random fraction.
template <typename Chance>
__device__ __forceinline__ void draw_of_few(u32 vocabulary, Few& few, u64* shared, u32* chosen, u32 top_k, float top_p, float min_p,
                                            const Weight& weight, Chance chance) {
    const u32 size = few.size;
    // The last warp compares nothing where they are few.
    if (threadIdx.x == THREADS - 1) few.fraction = chance();
    compare(few, size);
    const bool is_there = threadIdx.x < size;
    u64 own = 0, whole = 0;
    u32 order = 0;
    bool stays = false, weighs = false;
    if (is_there) {
        own = few.both[threadIdx.x];
        const u32 place = few.places[threadIdx.x];
        const float x = of_key(key_in(own));
        whole = weight.whole(x);
        weighs = weight.of(x) >= min_p;
        stays = (place & 0xffffu) < top_k;
        order = place >> 16;
    }
    if (top_p > 0.0f && top_p < 1.0f) {
        if (is_there) few.masses[threadIdx.x] = stays ? whole : 0;
        const u64 total = block_total(stays ? whole : 0, shared);
        u64 goal = (u64)((double)top_p * (double)total);
        goal = goal > 0 ? goal : 1;
        const u32 key = key_in(own);
        u64 above = 0;
        u32 same = 0, rank = 0;
        if (is_there) {
            for (u32 other = 0; other < size; other++) {
                const u64 its = few.both[other];
                above += key_in(its) > key ? few.masses[other] : 0;
                same += key_in(its) == key;
                rank += key_in(its) == key && its > own;
            }
        }
        // The least key of those that reach the goal together is the greatest that reaches it with all that are not below.
        const u32 least = block_most(stays && above + same * whole >= goal ? key : 0, few);
        if (is_there && key == least && rank == 0) few.ties = whole == 0 ? vocabulary : (u32)((goal - above + whole - 1) / whole);
        __syncthreads();
        stays = stays && (key > least || (key == least && rank < few.ties));
    }
    if (is_there) {
        few.masses[order] = stays && weighs ? whole : 0;
        few.ids[order] = id_in(own);
    }
    __syncthreads();
    // The first in the order of ids with which the weight reaches beyond the goal: each lane of a warp has some of them.
    if (threadIdx.x < 32) {
        const u32 each = (size + 31) / 32, first = threadIdx.x * each, end = min(first + each, size);
        u64 mass = 0;
        for (u32 at = first; at < end; at++) mass += few.masses[at];
        u64 reached = mass;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const u64 other = __shfl_up_sync(0xffffffffu, reached, distance);
            if (threadIdx.x >= distance) reached += other;
        }
        const u64 goal = (u64)(few.fraction * (double)__shfl_sync(0xffffffffu, reached, 31));
        u64 passed = reached - mass;
        if (goal >= passed && goal < reached) {
            u32 at = first;
            for (; goal >= passed + few.masses[at]; at++) passed += few.masses[at];
            *chosen = few.ids[at];
        }
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
draw(const real* logits, const float* limits, const u32* keys, u32* ids,
     u32* positions, u32* places, u32* lengths, u32* drawn, u32 vocabulary, u32 kept, u32 context, u32 is_held) {
    extern __shared__ uint4 memory[];
    __shared__ u64 shared[WARPS];
    __shared__ u32 chosen;
    __shared__ Few few;
    const u32 row = blockIdx.x, lane = threadIdx.x % 32;
    // The weight of every segment, how many ids tie there, and the row itself where it fits.
    const u32 segments = (vocabulary + 31) / 32, places_of_segments = (segments + 3) / 4 * 4;
    u64* masses = reinterpret_cast<u64*>(memory);
    u32* equals = reinterpret_cast<u32*>(masses + places_of_segments);
    uint4* held = reinterpret_cast<uint4*>(equals + places_of_segments);
    if (threadIdx.x == 0) {
        chosen = vocabulary - 1;
        few.size = few.n_owners = 0;
    }
    take_turn();
    const real* from = logits + (u64)row * vocabulary;
    const float temperature = limits[3 * row], top_p = limits[3 * row + 1], min_p = limits[3 * row + 2];
    const u32 top_k = keys[4 * row + 3];
    const u32 length = lengths[2 * row], place = lengths[2 * row + 1], position = positions[row], cached = places[2 * row + 1];
    const Packs packs(from, vocabulary);
    const Ends ends(packs, vocabulary);
    Greatest of_thread;
    for (u32 first = threadIdx.x; first < packs.count; first += THREADS * AHEAD) {
        uint4 ahead[AHEAD];
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            const u32 pack = first + a * THREADS;
            ahead[a] = make_uint4(NOTHING, NOTHING, NOTHING, NOTHING);
            if (packs.is_whole(pack, vocabulary)) ahead[a] = packs.at[pack];
        }
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            const u32 pack = first + a * THREADS;
            of_thread.take(ahead[a]);
            if (is_held && pack < packs.count) held[pack] = ahead[a];
        }
    }
#pragma unroll
    for (int end = 0; end < 2; end++) {
        if (ends.packs[end] == Ends::NONE) continue;
        const uint4 part = packs.clip(ends.raw[end], ends.packs[end], vocabulary);
        of_thread.take(part);
        if (is_held) held[ends.packs[end]] = part;
    }
    if (is_held) from = reinterpret_cast<const real*>(held) + packs.lead;

    const u32 greatest = of_thread.get(), highest = block_most(greatest, few);
    const auto chance = [=] {
        const uint4 random = philox(keys[4 * row], keys[4 * row + 1], make_uint4(length, keys[4 * row + 2], 0, 0));
        return (double)(((u64)random.x << 32 | random.y) >> 11) / 9007199254740992.0;
    };
    const Weight weight = {of_key(highest), temperature > 0.0f ? 1.0f / temperature : 0.0f};
    const bool has_k = top_k > 0 && top_k < vocabulary, has_p = top_p > 0.0f && top_p < 1.0f;

    // The likeliest token, and of several the first, is chosen unless another is drawn.
    const bool is_of_few = temperature > 0.0f && has_k && top_k <= THREADS;
    gather(from, packs, vocabulary, greatest, is_of_few ? near_kth(greatest, highest, (int)top_k) : highest, highest, few, &chosen);
    const u32 likeliest = chosen;
    if (is_of_few && few.size <= MOST_FEW) {
        draw_of_few(vocabulary, few, shared, &chosen, top_k, top_p, min_p, weight, chance);
    } else if (temperature > 0.0f) {
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
        const u64 goal = (u64)(chance() * (double)total);
        __syncthreads();
        // The thread whose segments hold the goal names the one; the first warp goes through it.
        bool names = false;
        if (goal >= passed && goal < passed + mine) {
            for (u32 segment = first; segment < first + per_thread && segment < segments; segment++) {
                if (goal < passed + masses[segment]) {
                    shared[0] = (u64)segment << 32;
                    shared[1] = goal - passed;
                    names = true;
                    break;
                }
                passed += masses[segment];
            }
        }
        if (__syncthreads_or(names) && threadIdx.x < 32) {
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
        drawn[(u64)row * kept + place % kept] = chosen;
        ids[row] = chosen;
        positions[row] = position + 1 < context ? position + 1 : context - 1;
        places[2 * row + 1] = cached + 1;
        lengths[2 * row] = length + 1;
        lengths[2 * row + 1] = place + 1;
    }
}

// Logits after bias and penalties, a thread each; the last token of the text is counted first. Every step rounds as on the host, so
// that tokens are the host's.
extern "C" __global__ void adjust(const real* logits, const float* penalties, const u32* prompts,
                                  const u32* ids, const u32* lengths, const float* bias,
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

// The sum and the greatest over the block, given to every thread. `shared` has a place per warp.
__device__ __forceinline__ double block_sum(double x, u64* shared) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = (u64)__double_as_longlong(x);
    __syncthreads();
    x = __longlong_as_double((long long)shared[threadIdx.x % 32]);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}
__device__ __forceinline__ u64 block_greatest(u64 x, u64* shared) {
    for (int pass = 0; pass < 2; pass++) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            const u64 other = __shfl_xor_sync(0xffffffffu, x, distance);
            x = other > x ? other : x;
        }
        if (pass == 1) break;
        __syncthreads();
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
        __syncthreads();
        x = shared[threadIdx.x % 32];
    }
    return x;
}

// The logarithms of the probabilities of the token that was drawn last and of the likeliest ones, a block per row.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
log_probabilities(const real* logits, const u32* ids, const u32* lengths, u32* likeliest,
                  float* values, u32 vocabulary, u32 kept, u32 count) {
    __shared__ u64 shared[WARPS];
    __shared__ u32 first;
    __shared__ Few few;
    if (threadIdx.x == 0) {
        first = vocabulary;
        few.size = few.n_owners = 0;
    }
    take_turn();
    const u32 row = blockIdx.x;
    const real* from = logits + (u64)row * vocabulary;
    const u64 place = (u64)row * kept + (lengths[2 * row + 1] - 1) % kept;
    u32* to_ids = likeliest + place * count;
    float* to = values + place * (count + 1);

    const Packs packs(from, vocabulary);
    Greatest of_thread;
    for (u32 pack = threadIdx.x; pack < packs.count; pack += THREADS) {
        of_thread.take(packs.is_whole(pack, vocabulary) ? packs.at[pack] : packs.clip(packs.at[pack], pack, vocabulary));
    }
    const u32 greatest = of_thread.get(), highest = block_most(greatest, few);
    const float top = of_key(highest);
    float own = 0.0f;
    for (u32 id = threadIdx.x; id < vocabulary; id += THREADS) own += expf(to_float(from[id]) - top);
    const double log_sum_exp = (double)top + log(block_sum((double)own, shared));
    if (threadIdx.x == 0) to[0] = (float)((double)to_float(from[ids[row]]) - log_sum_exp);

    // As a draw does under top-k.
    gather(from, packs, vocabulary, greatest, near_kth(greatest, highest, (int)min(count, THREADS)), highest, few, &first);
    const u32 size = few.size;
    if (size <= MOST_FEW && size >= (count < vocabulary ? count : vocabulary)) {
        compare(few, size);
        if (threadIdx.x < size) {
            const u64 own = few.both[threadIdx.x];
            const u32 rank = few.places[threadIdx.x] & 0xffffu;
            if (rank < count) {
                to_ids[rank] = id_in(own);
                to[1 + rank] = (float)((double)of_key(key_in(own)) - log_sum_exp);
            }
        }
    } else {
        // Too many are equally likely: one after another, the greatest key and the least id below those before it.
        u64 before = ~0ull;
        for (u32 rank = 0; rank < count && rank < vocabulary; rank++) {
            u64 best = 0;
            for (u32 id = threadIdx.x; id < vocabulary; id += THREADS) {
                const u64 its = (u64)key_of(to_float(from[id])) << 32 | (0xffffffffu - id);
                if (its < before && its > best) best = its;
            }
            before = best = block_greatest(best, shared);
            if (threadIdx.x == 0) {
                to_ids[rank] = 0xffffffffu - (u32)best;
                to[1 + rank] = (float)((double)of_key((u32)(best >> 32)) - log_sum_exp);
            }
        }
    }
    for (u32 rank = vocabulary + threadIdx.x; rank < count; rank += THREADS) {
        to_ids[rank] = 0xffffffffu;
        to[1 + rank] = 0.0f;
    }
}
