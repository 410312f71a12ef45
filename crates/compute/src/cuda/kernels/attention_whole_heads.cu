// Attention's gradient in bf16 and f16 for heads of 64 elements on Hopper's matrix units, in one kernel: five products of a tile and
// one pass of exponentials, where gradients by queries and by keys (attention_hopper.cu) need seven and two.
//
// A block stays on its multiprocessor and takes whole heads, one after another. It walks over a head's keys, KEYS at a time, and for
// these over the queries, QUERIES at a time. Four warpgroups have a part each:
//
// - Two own 64 keys each. They multiply keys and queries, values and gradients of the output, take exponentials, sum up d_k and
//   d_v, and leave the slopes of the scores in shared memory. Values are in registers, as the left side of their product.
// - One multiplies slopes and keys: d_q of a tile of queries, as far as these keys go. What the keys before gave is in global
//   memory, in an order that suits registers, and each thread adds to numbers that no other thread touches, so the order of sums is
//   fixed. The block owns the head, so these numbers have to pass through nothing but the second cache.
// - One warp of the last asks the copy engine for what comes next; the others work out what is needed of each query of the next
//   head: the log-sum-exp in powers of two and delta = Σ d_out·out.
//
// Heads that are left over when all blocks have as many are computed by attention_hopper.cu, before and behind. Of what is before the
// blocks need nothing: they begin as soon as there is room, and let begin what is behind once all before has ended.
//
// Positions come in whole KEYS. What is read or written only once makes room in the cache for what is met again with the next keys:
// queries, gradients of the output, and the sums of d_q.
#include "attention_gradients.cuh"

#if REAL != 0 && defined(__CUDA_ARCH_FEAT_SM90_ALL)

static_assert(HEAD == 64, "sums of longer heads have no room in registers");

constexpr int KEYS = 128, QUERIES = 64, STAGES = 4, SLOTS = 2, THREADS = 512;
// Registers of a thread that owns keys, of one that sums up d_q, and of the others.
constexpr int BY_KEY_REGISTERS = 200, BY_QUERY_REGISTERS = 72, OTHER_REGISTERS = 40;

// ---- Shared memory -----------------------------------------------------------------------------------------------
//
// Keys of this block of them and of the next; values of the next; in each stage queries and gradients of the output; in each slot
// slopes, a row for each key; a tile for each warpgroup that writes gradients, and room for sums of columns; barriers; what is
// known of the queries of this head and of the next.

constexpr int TILE = QUERIES * SHEET_ROW_BYTES;
constexpr int AT_K = 0, AT_V = 4 * TILE, AT_STAGES = 6 * TILE, AT_SLOPES = AT_STAGES + STAGES * 2 * TILE;
constexpr int AT_TILES = AT_SLOPES + SLOTS * 2 * TILE, AT_PARTS = AT_TILES + 3 * TILE;
constexpr int AT_BARRIERS = AT_PARTS + 3 * COLUMN_SUMS_BYTES, AT_KNOWN = AT_BARRIERS + 256;
// For every 64 queries 64 of the one number, then 64 of the other.
constexpr int KNOWN_BYTES = 2 * sizeof(float);

struct Places {
    u32 base;
    __device__ __forceinline__ u32 barrier(int index) const { return base + AT_BARRIERS + index * 8; }
    // Keys and values are there; all have begun with them, so that those before are of no use any more.
    __device__ __forceinline__ u32 keys_there() const { return barrier(0); }
    __device__ __forceinline__ u32 keys_begun() const { return barrier(1); }
    // All is known of the next head's queries; both owners of keys have begun with a head.
    __device__ __forceinline__ u32 known_there() const { return barrier(2); }
    __device__ __forceinline__ u32 head_begun() const { return barrier(3); }
    __device__ __forceinline__ u32 stage_there(u32 n) const { return barrier(4 + n % STAGES); }
    __device__ __forceinline__ u32 stage_done(u32 n) const { return barrier(4 + STAGES + n % STAGES); }
    __device__ __forceinline__ u32 slopes_there(u32 n) const { return barrier(4 + 2 * STAGES + n % SLOTS); }
    __device__ __forceinline__ u32 slopes_done(u32 n) const { return barrier(4 + 2 * STAGES + SLOTS + n % SLOTS); }

    __device__ __forceinline__ u32 k_tile(u32 turn) const { return base + AT_K + turn % 2 * 2 * TILE; }
    __device__ __forceinline__ u32 q_tile(u32 n) const { return base + AT_STAGES + n % STAGES * 2 * TILE; }
    __device__ __forceinline__ u32 slopes(u32 n) const { return base + AT_SLOPES + n % SLOTS * 2 * TILE; }
    __device__ __forceinline__ u32 known(u32 head_turn, u32 positions) const {
        return base + AT_KNOWN + head_turn % 2 * positions * KNOWN_BYTES;
    }

    __device__ __forceinline__ void begin() const {
        barrier_begin(keys_there());
        barrier_begin_counted(keys_begun(), 3 * GROUP_WARPS);
        barrier_begin_counted(known_there(), GROUP_WARPS - 1);
        barrier_begin_counted(head_begun(), 2 * GROUP_WARPS);
        for (int i = 0; i < STAGES; i++) {
            barrier_begin(stage_there(i));
            barrier_begin_counted(stage_done(i), 2 * GROUP_WARPS);
        }
        for (int i = 0; i < SLOTS; i++) {
            barrier_begin_counted(slopes_there(i), 2 * GROUP_WARPS);
            barrier_begin_counted(slopes_done(i), GROUP_WARPS);
        }
        barriers_begun();
    }
};
static_assert(4 + 2 * STAGES + 2 * SLOTS <= 256 / 8, "barriers have room");

// ---- Products ----------------------------------------------------------------------------------------------------

// Operands differ in the lower half alone, so that registers of the warp hold what they are made of.
__device__ __forceinline__ u32 lower_half(u32 address, u32 sheet_bytes) {
    return (address >> 4 & 0x3fff) | sheet_bytes >> 4 << 16;
}
__device__ __forceinline__ u64 whole_operand(u32 lower) {
    u64 both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(lower), "r"((1024u >> 4) | 1u << 30));
    return both;
}

#define FRESH_8(d, i) \
    "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3]), "=f"(d[i + 4]), "=f"(d[i + 5]), "=f"(d[i + 6]), \
    "=f"(d[i + 7])
#define FRESH_32(d) FRESH_8(d, 0), FRESH_8(d, 8), FRESH_8(d, 16), FRESH_8(d, 24)

// scores [64, 64] = (64 rows of a tile) · (64 rows of another)ᵀ. They depend on nothing that was in their registers.
__device__ __forceinline__ void multiply_fresh(float (&scores)[32], u32 left, u32 right) {
    u32 a = lower_half(left, 16), b = lower_half(right, 16);
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16" PRODUCT_TYPES
                 "{" PLACES_32 "}, %32, %33, add, 1, 1, 0, 0;\n}"
                 : FRESH_32(scores) : "l"(whole_operand(a)), "l"(whole_operand(b)));
#pragma unroll
    for (int k = 1; k < 4; k++) product_rows<true>(scores, whole_operand(a + k * 2), whole_operand(b + k * 2));
}
// The same with the rows on the left in registers.
__device__ __forceinline__ void multiply_fresh(float (&scores)[32], const u32 (&left)[4][4], u32 right) {
    u32 b = lower_half(right, 16);
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16" PRODUCT_TYPES
                 "{" PLACES_32 "}, {%32, %33, %34, %35}, %36, add, 1, 1, 0;\n}"
                 : FRESH_32(scores)
                 : "r"(left[0][0]), "r"(left[0][1]), "r"(left[0][2]), "r"(left[0][3]), "l"(whole_operand(b)));
#pragma unroll
    for (int k = 1; k < 4; k++) {
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16" PRODUCT_TYPES
                     "{" PLACES_32 "}, {%32, %33, %34, %35}, %36, add, 1, 1, 0;\n}"
                     : NUMBERS_32(scores, 0)
                     : "r"(left[k][0]), "r"(left[k][1]), "r"(left[k][2]), "r"(left[k][3]), "l"(whole_operand(b + k * 2)));
    }
}
// sums [64, 64] += left [64, 64] · (rows of a tile).
__device__ __forceinline__ void add_left(float (&sums)[32], const u32 (&left)[4][4], u32 right) {
    u32 b = lower_half(right, TILE);
#pragma unroll
    for (int k = 0; k < 4; k++) product_columns(sums, left[k], whole_operand(b + k * 128));
}
// sums [64, 64] += (KEYS rows of 64 queries)ᵀ · (KEYS rows of 64 elements).
__device__ __forceinline__ void add_transposed(float (&sums)[32], u32 left, u32 right) {
    u32 a = lower_half(left, TILE), b = lower_half(right, TILE);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16" PRODUCT_TYPES
                     "{" PLACES_32 "}, %32, %33, add, 1, 1, 1, 1;\n}"
                     : NUMBERS_32(sums, 0) : "l"(whole_operand(a + k * 128)), "l"(whole_operand(b + k * 128)));
    }
}

// ---- Where gradients go --------------------------------------------------------------------------------------------

// As `Halves`, whose numbers stay in the cache as long as any; these are the first to leave it.
struct LeavingHalves {
    real* to;
    u32 stride;
    __device__ __forceinline__ void store(const float (&sums)[32], float factor, unsigned char* tile, int group, u32 sample,
                                          u32 column, int own, u32 positions) const {
        int warp = threadIdx.x / 32 % GROUP_WARPS;
        store_rows(sums, factor, shared_address(tile) + warp * 16 * SHEET_ROW_BYTES,
                   to + (u64)sample * positions * stride + column, stride, own + warp * 16, positions);
    }

    // A warp's 16 rows, by way of its own rows of a tile.
    static __device__ __forceinline__ void store_rows(const float (&sums)[32], float factor, u32 rows, real* head, u64 stride,
                                                      int first, int positions) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 pairs[4];
#pragma unroll
            for (int i = 0; i < 4; i++) pairs[i] = pack(sums[8 * k + 2 * i] * factor, sums[8 * k + 2 * i + 1] * factor);
            int row = lane % 16, piece = 2 * k + lane / 16;
            store_matrices(rows + row * SHEET_ROW_BYTES + ((piece ^ (row & 7)) << 4), pairs);
        }
        __syncwarp();
#pragma unroll
        for (int index = 0; index < 4; index++) {
            int place = index * 32 + lane, row = place / 8, piece = place % 8;
            if (first + row >= positions) continue;
            uint4 x = load_shared(rows + row * SHEET_ROW_BYTES + ((piece ^ (row & 7)) << 4));
            asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;"
                         ::"l"(head + (u64)(first + row) * stride + piece * 8), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w),
                         "l"(first_to_leave()) : "memory");
        }
    }
};

// ---- Parts -------------------------------------------------------------------------------------------------------

template <class To> struct Gradient {
    const real *d_out, *out;
    const float* log_sum_exp;
    // Sums of d_q: of each block, and in it for each tile of queries, four neighbours of each thread, eight times.
    float* sums;
    To d_q, d_k, d_v;
    // Sums of the columns, [64 positions each, columns], where they are wanted. Those of d_k are none: see attention_hopper.cu.
    float *q_column_sums, *k_column_sums, *v_column_sums;
    // Heads of a sample, and how many of all samples' heads it takes.
    u32 positions, heads, own_heads, columns;
    bool causal;
    float scale;

    __device__ __forceinline__ int tiles() const { return positions / QUERIES; }
    __device__ __forceinline__ int blocks() const { return positions / KEYS; }
    // The first tile whose queries see keys of the block.
    __device__ __forceinline__ int first_tile(int block) const { return causal ? block * (KEYS / QUERIES) : 0; }

    // Where a head begins in the output and its gradient.
    __device__ __forceinline__ u64 first_element(u32 head) const {
        return ((u64)(head / heads) * positions * heads + head % heads) * HEAD;
    }

    // What is to be known of 4·ROUNDS queries from `query` on, by a warp: eight lanes have a row. The head is given by where it begins,
    // so that nothing is divided for every few queries: the next head waits for the last of them.
    template <int ROUNDS>
    static __device__ __forceinline__ void know(u32 to, const real* out, const real* d_out, const float* log_sum_exp,
                                                u32 row_elements, int query) {
        const int lane = threadIdx.x % 32, piece = lane % 8, own = query + lane / 8 + 4 * (piece % ROUNDS);
        const u64 first = (u64)(query + lane / 8) * row_elements + piece * 8;
        uint4 x[ROUNDS], y[ROUNDS];
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const u64 at = first + (u64)(4 * i) * row_elements;
            asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                         : "=r"(x[i].x), "=r"(x[i].y), "=r"(x[i].z), "=r"(x[i].w) : "l"(out + at), "l"(first_to_leave()));
            y[i] = *reinterpret_cast<const uint4*>(d_out + at);
        }
        const float log = log_sum_exp[own];
        float delta = 0.0f;
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            float a[8], b[8], sum = 0.0f;
            widen<real>(x[i], a);
            widen<real>(y[i], b);
#pragma unroll
            for (int j = 0; j < 8; j++) sum += a[j] * b[j];
            sum = four_lanes_sum(sum);
            sum += __shfl_xor_sync(0xffffffffu, sum, 4);
            if (piece == i) delta = sum;
        }
        if (piece < ROUNDS) {
            const u32 place = to + own / QUERIES * QUERIES * KNOWN_BYTES + own % QUERIES * sizeof(float);
            store_shared(place, __float_as_uint(log * LOG2_E));
            store_shared(place + QUERIES * sizeof(float), __float_as_uint(delta));
        }
    }

    // Asks for all that is copied, by one thread. It is also the one that waits for the kernel before, with its first head behind it.
    __device__ __forceinline__ void copy(const Places& places, const TensorMap& d_out_map, const TensorMap& q_map,
                                         const TensorMap& k_map, const TensorMap& v_map) const {
        u32 n = 0, turn = 0;
        for (u32 head = blockIdx.x; head < own_heads; head += gridDim.x) {
            const u32 b = head / heads, h = head % heads;
            for (int block = 0; block < blocks(); block++, turn++) {
                if (turn > 0) barrier_wait(places.keys_begun(), turn - 1 & 1);
                barrier_expect(places.keys_there(), 4 * TILE);
                copy_tile<KEYS, true>(places.k_tile(turn), places.keys_there(), &k_map, h, block * KEYS, b);
                copy_tile<KEYS, true>(places.base + AT_V, places.keys_there(), &v_map, h, block * KEYS, b);
                for (int tile = first_tile(block); tile < tiles(); tile++, n++) {
                    const u32 there = places.stage_there(n), to = places.q_tile(n);
                    if (n >= STAGES) barrier_wait(places.stage_done(n), n / STAGES - 1 & 1);
                    barrier_expect(there, 2 * TILE);
                    copy_tile<QUERIES>(to, there, &q_map, h, tile * QUERIES, b);
                    copy_tile<QUERIES>(to + TILE, there, &d_out_map, h, tile * QUERIES, b);
                }
            }
            take_turn();
        }
    }

    // Works out what is known of all heads but the first, by all warps of a group but the first.
    __device__ __forceinline__ void know_heads(const Places& places, int warp) const {
        u32 head_turn = 1;
        for (u32 head = blockIdx.x + gridDim.x; head < own_heads; head += gridDim.x, head_turn++) {
            barrier_wait(places.head_begun(), head_turn - 1 & 1);
            const u64 at = first_element(head);
            for (int query = (warp - 1) * 8; query < (int)positions; query += (GROUP_WARPS - 1) * 8) {
                know<2>(places.known(head_turn, positions), out + at, d_out + at, log_sum_exp + (u64)head * positions,
                        heads * HEAD, query);
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0) barrier_arrive(places.known_there());
        }
    }

    // Sums up d_q.
    __device__ __forceinline__ void by_query(const Places& places, unsigned char* memory, int warp) const {
        constexpr int GROUP = 2;
        const int lane = threadIdx.x % 32;
        float* own_sums = sums + (u64)blockIdx.x * positions * HEAD + threadIdx.x % GROUP_THREADS * 4;
        u32 n = 0, turn = 0;
        for (u32 head = blockIdx.x; head < own_heads; head += gridDim.x) {
            for (int block = 0; block < blocks(); block++, turn++) {
                barrier_wait(places.keys_there(), turn & 1);
                if (lane == 0) barrier_arrive(places.keys_begun());
                const int first = first_tile(block);
                for (int tile = first; tile < tiles(); tile++, n++) {
                    // No later keys are seen by these queries.
                    const bool is_last = causal ? tile < first + KEYS / QUERIES : block + 1 == blocks();
                    float* place = own_sums + tile * QUERIES * HEAD;
                    float sums[32];
#pragma unroll
                    for (int i = 0; i < 32; i++) sums[i] = 0.0f;
                    if (is_last && block > 0) {
#pragma unroll
                        for (int i = 0; i < 32; i += 4) {
                            asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                                         : "=f"(sums[i]), "=f"(sums[i + 1]), "=f"(sums[i + 2]), "=f"(sums[i + 3])
                                         : "l"(place + i * GROUP_THREADS) : "memory");
                        }
                    }
                    barrier_wait(places.slopes_there(n), n / SLOTS & 1);
                    pin(sums);
                    products_begin();
                    add_transposed(sums, places.slopes(n), places.k_tile(turn));
                    products_commit();
                    products_wait<0>();
                    pin(sums);
                    if (lane == 0) barrier_arrive(places.slopes_done(n));
                    if (!is_last) {
                        leave_sums(sums, place, block == 0);
                        continue;
                    }
                    const u32 b = head / heads, h = head % heads;
                    group_wait(GROUP);
                    d_q.store(sums, scale, memory + AT_TILES, GROUP, b, h * HEAD, tile * QUERIES, positions);
                    if (q_column_sums) {
                        leave_column_sums(sums, scale, memory + AT_PARTS, q_column_sums + ((u64)b * tiles() + tile) * columns + h * HEAD,
                                          GROUP, tile * QUERIES + warp * 16, positions);
                    }
                }
            }
        }
    }

    // A thread's sums to its own place, or added to what it left there.
    static __device__ __forceinline__ void leave_sums(const float (&sums)[32], float* place, bool is_first) {
#pragma unroll
        for (int i = 0; i < 32; i += 4) {
            float* to = place + i * GROUP_THREADS;
            if (is_first) {
                asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};"
                             ::"l"(to), "f"(sums[i]), "f"(sums[i + 1]), "f"(sums[i + 2]), "f"(sums[i + 3]) : "memory");
            } else {
                asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                             ::"l"(to), "f"(sums[i]), "f"(sums[i + 1]), "f"(sums[i + 2]), "f"(sums[i + 3]) : "memory");
            }
        }
    }

    // Owns 64 keys.
    __device__ __forceinline__ void by_key(const Places& places, unsigned char* memory, int warp, int group) const {
        const int lane = threadIdx.x % 32;
        const float log2_scale = scale * LOG2_E;
        // Where the lane's rows lie in a tile of keys; pieces are exchanged by the row.
        const u32 own_row = group * 64 + warp * 16 + lane % 16, row_at = own_row * SHEET_ROW_BYTES;
        auto piece_at = [&](int k) { return row_at + ((2 * k + lane / 16 ^ (own_row & 7)) << 4); };
        u32 n = 0, turn = 0, head_turn = 0;
        for (u32 head = blockIdx.x; head < own_heads; head += gridDim.x, head_turn++) {
            if (lane == 0) barrier_arrive(places.head_begun());
            if (head_turn > 0) barrier_wait(places.known_there(), head_turn - 1 & 1);
            const u32 known = places.known(head_turn, positions);
            for (int block = 0; block < blocks(); block++, turn++) {
                const u32 k_tile = places.k_tile(turn) + group * TILE;
                barrier_wait(places.keys_there(), turn & 1);
                u32 values[4][4];
#pragma unroll
                for (int k = 0; k < 4; k++) load_matrices(values[k], places.base + AT_V + piece_at(k));
                float k_sums[32], v_sums[32];
#pragma unroll
                for (int i = 0; i < 32; i++) k_sums[i] = v_sums[i] = 0.0f;
                pin(k_sums);
                pin(v_sums);
                int tile = first_tile(block);
                const int own_tile = block * (KEYS / QUERIES) + group;
                if (causal && group == 1) {
                    // No query of the tile sees these keys.
                    barrier_wait(places.slopes_done(n), n / SLOTS & 1 ^ 1);
                    const u32 none[4] = {0, 0, 0, 0};
#pragma unroll
                    for (int k = 0; k < 4; k++) store_matrices(places.slopes(n) + piece_at(k), none);
                    writes_for_copies();
                    __syncwarp();
                    if (lane == 0) {
                        barrier_arrive(places.slopes_there(n));
                        barrier_arrive(places.stage_done(n));
                    }
                    n++;
                    tile++;
                }
                float scores[32], slopes[32];
                u32 left[4][4];
                auto begin = [&]() {
                    const u32 q_tile = places.q_tile(n);
                    barrier_wait(places.stage_there(n), n / STAGES & 1);
                    products_begin();
                    multiply_fresh(scores, k_tile, q_tile);
                    products_commit();
                    products_begin();
                    multiply_fresh(slopes, values, q_tile + TILE);
                    products_commit();
                };
                begin();
                // A product uses the values, so they have come, and others may be copied there.
                if (lane == 0) barrier_arrive(places.keys_begun());
                bool is_first = true;
                while (true) {
                    const u32 q_tile = places.q_tile(n), bases = known + tile * QUERIES * KNOWN_BYTES + lane % 4 * 8;
                    // The scores are there, and before them the last product with the tile before has ended.
                    products_wait<1>();
                    pin(scores);
                    if (lane == 0 && !is_first) barrier_arrive(places.stage_done(n - 1));
                    is_first = false;
                    if (causal && tile == own_tile) {
                        int least_query = warp * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
                        for (int i = 0; i < 32; i++) {
                            if (column + i / 4 * 8 + i % 2 < least_query + i / 2 % 2 * 8) scores[i] = MINUS_INFINITY;
                        }
                    }
#pragma unroll
                    for (int i = 0; i < 32; i += 4) {
                        float2 base = load_shared_pair(bases + i / 4 * 32);
                        scores[i] = power_of_two(scores[i] * log2_scale - base.x);
                        scores[i + 1] = power_of_two(scores[i + 1] * log2_scale - base.y);
                        scores[i + 2] = power_of_two(scores[i + 2] * log2_scale - base.x);
                        scores[i + 3] = power_of_two(scores[i + 3] * log2_scale - base.y);
                    }
                    round_left(left, scores);
                    products_begin();
                    add_left(v_sums, left, q_tile + TILE);
                    products_commit();
                    products_wait<1>();
                    pin(slopes);
#pragma unroll
                    for (int i = 0; i < 32; i += 4) {
                        float2 delta = load_shared_pair(bases + QUERIES * sizeof(float) + i / 4 * 32);
                        scores[i] *= slopes[i] - delta.x;
                        scores[i + 1] *= slopes[i + 1] - delta.y;
                        scores[i + 2] *= slopes[i + 2] - delta.x;
                        scores[i + 3] *= slopes[i + 3] - delta.y;
                    }
                    // They take the place of the probabilities.
                    products_wait<0>();
                    round_left(left, scores);
                    barrier_wait(places.slopes_done(n), n / SLOTS & 1 ^ 1);
#pragma unroll
                    for (int k = 0; k < 4; k++) store_matrices(places.slopes(n) + piece_at(k), left[k]);
                    writes_for_copies();
                    __syncwarp();
                    if (lane == 0) barrier_arrive(places.slopes_there(n));
                    products_begin();
                    add_left(k_sums, left, q_tile);
                    products_commit();
                    n++;
                    if (++tile == tiles()) break;
                    begin();
                }
                products_wait<0>();
                pin(v_sums);
                pin(k_sums);
                if (lane == 0) barrier_arrive(places.stage_done(n - 1));
                const u32 b = head / heads, h = head % heads;
                const int own = own_tile * QUERIES;
                unsigned char* tile_memory = memory + AT_TILES + (1 + group) * TILE;
                group_wait(group);
                d_k.store(k_sums, scale, tile_memory, group, b, h * HEAD, own, positions);
                group_wait(group);
                d_v.store(v_sums, 1.0f, tile_memory, group, b, h * HEAD, own, positions);
                if (k_column_sums) {
                    const u64 to = ((u64)b * tiles() + own_tile) * columns + h * HEAD;
                    const int thread = threadIdx.x % GROUP_THREADS;
                    if (thread < HEAD) k_column_sums[to + thread] = 0.0f;
                    leave_column_sums(v_sums, 1.0f, memory + AT_PARTS + (1 + group) * COLUMN_SUMS_BYTES, v_column_sums + to, group,
                                      own + warp * 16, positions);
                }
            }
        }
    }

    __device__ __forceinline__ void run(const TensorMap& d_out_map, const TensorMap& q_map, const TensorMap& k_map,
                                        const TensorMap& v_map) const {
        extern __shared__ __align__(1024) unsigned char memory[];
        const Places places{shared_address(memory)};
        // Given by one lane, so that the compiler knows it to be the same for all of them.
        const int all_warps = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), warp = all_warps % GROUP_WARPS;
        if (threadIdx.x == 0) {
            prefetch_map(&d_out_map);
            prefetch_map(&q_map);
            prefetch_map(&k_map);
            prefetch_map(&v_map);
            places.begin();
        }
        const u64 at = first_element(blockIdx.x);
        for (int query = all_warps * 16; query < (int)positions; query += THREADS / 32 * 16) {
            know<4>(places.known(0, positions), out + at, d_out + at, log_sum_exp + (u64)blockIdx.x * positions, heads * HEAD,
                    query);
        }
        __syncthreads();
        if (all_warps >= 3 * GROUP_WARPS) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(OTHER_REGISTERS));
            if (warp > 0) {
                know_heads(places, warp);
            } else if (threadIdx.x % 32 == 0) {
                copy(places, d_out_map, q_map, k_map, v_map);
            }
        } else if (all_warps >= 2 * GROUP_WARPS) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(BY_QUERY_REGISTERS));
            by_query(places, memory, warp);
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(BY_KEY_REGISTERS));
            by_key(places, memory, warp, all_warps / GROUP_WARPS);
        }
    }
};

#define WHOLE_HEADS extern "C" __global__ void __launch_bounds__(THREADS, 1)

WHOLE_HEADS attention_whole_heads(MAP d_out_map, MAP q_map, MAP k_map, MAP v_map, const real* d_out, const real* out,
                                  const float* log_sum_exp, float* sums, real* d_q, real* d_k, real* d_v,
                                  float* q_column_sums, float* k_column_sums, float* v_column_sums, u32 positions,
                                  u32 heads, u32 own_heads, u32 stride, u32 columns, u32 causal, float scale) {
    typedef LeavingHalves To;
    const Gradient<To> gradient{d_out, out, log_sum_exp, sums, To{d_q, stride}, To{d_k, stride}, To{d_v, stride},
                                q_column_sums, k_column_sums, v_column_sums, positions, heads, own_heads, columns,
                                causal != 0, scale};
    gradient.run(d_out_map, q_map, k_map, v_map);
}

WHOLE_HEADS attention_whole_heads_eight(MAP d_out_map, MAP q_map, MAP k_map, MAP v_map, const real* d_out, const real* out,
                                        const float* log_sum_exp, float* sums, unsigned char* q_rows,
                                        unsigned char* q_transposed, unsigned char* k_rows, unsigned char* k_transposed,
                                        unsigned char* v_rows, unsigned char* v_transposed, float* q_column_sums,
                                        float* k_column_sums, float* v_column_sums, u32 positions, u32 heads, u32 own_heads,
                                        u32 stride, u32 columns, u32 causal, float scale, const u32* partials, float* unit,
                                        u32 top, u32 samples) {
    const u64 all_positions = (u64)samples * positions;
    const float by = scale_from<PARTIALS>(partials, top);
    if (blockIdx.x == 0 && threadIdx.x == 0) *unit = 1.0f / by;
    const Gradient<Bytes> gradient{d_out, out, log_sum_exp, sums, Bytes{q_rows, q_transposed, stride, all_positions, by},
                                   Bytes{k_rows, k_transposed, stride, all_positions, by},
                                   Bytes{v_rows, v_transposed, stride, all_positions, by}, q_column_sums, k_column_sums,
                                   v_column_sums, positions, heads, own_heads, columns, causal != 0, scale};
    gradient.run(d_out_map, q_map, k_map, v_map);
}

#endif
