// Attention and its gradient in bf16 and f16 for heads of 64 or 128 elements on Hopper's matrix units, without borders,
// windows and caches.
//
// A warpgroup owns 64 rows, queries in the forward pass and for d_q, keys for d_k and d_v, and walks over tiles of the
// others, which the copy engine brings into a ring of stages that the warpgroups of a block share. There is no warp
// that only copies: the last warp to finish with a stage asks for what comes into it next, so nobody waits for anything
// but data. What keeps the matrix units busy while one warpgroup takes exponentials is the other warpgroups of the
// multiprocessor: as many as registers allow, in blocks as small as the cache's bandwidth allows, so that some are at
// work while others begin or end.
//
// The backward pass calculates scores again from the log-sum-exp, once by queries and once by keys: every gradient has
// one owner, who writes it as numbers of 16 bits or as two copies of eight. Where they are wanted, a warpgroup also
// leaves the sums of the columns of its gradients, before these are rounded: [64 positions each, columns]. Those of d_k are
// none: whatever a key adds to the scores of a query in common with all other keys, the softmax takes away again.
//
// Gradients may be those of the heads from `first_head` on alone, beside a kernel for whole heads that has all before: d_q before it,
// d_k and d_v behind it. These two kernels may run while that one begins and ends, so d_q lets it begin, and the last block of d_k
// and d_v ends after it: what comes behind waits for that block alone.
#include "attention_gradients.cuh"

#if REAL != 0 && defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- Work --------------------------------------------------------------------------------------------------------

// A block's tile, 0 being the longest, and its head among all samples' heads.
struct Work { u32 tile, head; };

// At most MOST heads run at about the same time: few enough that what they read stays in the cache, enough that the long
// tiles of all of them begin before the short ones. They are shared out evenly, because few heads at the end would leave
// multiprocessors idle behind their long tiles.
template <u32 MOST> __device__ __forceinline__ Work work_of(u32 index, u32 tiles, u32 all_heads) {
    u32 turns = (all_heads + MOST - 1) / MOST, together = (all_heads + turns - 1) / turns;
    u32 first = index / (together * tiles) * together;
    u32 count = min(together, all_heads - first), within = index - first * tiles;
    return Work{within / count, first + within % count};
}

// What lies behind the tiles in shared memory: a barrier for what is loaded once, and for each stage two barriers and
// two counts of warps that are done, one for each of its two tiles.
template <int STAGES> struct Ring {
    u32 at;
    __device__ __forceinline__ u32 own() const { return at; }
    __device__ __forceinline__ u32 full(int tile, u32 stage) const { return at + 8 + (tile * STAGES + stage) * 8; }
    __device__ __forceinline__ u32 done(int tile, u32 stage) const {
        return at + 8 + 16 * STAGES + (tile * STAGES + stage) * 4;
    }
    __device__ __forceinline__ void begin() const {
        barrier_begin(own());
        for (u32 stage = 0; stage < STAGES; stage++) {
            for (int tile = 0; tile < 2; tile++) {
                barrier_begin(full(tile, stage));
                store_shared(done(tile, stage), 0u);
            }
        }
        barriers_begun();
    }
};

// Puts a score that makes a probability of zero where a key is not seen: the rows of the lane are queries and see keys
// below `ends`; columns are keys from `key` on.
template <int N> __device__ __forceinline__ void hide_keys(float (&scores)[N], const int (&ends)[2], int key) {
    int column = key + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (column + i / 4 * 8 + i % 2 >= ends[i / 2 % 2]) scores[i] = MINUS_INFINITY;
    }
}

// ---- Forward -----------------------------------------------------------------------------------------------------
//
// Shared memory: the queries of each warpgroup; in each stage some keys and their values; the ring.

constexpr int FORWARD_GROUPS = 2, FORWARD_BLOCKS = 2, FORWARD_STAGES = 2;
// Sums of long heads leave registers for the scores of fewer keys.
constexpr int FORWARD_KEYS = HEAD == 64 ? 128 : 64;
constexpr u32 FORWARD_TOGETHER = 32;
constexpr int FORWARD_TILE = TILE_BYTES<FORWARD_KEYS>;

// What a warpgroup knows of its queries so far.
struct Seen {
    float sums[HEAD / 2], max[2], total[2];
};

// Scores of 2·N keys, whose probabilities take the place of the scores.
template <int N> __device__ __forceinline__ void take_scores(Seen& seen, float (&scores)[N], float log2_scale) {
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float before = seen.max[half], now = before;
#pragma unroll
        for (int i = 2 * half; i < N; i += 4) now = fmaxf(now, fmaxf(scores[i], scores[i + 1]));
        // Every query sees the first key, so from the first tile on this is a number.
        now = four_lanes_max(now);
        float offset = now * log2_scale, sum = 0.0f;
        seen.max[half] = now;
        shrink[half] = power_of_two(before * log2_scale - offset);
#pragma unroll
        for (int i = 2 * half; i < N; i += 4) {
            scores[i] = power_of_two(scores[i] * log2_scale - offset);
            scores[i + 1] = power_of_two(scores[i + 1] * log2_scale - offset);
            sum += scores[i] + scores[i + 1];
        }
        seen.total[half] = seen.total[half] * shrink[half] + sum;
    }
    // Once the largest scores have been met, nothing shrinks any more.
    if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < HEAD / 2; i++) seen.sums[i] *= shrink[i / 2 % 2];
    }
}

// Scores of the first 2·N keys of a tile.
template <int N> __device__ __forceinline__ void score_keys(float (&scores)[N], u32 q_tile, u32 k_tile) {
    products_begin();
    multiply_tiles<GROUP_ROWS, FORWARD_KEYS>(scores, q_tile, k_tile);
    products_commit();
    products_wait<0>();
    pin(scores);
}

// Adds as many values, each times its probability.
template <int K> __device__ __forceinline__ void sum_values(Seen& seen, const u32 (&left)[K][4], u32 v_tile) {
    pin(seen.sums);
    products_begin();
    multiply_left<FORWARD_KEYS>(seen.sums, left, v_tile);
    products_commit();
    products_wait<0>();
    pin(seen.sums);
}

extern "C" __global__ void __launch_bounds__(FORWARD_GROUPS * GROUP_THREADS, FORWARD_BLOCKS)
attention_hopper_forward(MAP q_map, MAP k_map, MAP v_map, real* out, float* log_sum_exp, u32 queries, u32 keys,
                         u32 heads, u32 group_heads, u32 all_heads, u32 causal, float scale) {
    constexpr int GROUPS = FORWARD_GROUPS, STAGES = FORWARD_STAGES, WARPS = GROUPS * GROUP_WARPS;
    constexpr int OWN_TILE = TILE_BYTES<GROUP_ROWS>, STAGE = 2 * FORWARD_TILE;
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 q_tiles = shared_address(memory), stages = q_tiles + GROUPS * OWN_TILE;
    Ring<STAGES> ring{stages + STAGES * STAGE};
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS, group = threadIdx.x / GROUP_THREADS;

    u32 query_tiles = gridDim.x / all_heads;
    Work work = work_of<FORWARD_TOGETHER>(blockIdx.x, query_tiles, all_heads);
    u32 b = work.head / heads, h = work.head % heads;
    int first_query = (int)(query_tiles - 1 - work.tile) * GROUPS * GROUP_ROWS, own = first_query + group * GROUP_ROWS;
    int end = causal ? least(first_query + GROUPS * GROUP_ROWS, keys) : (int)keys;
    int own_end = causal ? least(own + GROUP_ROWS, keys) : (int)keys;
    int tiles = (end + FORWARD_KEYS - 1) / FORWARD_KEYS, own_tiles = (own_end + FORWARD_KEYS - 1) / FORWARD_KEYS;

    // Keys (0) or values (1) of a tile into its stage.
    auto copy = [&](int which, int tile) {
        u32 stage = tile % STAGES;
        barrier_expect(ring.full(which, stage), FORWARD_TILE);
        copy_tile<FORWARD_KEYS>(stages + stage * STAGE + which * FORWARD_TILE, ring.full(which, stage),
                                which ? &v_map : &k_map, h / group_heads, tile * FORWARD_KEYS, b);
    };
    if (threadIdx.x == 0) {
        prefetch_map(&q_map);
        prefetch_map(&k_map);
        prefetch_map(&v_map);
        ring.begin();
        barrier_expect(ring.own(), GROUPS * OWN_TILE);
        for (int i = 0; i < GROUPS; i++) {
            copy_tile<GROUP_ROWS>(q_tiles + i * OWN_TILE, ring.own(), &q_map, h, first_query + i * GROUP_ROWS, b);
        }
        for (int tile = 0; tile < STAGES && tile < tiles; tile++) {
            copy(0, tile);
            copy(1, tile);
        }
    }
    __syncthreads();

    u32 q_tile = q_tiles + group * OWN_TILE;
    int row = own + warp * 16 + lane / 4;
    int ends[2] = {least(row + 1, keys), least(row + 9, keys)};
    if (!causal) ends[0] = ends[1] = keys;
    Seen seen;
#pragma unroll
    for (int i = 0; i < HEAD / 2; i++) seen.sums[i] = 0.0f;
    seen.max[0] = seen.max[1] = MINUS_INFINITY;
    seen.total[0] = seen.total[1] = 0.0f;
    float log2_scale = scale * LOG2_E;

    barrier_wait(ring.own(), 0);
    for (int tile = 0; tile < own_tiles; tile++) {
        u32 stage = tile % STAGES, parity = tile / STAGES % 2, k_tile = stages + stage * STAGE;
        int key = tile * FORWARD_KEYS, hidden = causal ? own + 1 : (int)keys;
        bool refill = lane == 0 && tile + STAGES < tiles;
        barrier_wait(ring.full(0, stage), parity);
        if (FORWARD_KEYS == 64 || own_end - key > 64) {
            float scores[FORWARD_KEYS / 2];
            score_keys(scores, q_tile, k_tile);
            if (refill && is_last(ring.done(0, stage), WARPS)) copy(0, tile + STAGES);
            if (key + FORWARD_KEYS > hidden) hide_keys(scores, ends, key);
            take_scores(seen, scores, log2_scale);
            u32 left[FORWARD_KEYS / 2 / 8][4];
            round_left(left, scores);
            barrier_wait(ring.full(1, stage), parity);
            sum_values(seen, left, k_tile + FORWARD_TILE);
        } else {
            // The second half of the tile is of no use.
            float scores[32];
            score_keys(scores, q_tile, k_tile);
            if (refill && is_last(ring.done(0, stage), WARPS)) copy(0, tile + STAGES);
            if (key + 64 > hidden) hide_keys(scores, ends, key);
            take_scores(seen, scores, log2_scale);
            u32 left[32 / 8][4];
            round_left(left, scores);
            barrier_wait(ring.full(1, stage), parity);
            sum_values(seen, left, k_tile + FORWARD_TILE);
        }
        if (refill && is_last(ring.done(1, stage), WARPS)) copy(1, tile + STAGES);
    }

    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = four_lanes_sum(seen.total[half]);
        factors[half] = 1.0f / sum;
        int query = row + 8 * half;
        if (lane % 4 == 0 && query < (int)queries) {
            log_sum_exp[(u64)work.head * queries + query] = seen.max[half] * scale + logf(sum);
        }
    }
    group_wait(group);
    store_sums(seen.sums, factors, q_tile + warp * 16 * SHEET_ROW_BYTES,
                      out + ((u64)b * queries * heads + h) * HEAD, (u64)heads * HEAD, own + warp * 16, queries);
}

// ---- Backward, by queries ----------------------------------------------------------------------------------------
//
// Before its gradient, a warpgroup works out what the backward pass needs of each of its queries, the log-sum-exp in
// powers of two and delta = Σ d_out·out, and leaves both behind for the pass by keys: for every 64 queries 64 of the
// one, then 64 of the other.
//
// Shared memory: of each warpgroup its queries and its gradients of the output; in each stage 64 keys and their values;
// the ring.

constexpr int BY_QUERY_GROUPS = HEAD == 64 ? 2 : 3, BY_QUERY_BLOCKS = HEAD == 64 ? 2 : 1;
constexpr int BY_QUERY_STAGES = HEAD == 64 ? 4 : 3;
constexpr u32 BY_QUERY_TOGETHER = 32;
constexpr int OTHERS = 64, OTHERS_TILE = TILE_BYTES<OTHERS>;

template <class To>
__device__ __forceinline__ void d_q_of(const TensorMap& d_out_map, const TensorMap& q_map, const TensorMap& k_map,
                                       const TensorMap& v_map, const real* d_out, const real* out,
                                       const float* log_sum_exp, float* statistics, To d_q, float* column_sums,
                                       u32 queries, u32 keys, u32 heads, u32 group_heads, u32 first_head,
                                       u32 all_heads, u32 columns, u32 causal, float scale) {
    constexpr int GROUPS = BY_QUERY_GROUPS, STAGES = BY_QUERY_STAGES, WARPS = GROUPS * GROUP_WARPS;
    constexpr int OWN_TILE = TILE_BYTES<GROUP_ROWS>, STAGE = 2 * OTHERS_TILE;
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 own_tiles = shared_address(memory), stages = own_tiles + GROUPS * 2 * OWN_TILE;
    Ring<STAGES> ring{stages + STAGES * STAGE};
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS, group = threadIdx.x / GROUP_THREADS;

    let_next_begin();
    u32 own_heads = all_heads - first_head, query_tiles = gridDim.x / own_heads;
    Work work = work_of<BY_QUERY_TOGETHER>(blockIdx.x, query_tiles, own_heads);
    work.head += first_head;
    u32 b = work.head / heads, h = work.head % heads;
    int first_query = (int)(query_tiles - 1 - work.tile) * GROUPS * GROUP_ROWS, own = first_query + group * GROUP_ROWS;
    int end = causal ? least(first_query + GROUPS * GROUP_ROWS, keys) : (int)keys;
    int own_end = causal ? least(own + GROUP_ROWS, keys) : (int)keys, tiles = (end + OTHERS - 1) / OTHERS;

    auto copy = [&](int which, int tile) {
        u32 stage = tile % STAGES;
        barrier_expect(ring.full(which, stage), OTHERS_TILE);
        copy_tile<OTHERS>(stages + stage * STAGE + which * OTHERS_TILE, ring.full(which, stage),
                          which ? &v_map : &k_map, h / group_heads, tile * OTHERS, b);
    };
    if (threadIdx.x == 0) {
        prefetch_map(&d_out_map);
        prefetch_map(&q_map);
        prefetch_map(&k_map);
        prefetch_map(&v_map);
        ring.begin();
        barrier_expect(ring.own(), GROUPS * 2 * OWN_TILE);
        for (int i = 0; i < GROUPS; i++) {
            u32 to = own_tiles + i * 2 * OWN_TILE;
            copy_tile<GROUP_ROWS>(to, ring.own(), &q_map, h, first_query + i * GROUP_ROWS, b);
            copy_tile<GROUP_ROWS>(to + OWN_TILE, ring.own(), &d_out_map, h, first_query + i * GROUP_ROWS, b);
        }
        for (int tile = 0; tile < STAGES && tile < tiles; tile++) {
            copy(0, tile);
            copy(1, tile);
        }
    }

    int row = own + warp * 16 + lane / 4;
    int ends[2] = {least(row + 1, keys), least(row + 9, keys)};
    if (!causal) ends[0] = ends[1] = keys;
    float base[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int query = row + 8 * half;
        base[half] = delta[half] = 0.0f;
        if (query < (int)queries) {
            base[half] = log_sum_exp[(u64)work.head * queries + query] * LOG2_E;
            u64 at = (((u64)b * queries + query) * heads + h) * HEAD + lane % 4 * 8;
#pragma unroll
            for (int i = 0; i < HEAD; i += 32) {
                Wide<real> x = load_wide(d_out + at + i), y = load_wide(out + at + i);
#pragma unroll
                for (int j = 0; j < 8; j++) delta[half] += to_float(x.at[j]) * to_float(y.at[j]);
            }
        }
        delta[half] = four_lanes_sum(delta[half]);
        u32 blocks = (queries + GROUP_ROWS - 1) / GROUP_ROWS, block = query / GROUP_ROWS;
        if (lane % 4 == 0 && block < blocks) {
            float* to = statistics + ((u64)work.head * blocks + block) * 2 * GROUP_ROWS + query % GROUP_ROWS;
            to[0] = base[half];
            to[GROUP_ROWS] = delta[half];
        }
    }
    __syncthreads();

    u32 q_tile = own_tiles + group * 2 * OWN_TILE, d_out_tile = q_tile + OWN_TILE;
    float log2_scale = scale * LOG2_E, sums[HEAD / 2];
#pragma unroll
    for (int i = 0; i < HEAD / 2; i++) sums[i] = 0.0f;

    barrier_wait(ring.own(), 0);
    u32 left[OTHERS / 16][4];
    auto release = [&](int which, int tile) {
        if (lane == 0 && tile + STAGES < tiles && is_last(ring.done(which, tile % STAGES), WARPS)) {
            copy(which, tile + STAGES);
        }
    };
    for (int tile = 0; tile * OTHERS < own_end; tile++) {
        u32 stage = tile % STAGES, parity = tile / STAGES % 2, k_tile = stages + stage * STAGE;
        float scores[OTHERS / 2], slopes[OTHERS / 2];
        barrier_wait(ring.full(0, stage), parity);
        products_begin();
        multiply_tiles<GROUP_ROWS, OTHERS>(scores, q_tile, k_tile);
        products_commit();
        barrier_wait(ring.full(1, stage), parity);
        products_begin();
        multiply_tiles<GROUP_ROWS, OTHERS>(slopes, d_out_tile, k_tile + OTHERS_TILE);
        products_commit();
        products_wait<1>();
        pin(scores);
        int key = tile * OTHERS;
        if (key + OTHERS > (causal ? own + 1 : (int)keys)) hide_keys(scores, ends, key);
#pragma unroll
        for (int i = 0; i < OTHERS / 2; i++) scores[i] = power_of_two(scores[i] * log2_scale - base[i / 2 % 2]);
        products_wait<0>();
        pin(slopes);
        release(1, tile);
#pragma unroll
        for (int i = 0; i < OTHERS / 2; i++) scores[i] *= slopes[i] - delta[i / 2 % 2];
        round_left(left, scores);
        products_begin();
        multiply_left<OTHERS>(sums, left, k_tile);
        products_commit();
        products_wait<0>();
        pin(sums);
        release(0, tile);
    }

    group_wait(group);
    d_q.store(sums, scale, memory + (q_tile - own_tiles), group, b, h * HEAD, own, queries);
    if (column_sums && own < (int)queries) {
        u64 chunk = (u64)b * ((queries + GROUP_ROWS - 1) / GROUP_ROWS) + own / GROUP_ROWS;
        leave_column_sums(sums, scale, memory + (d_out_tile - own_tiles), column_sums + chunk * columns + h * HEAD, group,
                          own + warp * 16, queries);
    }
}

#define BY_QUERIES extern "C" __global__ void __launch_bounds__(BY_QUERY_GROUPS * GROUP_THREADS, BY_QUERY_BLOCKS)

BY_QUERIES attention_hopper_d_q(MAP d_out_map, MAP q_map, MAP k_map, MAP v_map, const real* d_out, const real* out,
                                const float* log_sum_exp, float* statistics, real* d_q, float* column_sums, u32 queries,
                                u32 keys, u32 heads, u32 group_heads, u32 first_head, u32 all_heads, u32 stride, u32 columns,
                                u32 causal, float scale) {
    d_q_of(d_out_map, q_map, k_map, v_map, d_out, out, log_sum_exp, statistics, Halves{d_q, stride}, column_sums,
           queries, keys, heads, group_heads, first_head, all_heads, columns, causal, scale);
}

BY_QUERIES attention_hopper_d_q_eight(MAP d_out_map, MAP q_map, MAP k_map, MAP v_map, const real* d_out, const real* out,
                                      const float* log_sum_exp, float* statistics, unsigned char* rows,
                                      unsigned char* transposed, float* column_sums, u32 queries, u32 keys, u32 heads,
                                      u32 group_heads, u32 first_head, u32 all_heads, u32 stride, u32 columns, u32 causal,
                                      float scale, const u32* partials, float* unit, u32 top) {
    const Bytes d_q{rows, transposed, stride, (u64)(all_heads / heads) * queries, scale_from<PARTIALS>(partials, top)};
    // Where a kernel for whole heads has those before, it says so.
    if (first_head == 0 && blockIdx.x == 0 && threadIdx.x == 0) *unit = 1.0f / d_q.scale;
    d_q_of(d_out_map, q_map, k_map, v_map, d_out, out, log_sum_exp, statistics, d_q, column_sums, queries, keys, heads,
           group_heads, first_head, all_heads, columns, causal, scale);
}

// ---- Backward, by keys -------------------------------------------------------------------------------------------
//
// Shared memory: of each warpgroup its keys and its values; in each stage 64 queries and their gradients of the output;
// the statistics of the stages' queries; the ring. The queries of all heads that read the same keys come one after
// another.

constexpr int BY_KEY_GROUPS = 1, BY_KEY_BLOCKS = HEAD == 64 ? 3 : 2, BY_KEY_STAGES = HEAD == 64 ? 3 : 2;
constexpr u32 BY_KEY_TOGETHER = 192;

template <class To>
__device__ __forceinline__ void d_kv_of(const TensorMap& d_out_map, const TensorMap& q_map, const TensorMap& k_map,
                                        const TensorMap& v_map, const float* statistics, To d_k, To d_v,
                                        float* k_column_sums, float* v_column_sums, u32 queries, u32 keys, u32 heads,
                                        u32 group_heads, u32 first_kv_head, u32 all_kv_heads, u32 columns, u32 causal,
                                        float scale) {
    constexpr int GROUPS = BY_KEY_GROUPS, STAGES = BY_KEY_STAGES;
    constexpr int OWN_TILE = TILE_BYTES<GROUP_ROWS>, STAGE = 2 * OTHERS_TILE;
    constexpr int STATISTICS_BYTES = 2 * OTHERS * sizeof(float);
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 own_tiles = shared_address(memory), stages = own_tiles + GROUPS * 2 * OWN_TILE;
    u32 known = stages + STAGES * STAGE;
    Ring<STAGES> ring{known + STAGES * STATISTICS_BYTES};
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS, group = threadIdx.x / GROUP_THREADS;

    u32 kv_heads = heads / group_heads, own_heads = all_kv_heads - first_kv_head;
    Work work = work_of<BY_KEY_TOGETHER>(blockIdx.x, gridDim.x / own_heads, own_heads);
    work.head += first_kv_head;
    u32 b = work.head / kv_heads, h = work.head % kv_heads;
    int first_key = (int)work.tile * GROUPS * GROUP_ROWS, own = first_key + group * GROUP_ROWS;
    // Blocks of queries, and the first that sees one of the keys; `tiles` of them for all heads.
    int blocks = ((int)queries + OTHERS - 1) / OTHERS, first_block = causal ? least(first_key / OTHERS, blocks) : 0;
    int each = blocks - first_block, tiles = each * (int)group_heads;

    auto copy = [&](int which, int tile) {
        u32 stage = tile % STAGES, barrier = ring.full(which, stage), to = stages + stage * STAGE;
        u32 head = h * group_heads + tile / each, block = first_block + tile % each;
        barrier_expect(barrier, which ? OTHERS_TILE : OTHERS_TILE + STATISTICS_BYTES);
        if (which == 0) {
            copy_tile<OTHERS>(to, barrier, &q_map, head, block * OTHERS, b);
            copy_bytes(known + stage * STATISTICS_BYTES, barrier,
                       statistics + (((u64)b * heads + head) * blocks + block) * 2 * OTHERS, STATISTICS_BYTES);
        } else {
            copy_tile<OTHERS>(to + OTHERS_TILE, barrier, &d_out_map, head, block * OTHERS, b);
        }
    };
    if (threadIdx.x == 0) {
        prefetch_map(&d_out_map);
        prefetch_map(&q_map);
        prefetch_map(&k_map);
        prefetch_map(&v_map);
        ring.begin();
        barrier_expect(ring.own(), GROUPS * 2 * OWN_TILE);
        for (int i = 0; i < GROUPS; i++) {
            u32 to = own_tiles + i * 2 * OWN_TILE;
            copy_tile<GROUP_ROWS>(to, ring.own(), &k_map, h, first_key + i * GROUP_ROWS, b);
            copy_tile<GROUP_ROWS>(to + OWN_TILE, ring.own(), &v_map, h, first_key + i * GROUP_ROWS, b);
        }
        for (int tile = 0; tile < STAGES && tile < tiles; tile++) {
            copy(0, tile);
            copy(1, tile);
        }
    }
    __syncthreads();

    u32 own_k = own_tiles + group * 2 * OWN_TILE, own_v = own_k + OWN_TILE;
    float log2_scale = scale * LOG2_E, k_sums[HEAD / 2], v_sums[HEAD / 2];
#pragma unroll
    for (int i = 0; i < HEAD / 2; i++) k_sums[i] = v_sums[i] = 0.0f;

    barrier_wait(ring.own(), 0);
    int block = first_block;
    u32 slope_left[OTHERS / 16][4];
    // Every thread has loaded statistics of the tile, so all of them meet before the copy engine writes there again.
    auto release = [&](int tile) {
        __syncthreads();
        if (threadIdx.x == 0 && tile + STAGES < tiles) {
            copy(0, tile + STAGES);
            copy(1, tile + STAGES);
        }
    };
    for (int tile = 0; tile < tiles; tile++, block = block + 1 < blocks ? block + 1 : first_block) {
        u32 stage = tile % STAGES, parity = tile / STAGES % 2, q_tile = stages + stage * STAGE;
        u32 d_out_tile = q_tile + OTHERS_TILE, bases = known + stage * STATISTICS_BYTES + lane % 4 * 8;
        int query = block * OTHERS;
        barrier_wait(ring.full(0, stage), parity);
        // Even who has no use for a tile waits for it, so as to be never a round of the ring ahead.
        if (GROUPS > 1 && (own >= (int)keys || (causal && query + OTHERS <= own))) {
            barrier_wait(ring.full(1, stage), parity);
            release(tile);
        } else {
            float scores[OTHERS / 2], slopes[OTHERS / 2];
            products_begin();
            multiply_tiles<GROUP_ROWS, OTHERS>(scores, own_k, q_tile);
            products_commit();
            barrier_wait(ring.full(1, stage), parity);
            products_begin();
            multiply_tiles<GROUP_ROWS, OTHERS>(slopes, own_v, d_out_tile);
            products_commit();
            products_wait<1>();
            pin(scores);
            if (causal && query < own + GROUP_ROWS) {
                int least_query = own + warp * 16 + lane / 4, column = query + lane % 4 * 2;
#pragma unroll
                for (int i = 0; i < OTHERS / 2; i++) {
                    if (column + i / 4 * 8 + i % 2 < least_query + i / 2 % 2 * 8) scores[i] = MINUS_INFINITY;
                }
            }
#pragma unroll
            for (int i = 0; i < OTHERS / 2; i += 4) {
                float2 base = load_shared_pair(bases + i / 4 * 32);
                scores[i] = power_of_two(scores[i] * log2_scale - base.x);
                scores[i + 1] = power_of_two(scores[i + 1] * log2_scale - base.y);
                scores[i + 2] = power_of_two(scores[i + 2] * log2_scale - base.x);
                scores[i + 3] = power_of_two(scores[i + 3] * log2_scale - base.y);
            }
            u32 left[OTHERS / 16][4];
            round_left(left, scores);
            products_wait<0>();
            pin(slopes);
            products_begin();
            multiply_left<OTHERS>(v_sums, left, d_out_tile);
            products_commit();
#pragma unroll
            for (int i = 0; i < OTHERS / 2; i += 4) {
                float2 delta = load_shared_pair(bases + OTHERS * 4 + i / 4 * 32);
                scores[i] *= slopes[i] - delta.x;
                scores[i + 1] *= slopes[i + 1] - delta.y;
                scores[i + 2] *= slopes[i + 2] - delta.x;
                scores[i + 3] *= slopes[i + 3] - delta.y;
            }
            round_left(slope_left, scores);
            products_begin();
            multiply_left<OTHERS>(k_sums, slope_left, q_tile);
            products_commit();
            products_wait<0>();
            pin(v_sums);
            pin(k_sums);
            release(tile);
        }
    }

    group_wait(group);
    d_k.store(k_sums, scale, memory + (own_k - own_tiles), group, b, h * HEAD, own, keys);
    d_v.store(v_sums, 1.0f, memory + (own_v - own_tiles), group, b, h * HEAD, own, keys);
    if (k_column_sums) {
        static_assert(GROUPS == 1, "nobody works on the stages any more");
        u64 chunk = (u64)b * ((keys + GROUP_ROWS - 1) / GROUP_ROWS) + own / GROUP_ROWS, to = chunk * columns + h * HEAD;
        if (threadIdx.x < HEAD) k_column_sums[to + threadIdx.x] = 0.0f;
        leave_column_sums(v_sums, 1.0f, memory + (stages - own_tiles), v_column_sums + to, group, own + warp * 16, keys);
    }
    if (blockIdx.x + 1 == gridDim.x) wait_for_kernel_before();
}

#define BY_KEYS extern "C" __global__ void __launch_bounds__(BY_KEY_GROUPS * GROUP_THREADS, BY_KEY_BLOCKS)

BY_KEYS attention_hopper_d_kv(MAP d_out_map, MAP q_map, MAP k_map, MAP v_map, const float* statistics, real* d_k, real* d_v,
                              float* k_column_sums, float* v_column_sums, u32 queries, u32 keys, u32 heads,
                              u32 group_heads, u32 first_kv_head, u32 all_kv_heads, u32 stride, u32 columns, u32 causal,
                              float scale) {
    d_kv_of(d_out_map, q_map, k_map, v_map, statistics, Halves{d_k, stride}, Halves{d_v, stride}, k_column_sums,
            v_column_sums, queries, keys, heads, group_heads, first_kv_head, all_kv_heads, columns, causal, scale);
}

BY_KEYS attention_hopper_d_kv_eight(MAP d_out_map, MAP q_map, MAP k_map, MAP v_map, const float* statistics,
                                    unsigned char* k_rows, unsigned char* k_transposed, unsigned char* v_rows,
                                    unsigned char* v_transposed, float* k_column_sums, float* v_column_sums, u32 queries,
                                    u32 keys, u32 heads, u32 group_heads, u32 first_kv_head, u32 all_kv_heads, u32 stride,
                                    u32 columns, u32 causal, float scale, const u32* partials, u32 top) {
    const u64 positions = (u64)(all_kv_heads / (heads / group_heads)) * keys;
    const float bytes_scale = scale_from<PARTIALS>(partials, top);
    d_kv_of(d_out_map, q_map, k_map, v_map, statistics, Bytes{k_rows, k_transposed, stride, positions, bytes_scale},
            Bytes{v_rows, v_transposed, stride, positions, bytes_scale}, k_column_sums, v_column_sums, queries, keys, heads,
            group_heads, first_kv_head, all_kv_heads, columns, causal, scale);
}

#endif
