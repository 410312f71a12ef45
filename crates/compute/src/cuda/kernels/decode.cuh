// What both kernels share that run a step of decoding as one: the table of phases, the copies of weights, norms, and attention over
// caches. Comes before what hands values from block to block, which is where they differ.
#pragma once
#include "attention.cuh"
#include "gelu.cuh"
#include "int8.cuh"
#include "matrix.cuh"

// Fours of a row of a norm that a thread has at most.
#ifndef FOURS
#define FOURS 1
#endif
// Elements of a head, of which HEAD is the padded number, and whether queries and keys are turned by their positions.
#ifndef SIZE
#define SIZE HEAD
#endif
#ifndef TURNS
#define TURNS 1
#endif

// Whether weights of products are of eight bits.
#ifndef INT8
#define INT8 0
#endif

// Warps that compute, and beside them one that fetches weights. It brings its warpgroup, whose registers the others get.
constexpr u32 WARPS = 8, THREADS = 32 * WARPS, ALL_THREADS = THREADS + 128;
// Outputs of a product are dealt out in tiles of 8.
constexpr u32 TILE = 8;
// A step is 32 elements of K: 64 bytes. Rows of weights lie so that lanes of two rows meet no bank twice. In eight bits a part of a tile is
// a piece of memory, and lies as it does there.
constexpr u32 PART_STEPS = 24, STAGE_ROW = 64 * PART_STEPS + 64;
constexpr u32 TILE_BYTES = INT8 ? PART_STEPS / INT8_CHUNK * INT8_CHUNK_BYTES : TILE * STAGE_ROW;
constexpr u32 WARP_STEPS = PART_STEPS / WARPS;
constexpr u32 CHAINS = 8;

enum Kind : u32 { PRODUCT, NORM, ATTENTION };
// Waits for all blocks first.
constexpr u32 WAITS = 1;
// A product's rows: of a norm that the block makes itself; of a gate and what it gates, side by side.
constexpr u32 OWN_NORM = 2, GATED = 4;
// A product gives sums of parts of K apart, in f32, for a norm to add up; its result goes through GELU.
constexpr u32 APART = 8, ACTIVATED = 16;
// A norm takes the mean off.
constexpr u32 CENTRED = 32;

// All addresses with the highest bit set are offsets in the working memory; 0 is nothing.
struct Norm {
    // y = norm(a + b): rows, rows of a table by ids, or for b sums of parts of a product and its bias. The sum is kept.
    u64 a, a_ids, b, b_ids, b_bias, gain, shift, sum, y;
    u32 a_rows, b_rows, b_parts, columns;
    float eps;
    // One of all columns, where a block notes that.
    float share;
};
struct Product {
    u64 x, w, bias, out;
    u32 outputs, depth, parts;
    // By which a number times this divides by the parts, where a block notes that.
    u32 inverse;
};
struct Attention {
    u64 qkv, places, k, v, out, positions, angles;
    // The size of heads is SIZE in all phases.
    u32 keys, rows, heads, kv_heads, size, window, angle_rows, warps;
    float scale;
    u32 unused;
};
struct Phase {
    u32 kind, flags;
    // The tiles that a block has of a product, where it notes them.
    u32 first, end;
    union {
        struct { Product product; Norm norm; };
        Attention attention;
    };
};

struct Step {
    const Phase* phases;
    char* scratch;
    u32* fault;
    u32 count, rows;
};

template <typename T> __device__ __forceinline__ T* at(const Step& step, u64 address) {
    constexpr u64 IN_SCRATCH = 1ull << 63;
    return reinterpret_cast<T*>(address & IN_SCRATCH ? (u64)step.scratch + (address & ~IN_SCRATCH) : address);
}

// What other blocks wrote is read past the first cache.
__device__ __forceinline__ uint4 load_shared_by_all(const void* from) {
    uint4 x;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
    return x;
}
__device__ __forceinline__ uint2 load_pair_shared_by_all(const void* from) {
    uint2 x;
    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from));
    return x;
}

// Four neighbours as they are stored, and as numbers.
#if REAL == 0
typedef uint4 Four;
__device__ __forceinline__ Four load_raw(const real* from) { return load_shared_by_all(from); }
__device__ __forceinline__ void widen_four(Four raw, float (&to)[4]) { widen<float>(raw, to); }
#else
typedef uint2 Four;
__device__ __forceinline__ Four load_raw(const real* from) { return load_pair_shared_by_all(from); }
#endif
__device__ __forceinline__ void store_four(real* to, const float (&from)[4]) {
#if REAL == 0
    *reinterpret_cast<uint4*>(to) = narrow<float>(from);
#else
    *reinterpret_cast<uint2*>(to) = narrow_four(from);
#endif
}
__device__ __forceinline__ float rounded(float x) { return to_float(from_float<real>(x)); }

// ---- Waiting -----------------------------------------------------------------------------------------------------

// Warps that compute wait for each other.
__device__ __forceinline__ void wait_for_warps(u32 barrier, u32 warps) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(32 * warps) : "memory");
}
__device__ __forceinline__ void wait_for_block() { asm volatile("bar.sync 15, 256;" ::: "memory"); }
static_assert(THREADS == 256, "as many as the barrier says");
static_assert(TILE == INT8_TILE && PART_STEPS % INT8_CHUNK == 0, "parts of tiles are whole chunks, but for the last");

// ---- Weights -----------------------------------------------------------------------------------------------------

// In eight bits all parts but the last are of full length, and a warp has the same steps of all, as far as they are there: so where it finds
// them does not depend on the part.
__device__ __forceinline__ u32 int8_count(u32 steps) {
    const u32 first = WARP_STEPS * (threadIdx.x / 32);
    return steps > first ? min(steps - first, WARP_STEPS) : 0;
}
__device__ __forceinline__ u32 first_step(const Product& product, u32 part) {
    if (INT8) return min(PART_STEPS * part, product.depth / 32);
    const u32 steps = product.depth / 32 * part;
    return product.parts == 1 ? steps : steps / product.parts;
}

__device__ __forceinline__ void begin_stage(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_row(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
// The same for weights: a step reads each once and all of them fill the second cache several times, so they make room first.
__device__ __forceinline__ u64 policy_of_weights() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void copy_weights(u32 to, const void* from, u32 bytes, u32 barrier, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}
__device__ __forceinline__ void wait_for_stage(u32 barrier, u32 parity) {
    u32 is_there;
    do {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                     : "=r"(is_there) : "r"(barrier), "r"(parity) : "memory");
    } while (!is_there);
}

__device__ __forceinline__ void leave_stage(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

#if REAL != 0
// What is not there may be read while it comes, since nobody wants it: a word behind the instruction tells those who look for races.
__device__ __forceinline__ uint4 load_weights(u32 from) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4]; // unordered" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from));
    return x;
}
// The same of eight bits. They are multiplied as whole numbers; what these are counted in meets their sums.
__device__ __forceinline__ uint2 load_int8_weights(u32 from) {
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2]; // unordered" : "=r"(x.x), "=r"(x.y) : "r"(from));
    return x;
}
__device__ __forceinline__ float load_scale(u32 from) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1]; // unordered" : "=f"(x) : "r"(from));
    return x;
}
#endif

// Lane `tile` of a warp lets the part of a tile come to `to`, in eight bits.
__device__ __forceinline__ void copy_int8_tile(u32 to, const Product& product, u32 tile, u32 begin, u32 bytes, u32 barrier, u64 policy) {
    const char* weights = reinterpret_cast<const char*>(product.w) + (u64)tile * int8_bytes(product.depth / 32);
    copy_weights(to, weights + begin / INT8_CHUNK * INT8_CHUNK_BYTES, bytes, barrier, policy);
}

// ---- Norms -------------------------------------------------------------------------------------------------------

// Where four neighbours of a row lie; nowhere for an id that there is not.
__device__ __forceinline__ const real* place_in_row(const Step& step, u64 rows, u64 ids, u32 table_rows, u32 row, u32 columns,
                                                    u32 column) {
    u64 from = row;
    if (ids) {
        const u32 id = at<u32>(step, ids)[row];
        from = id;
        if (id >= table_rows) {
            if (column == 0) report_fault(step.fault, id, table_rows);
            return nullptr;
        }
    }
    return at<const real>(step, rows) + from * columns + column;
}
__device__ __forceinline__ Four load_if_there(const real* from) { return from ? load_raw(from) : Four(); }

// Two sums over the warps that compute, in their order, given to every thread. `places` has one per warp.
__device__ __forceinline__ float2 sums_of_block(float2 x, float2* places) {
    x.x = warp_sum(x.x);
    x.y = warp_sum(x.y);
    if (threadIdx.x % 32 == 0) places[threadIdx.x / 32] = x;
    wait_for_block();
    float2 sums = make_float2(0.0f, 0.0f);
#pragma unroll
    for (u32 warp = 0; warp < WARPS; warp++) {
        sums.x += places[warp].x;
        sums.y += places[warp].y;
    }
    return sums;
}

// What a norm needs that does not depend on the step.
struct NormWeights {
    Four gain[FOURS], shift[FOURS], bias[FOURS];
    // One of all columns.
    float share;
    __device__ __forceinline__ void load(const Step& step, const Norm& norm) {
        share = 1.0f / (float)norm.columns;
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            const u32 column = (i * THREADS + threadIdx.x) * 4;
            if (column >= norm.columns) continue;
            gain[i] = load_raw(at<const real>(step, norm.gain) + column);
            if (norm.shift) shift[i] = load_raw(at<const real>(step, norm.shift) + column);
            if (norm.b_bias) bias[i] = load_raw(at<const real>(step, norm.b_bias) + column);
        }
    }
};

// The norm of a row of which every thread has its fours, given to `y`.
__device__ __forceinline__ void finish_norm(const Norm& norm, const NormWeights& weights, bool is_centred, float (&x)[FOURS][4], real* y,
                                            float2* places) {
    const u32 columns = norm.columns;
    // The sum of the numbers and that of their squares at once, with one wait.
    float2 sums = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sums.x += x[i][e];
            sums.y += x[i][e] * x[i][e];
        }
    }
    sums = sums_of_block(sums, places);
    const float mean = is_centred ? sums.x * weights.share : 0.0f;
    const float rstd = rsqrtf(fmaxf(sums.y * weights.share - mean * mean, 0.0f) + norm.eps);
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
        const u32 column = (i * THREADS + threadIdx.x) * 4;
        if (column >= columns) continue;
        float gain[4];
        widen_four(weights.gain[i], gain);
#pragma unroll
        for (int e = 0; e < 4; e++) x[i][e] = (x[i][e] - mean) * rstd * gain[e];
        if (norm.shift) {
            float shift[4];
            widen_four(weights.shift[i], shift);
#pragma unroll
            for (int e = 0; e < 4; e++) x[i][e] += shift[e];
        }
        store_four(y + column, x[i]);
    }
}

// ---- Products ----------------------------------------------------------------------------------------------------

__device__ __forceinline__ float load_bias(const Step& step, const Product& product, u32 output) {
    return product.bias && output < product.outputs ? to_float(at<const real>(step, product.bias)[output]) : 0.0f;
}

// A gate's value, sixteen bytes of both operands at a time.
__device__ __forceinline__ uint4 gated(uint4 gate, uint4 up) {
    float gates[WIDTH], values[WIDTH];
    widen<real>(gate, gates);
    widen<real>(up, values);
#pragma unroll
    for (int e = 0; e < WIDTH; e++) values[e] = silu_gate_of(gates[e], values[e]);
    return narrow<real>(values);
}

// ---- Attention ---------------------------------------------------------------------------------------------------

// Lanes take heads in shares of eight neighbours. A lane of a query, a key or a value has KEY_SHARES or VALUE_SHARES of it; which, and of
// which keys, is what the two ways to attend below differ in. Keys are dealt out to chains in strips, and a chain takes FLIGHT strips at a time.
constexpr int SHARE = 8, SHARE_PACKS = SHARE / WIDTH;

struct Share { uint4 packs[SHARE_PACKS]; };

__device__ __forceinline__ Share load_share(const real* from, bool is_there) {
    Share share;
#pragma unroll
    for (int i = 0; i < SHARE_PACKS; i++) share.packs[i] = is_there ? load_shared_by_all(from + i * WIDTH) : make_uint4(0, 0, 0, 0);
    return share;
}
__device__ __forceinline__ void store_share(real* to, const Share& share) {
#pragma unroll
    for (int i = 0; i < SHARE_PACKS; i++) reinterpret_cast<uint4*>(to)[i] = share.packs[i];
}
__device__ __forceinline__ void widen_share(const Share& share, float (&to)[SHARE]) {
#pragma unroll
    for (int i = 0; i < SHARE_PACKS; i++) widen<real>(share.packs[i], to + i * WIDTH);
}
__device__ __forceinline__ Share narrow_share(const float (&from)[SHARE]) {
    Share share;
#pragma unroll
    for (int i = 0; i < SHARE_PACKS; i++) share.packs[i] = narrow<real>(from + i * WIDTH);
    return share;
}

// The lane's share of a head, turned by the angles of the row's position. `other` is what lies as far from it in the other half.
__device__ __forceinline__ Share turned(const Step& step, const Attention& of, const Share& share, const Share& other, u32 row, u32 column) {
    const u32 half = SIZE / 2, position = at<const u32>(step, of.positions)[row];
    const bool is_first = column < half;
    if (position >= of.angle_rows) report_fault(step.fault, position, of.angle_rows);
    const float* angles = at<const float>(step, of.angles) + (u64)min(position, of.angle_rows - 1) * SIZE + column % half;
    float own[SHARE], partner[SHARE];
    widen_share(share, own);
    widen_share(other, partner);
#pragma unroll
    for (int e = 0; e < SHARE; e++) {
        const float sine = angles[half + e];
        own[e] = own[e] * angles[e] + (is_first ? -sine : sine) * partner[e];
    }
    return narrow_share(own);
}

// The greatest of scores, for them to be told from it: where none is there they are told from nothing.
__device__ __forceinline__ float finite(float greatest) { return greatest == MINUS_INFINITY ? 0.0f : greatest; }

// One of two, register by register.
__device__ __forceinline__ Share chosen(bool is_first, const Share& first, const Share& second) {
    Share share;
#pragma unroll
    for (int i = 0; i < SHARE_PACKS; i++) {
        const uint4 a = first.packs[i], b = second.packs[i];
        share.packs[i] = make_uint4(is_first ? a.x : b.x, is_first ? a.y : b.y, is_first ? a.z : b.z, is_first ? a.w : b.w);
    }
    return share;
}

// A chain leaves its sums, its greatest score and its total.
constexpr u32 CHAIN = HEAD + 4;

#if REAL == 0

// What goes with scores that are the natural logarithms of weights.
constexpr float UNIT_OF_SCORES = 1.0f;
__device__ __forceinline__ float weight_of(float score) { return expf(score); }

// A team of lanes has a key and its value.
constexpr int TEAM = HEAD / SHARE, STRIP = 32 / TEAM, FLIGHT = 4, KEY_SHARES = 1, VALUE_SHARES = 1;

__device__ __forceinline__ u32 key_column(int) { return threadIdx.x % TEAM * SHARE; }
__device__ __forceinline__ u32 value_column(int) { return threadIdx.x % TEAM * SHARE; }
// Whether the lane is among the first that have a key, or a value.
__device__ __forceinline__ bool is_first_of_keys() { return threadIdx.x % 32 < TEAM; }
__device__ __forceinline__ bool is_first_of_values() { return threadIdx.x % 32 < TEAM; }

// Keys or values of a team that are on their way at a time.
struct Flight {
    Share shares[FLIGHT];
    __device__ __forceinline__ static int key(int first, int i) { return first + i * (int)CHAINS * STRIP + (int)(threadIdx.x % 32 / TEAM); }
    __device__ __forceinline__ void load(const real* from, u32 stride, int first, int end, int newest) {
        const u32 column = key_column(0);
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const bool is_there = column < SIZE && key(first, i) < end && key(first, i) != newest;
            shares[i] = load_share(from + (is_there ? (u64)key(first, i) * stride + column : 0), is_there);
        }
    }
};
typedef Flight Keys;
typedef Flight Values;

// A query, and what it has gathered of the keys of a chain.
struct Query {
    float query[SHARE], sums[SHARE], max, total;
    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int e = 0; e < SHARE; e++) sums[e] = 0.0f;
        max = MINUS_INFINITY;
        total = 0.0f;
    }
    __device__ __forceinline__ explicit Query(const Share (&of)[KEY_SHARES]) {
        widen_share(of[0], query);
        begin();
    }
    // The scores of some keys, and then what they add of the values.
    __device__ __forceinline__ void score(const Keys& keys, const Share (&new_key)[KEY_SHARES], int first, int end, int newest, float scale,
                                          float (&scores)[FLIGHT]) const {
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const int key = Flight::key(first, i);
            float own[SHARE], score = 0.0f;
            widen_share(chosen(key == newest, new_key[0], keys.shares[i]), own);
#pragma unroll
            for (int e = 0; e < SHARE; e++) score = fmaf(query[e], own[e], score);
#pragma unroll
            for (int distance = TEAM / 2; distance > 0; distance /= 2) score += __shfl_xor_sync(0xffffffffu, score, distance);
            scores[i] = key < end ? score * scale : MINUS_INFINITY;
        }
    }
    __device__ __forceinline__ void add(const Values& values, const Share (&new_value)[VALUE_SHARES], int first, int newest,
                                        const float (&scores)[FLIGHT]) {
        float now = max;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) now = fmaxf(now, scores[i]);
        const float offset = finite(now), shrink = weight_of(max - offset);
        max = now;
        total *= shrink;
#pragma unroll
        for (int e = 0; e < SHARE; e++) sums[e] *= shrink;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const float factor = weight_of(scores[i] - offset);
            float own[SHARE];
            widen_share(chosen(Flight::key(first, i) == newest, new_value[0], values.shares[i]), own);
            total += factor;
#pragma unroll
            for (int e = 0; e < SHARE; e++) sums[e] = fmaf(factor, own[e], sums[e]);
        }
    }
    // Adds up the teams of the warp, always in the same order, and leaves the chain's sums, greatest score and total.
    __device__ __forceinline__ void end(float* to) {
#pragma unroll
        for (int distance = TEAM; distance < 32; distance *= 2) {
            const float now = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, distance));
            const float shrink = weight_of(max - finite(now));
            max = now;
            total *= shrink;
            total += __shfl_xor_sync(0xffffffffu, total, distance);
#pragma unroll
            for (int e = 0; e < SHARE; e++) {
                sums[e] *= shrink;
                sums[e] += __shfl_xor_sync(0xffffffffu, sums[e], distance);
            }
        }
        if (threadIdx.x % 32 < TEAM) {
#pragma unroll
            for (int e = 0; e < SHARE; e++) to[key_column(0) + e] = sums[e];
        }
        if (threadIdx.x % 32 == 0) {
            to[HEAD] = max;
            to[HEAD + 1] = total;
        }
    }
};
typedef float Scores[FLIGHT];

#else

// Scores are logarithms to the base of two.
constexpr float UNIT_OF_SCORES = LOG2_E;
__device__ __forceinline__ float weight_of(float score) { return power_of_two(score); }

// The matrix units take eight keys at a time, of which four neighbouring lanes have one, as their second factor; then sixteen values, of which a lane
// has four, two of either strip, as their first. The query and the weights are in all rows or columns of the other factor, so every four lanes
// get the same, and nothing needs to be handed round. Which places of a head and which keys meet in which instruction does not matter as long as both
// factors agree.
constexpr int STRIP = 8, FLIGHT = HEAD == 64 ? 4 : 2, KEY_SHARES = HEAD / 32, VALUE_SHARES = HEAD / 64;

__device__ __forceinline__ u32 key_column(int share) { return share * 32 + threadIdx.x % 4 * SHARE; }
__device__ __forceinline__ u32 value_column(int share) { return share * 64 + threadIdx.x % 32 / 4 * SHARE; }
// Whether the lane is among the first that have a key, or a value.
__device__ __forceinline__ bool is_first_of_keys() { return threadIdx.x % 32 < 4; }
__device__ __forceinline__ bool is_first_of_values() { return threadIdx.x % 4 == 0; }

__device__ __forceinline__ int first_of_strip(int first, int i) { return first + i * (int)CHAINS * STRIP; }

struct Keys {
    Share shares[FLIGHT][KEY_SHARES];
    __device__ __forceinline__ static int key(int first, int i) { return first_of_strip(first, i) + (int)(threadIdx.x % 32 / 4); }
    __device__ __forceinline__ void load(const real* from, u32 stride, int first, int end, int newest) {
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const bool is_there = key(first, i) < end && key(first, i) != newest;
            const real* own = from + (is_there ? (u64)key(first, i) * stride : 0);
#pragma unroll
            for (int s = 0; s < KEY_SHARES; s++) shares[i][s] = load_share(own + key_column(s), is_there && key_column(s) < SIZE);
        }
    }
};

struct Values {
    Share shares[FLIGHT][2][VALUE_SHARES];
    __device__ __forceinline__ static int key(int first, int i, int neighbour) {
        return first_of_strip(first, i) + (int)(threadIdx.x % 4 * 2) + neighbour;
    }
    __device__ __forceinline__ void load(const real* from, u32 stride, int first, int end, int newest) {
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const bool is_there = key(first, i, n) < end && key(first, i, n) != newest;
                const real* own = from + (is_there ? (u64)key(first, i, n) * stride : 0);
#pragma unroll
                for (int s = 0; s < VALUE_SHARES; s++) shares[i][n][s] = load_share(own + value_column(s), is_there && value_column(s) < SIZE);
            }
        }
    }
};

// The elements at one place of two neighbouring values, side by side.
__device__ __forceinline__ u32 neighbours(const Share& first, const Share& second, int place) {
    const uint4 a = first.packs[0], b = second.packs[0];
    const u32 low[4] = {a.x, a.y, a.z, a.w}, high[4] = {b.x, b.y, b.z, b.w};
    return __byte_perm(low[place / 2], high[place / 2], place % 2 ? 0x7632 : 0x5410);
}

typedef float Scores[FLIGHT][2];

// A query, and what it has gathered of the keys of a chain.
struct Query {
    Share query[KEY_SHARES];
    // Two neighbouring places of values, the first and the third of every four; the others say the same.
    float sums[VALUE_SHARES][SHARE / 2][4], max, total;
    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int s = 0; s < VALUE_SHARES; s++) {
#pragma unroll
            for (int e = 0; e < SHARE / 2; e++) sums[s][e][0] = sums[s][e][1] = sums[s][e][2] = sums[s][e][3] = 0.0f;
        }
        max = MINUS_INFINITY;
        total = 0.0f;
    }
    __device__ __forceinline__ explicit Query(const Share (&of)[KEY_SHARES]) {
#pragma unroll
        for (int s = 0; s < KEY_SHARES; s++) query[s] = of[s];
        begin();
    }
    // The scores of some keys, two of each strip for a lane, and then what they add of the values.
    __device__ __forceinline__ void score(const Keys& keys, const Share (&new_key)[KEY_SHARES], int first, int end, int newest, float scale,
                                          Scores& scores) const {
        float products[FLIGHT][4] = {};
#pragma unroll
        for (int s = 0; s < KEY_SHARES; s++) {
            const uint4 own = query[s].packs[0];
            const u32 even[4] = {own.x, 0, own.y, 0}, odd[4] = {own.z, 0, own.w, 0};
            uint4 other[FLIGHT];
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) {
                other[i] = chosen(Keys::key(first, i) == newest, new_key[s], keys.shares[i][s]).packs[0];
                multiply(products[i], even, other[i].x, other[i].y);
            }
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) multiply(products[i], odd, other[i].z, other[i].w);
        }
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
#pragma unroll
            for (int n = 0; n < 2; n++) scores[i][n] = Values::key(first, i, n) < end ? products[i][n] * scale : MINUS_INFINITY;
        }
    }
    __device__ __forceinline__ void add(const Values& values, const Share (&new_value)[VALUE_SHARES], int first, int newest,
                                        const Scores& scores) {
        float now = max;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) now = fmaxf(now, fmaxf(scores[i][0], scores[i][1]));
        now = four_lanes_max(now);
        const float offset = finite(now), shrink = weight_of(max - offset);
        max = now;
        total *= shrink;
#pragma unroll
        for (int s = 0; s < VALUE_SHARES; s++) {
#pragma unroll
            for (int e = 0; e < SHARE / 2; e++) {
                sums[s][e][0] *= shrink;
                sums[s][e][2] *= shrink;
            }
        }
        u32 weights[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const float low = weight_of(scores[i][0] - offset), high = weight_of(scores[i][1] - offset);
            total += low + high;
            weights[i] = pack(low, high);
        }
#pragma unroll
        for (int i = 0; i < FLIGHT; i += 2) {
#pragma unroll
            for (int s = 0; s < VALUE_SHARES; s++) {
                Share own[2][2];
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    own[n / 2][n % 2] = chosen(Values::key(first, i + n / 2, n % 2) == newest, new_value[s], values.shares[i + n / 2][n % 2][s]);
                }
#pragma unroll
                for (int e = 0; e < SHARE / 2; e++) {
                    const u32 places[4] = {neighbours(own[0][0], own[0][1], 2 * e), neighbours(own[0][0], own[0][1], 2 * e + 1),
                                           neighbours(own[1][0], own[1][1], 2 * e), neighbours(own[1][0], own[1][1], 2 * e + 1)};
                    multiply(sums[s][e], places, weights[i], weights[i + 1]);
                }
            }
        }
    }
    // Leaves the chain's sums, greatest score and total.
    __device__ __forceinline__ void end(float* to) {
        total = four_lanes_sum(total);
        if (threadIdx.x % 4 == 0) {
#pragma unroll
            for (int s = 0; s < VALUE_SHARES; s++) {
#pragma unroll
                for (int e = 0; e < SHARE / 2; e += 2) {
                    *reinterpret_cast<float4*>(to + value_column(s) + 2 * e) =
                        make_float4(sums[s][e][0], sums[s][e][2], sums[s][e + 1][0], sums[s][e + 1][2]);
                }
            }
        }
        if (threadIdx.x % 32 == 0) *reinterpret_cast<float2*>(to + HEAD) = make_float2(max, total);
    }
};

#endif

// The chains that a warp takes of an item, one behind the other.
struct Course {
    const real *k, *v;
    float* chains;
    u32 chain, warps, stride;
    int begin, base, end, newest;
    float scale;
    Share new_key[KEY_SHARES], new_value[VALUE_SHARES];

    // The first key of the chain in the flight that is next.
    __device__ __forceinline__ int first() const { return base + (int)chain * STRIP; }

    __device__ __forceinline__ void load(Keys& keys, Values& values) const {
        keys.load(k, stride, first(), end, newest);
        values.load(v, stride, first(), end, newest);
    }

    // Takes what has come, and lets what follows come into its place; false behind the last.
    __device__ __forceinline__ bool go_on(Keys& keys, Values& values, Query& query) {
        constexpr int STRIDE = (int)CHAINS * STRIP * FLIGHT;
        const int here = first();
        const bool ends_chain = base + STRIDE >= end;
        const u32 taken = chain;
        chain += ends_chain ? warps : 0;
        base = ends_chain ? begin : base + STRIDE;
        const bool is_last = chain >= CHAINS;
        Scores scores;
        query.score(keys, new_key, here, end, newest, scale, scores);
        if (!is_last) keys.load(k, stride, first(), end, newest);
        query.add(values, new_value, here, newest, scores);
        if (!is_last) values.load(v, stride, first(), end, newest);
        if (ends_chain) {
            query.end(chains + taken * CHAIN);
            query.begin();
        }
        return !is_last;
    }

    // Writes the newest key and value where those of the item's cache begin.
    __device__ __forceinline__ void keep_newest(real* keys, real* values) const {
#pragma unroll
        for (int s = 0; s < KEY_SHARES; s++) {
            if (is_first_of_keys() && key_column(s) < SIZE) store_share(keys + (u64)newest * stride + key_column(s), new_key[s]);
        }
#pragma unroll
        for (int s = 0; s < VALUE_SHARES; s++) {
            if (is_first_of_values() && value_column(s) < SIZE) store_share(values + (u64)newest * stride + value_column(s), new_value[s]);
        }
    }
};

// What an item's chains have gathered, together.
struct Joint {
    float shrinks[CHAINS], all;
    const float* chains;
    __device__ __forceinline__ explicit Joint(const float* of) : all(0.0f), chains(of) {
        float now = MINUS_INFINITY;
#pragma unroll
        for (u32 chain = 0; chain < CHAINS; chain++) now = fmaxf(now, chains[chain * CHAIN + HEAD]);
#pragma unroll
        for (u32 chain = 0; chain < CHAINS; chain++) {
            shrinks[chain] = weight_of(chains[chain * CHAIN + HEAD] - now);
            all += chains[chain * CHAIN + HEAD + 1] * shrinks[chain];
        }
    }
    __device__ __forceinline__ real element(u32 place) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 chain = 0; chain < CHAINS; chain++) sum += chains[chain * CHAIN + place] * shrinks[chain];
        return from_float<real>(divide_real(sum, all));
    }
};
