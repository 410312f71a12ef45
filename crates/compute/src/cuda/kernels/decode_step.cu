// One step of decoding, from ids to logits, in one kernel that stays: a block per multiprocessor goes through a table of
// phases (norms, products, attentions over caches) and waits for all others only where a phase reads what another block wrote.
//
// Weights do not depend on what is computed, so every block has its share of the products ahead on the way into a ring of
// stages in shared memory, across phases, and memory is busy while blocks wait for each other. Sums along K are cut by K alone: into
// parts of at most PART_STEPS steps of 32, and each part over the warps of a block. Keys of a query are cut into CHAINS chains by
// their place. So a row comes out the same beside any others.
#include "decode.cuh"

// Hopper alone moves registers between warpgroups.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Tiles of 16 rows: with more than two, registers do not suffice.
#ifndef TILES
#define TILES 1
#endif
// Stages of the ring of weights.
#ifndef STAGES
#define STAGES 4
#endif

// A block multiplies up to GROUP tiles at a time.
constexpr u32 GROUP = 3, COLUMNS = TILE * GROUP, STAGE = GROUP * TILE_BYTES;
// A product waits for the one before of the same sums, so tiles are multiplied side by side where registers suffice.
constexpr int TILES_AT_ONCE = TILES == 1 ? GROUP : 1;
// Rows of the sums that warps leave for each other, and how many of them threads add up at a time.
constexpr u32 SUM_ROW = 16 * TILES + 4, ROWS_AT_ONCE = THREADS / COLUMNS;
// Rows of a product in f32.
constexpr u32 MOST_SINGLE_ROWS = 4;

// ---- Waiting -----------------------------------------------------------------------------------------------------

struct Barrier {
    // How many blocks have arrived, over all runs; behind it lies how many had when this one began.
    u32* arrived;
    u32 target;
    // What the block wrote is there for all others. Until `end` it may do what does not depend on them.
    __device__ __forceinline__ void begin(u32 flags) {
        if (!(flags & WAITS)) return;
        target += gridDim.x;
        wait_for_block();
        if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
    }
    // What all others wrote is there for the block.
    __device__ __forceinline__ void end(u32 flags) {
        if (flags & WAITS && threadIdx.x == 0) {
            u32 now;
            do {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
            } while ((int)(now - target) < 0);
        }
        wait_for_block();
    }
};

// ---- The ring of weights -----------------------------------------------------------------------------------------

// The pieces of a product that this block multiplies, one after the other: some tiles and a part of K.
struct Pieces {
    u32 tiles, parts, job, end, part;
    bool is_apart;
    Pieces() = default;
    __device__ __forceinline__ Pieces(const Product& product, u32 flags) {
        tiles = (product.outputs + TILE - 1) / TILE;
        parts = product.parts;
        is_apart = flags & APART;
        const u32 jobs = is_apart ? tiles * parts : tiles;
        job = jobs * blockIdx.x / gridDim.x;
        end = jobs * (blockIdx.x + 1) / gridDim.x;
        part = 0;
    }
    __device__ __forceinline__ bool is_there() const { return job < end; }
    __device__ __forceinline__ u32 tile() const { return is_apart ? job % tiles : job; }
    __device__ __forceinline__ u32 part_of_depth() const { return is_apart ? job / tiles : part; }
    __device__ __forceinline__ u32 count() const {
        u32 left = end - job;
        if (is_apart) left = min(left, tiles - job % tiles);
        return min(left, GROUP);
    }
    __device__ __forceinline__ bool is_last_part() const { return is_apart || part + 1 == parts; }
    __device__ __forceinline__ void advance() {
        if (is_last_part()) {
            job += count();
            part = 0;
        } else {
            part += 1;
        }
    }
};

// The last warp fetches weights into stages in the order in which the others will need them. `stages` have a barrier each that says that
// weights are there, and one that says that all warps have left them.
__device__ __forceinline__ void fetch_weights(const Step& step, u32 stages, u32 barriers) {
    const u32 lane = threadIdx.x % 32;
    const u64 policy = policy_of_weights();
    u32 filled = 0;
    for (u32 index = 0; index < step.count; index++) {
        if (step.phases[index].kind != PRODUCT) continue;
        const Product product = step.phases[index].product;
        for (Pieces pieces(product, step.phases[index].flags); pieces.is_there(); pieces.advance()) {
            const u32 stage = filled % STAGES, barrier = barriers + 8 * stage;
            const u32 part = pieces.part_of_depth(), from = first_step(product, part), to = first_step(product, part + 1);
            if (filled >= STAGES) wait_for_stage(barrier + 8 * STAGES, filled / STAGES - 1 & 1);
#if INT8
            const u32 bytes = int8_bytes(to - from);
            if (lane == 0) begin_stage(barrier, pieces.count() * bytes);
            __syncwarp();
            if (lane < pieces.count()) {
                copy_int8_tile(stages + stage * STAGE + lane * TILE_BYTES, product, pieces.tile() + lane, from, bytes, barrier, policy);
            }
#else
            const u32 output = pieces.tile() * TILE, rows = min(pieces.count() * TILE, product.outputs - output);
            const u32 bytes = (to - from) * 64;
            if (lane == 0) begin_stage(barrier, rows * bytes);
            __syncwarp();
            if (lane < rows) {
                const char* weights = reinterpret_cast<const char*>(product.w);
                copy_weights(stages + stage * STAGE + lane * STAGE_ROW,
                             weights + ((u64)(output + lane) * product.depth + from * 32) * sizeof(u16), bytes, barrier, policy);
            }
#endif
            filled += 1;
        }
    }
}

// ---- Norms -------------------------------------------------------------------------------------------------------

// The norm of a row, by a whole block. The sum is kept if the block is the one that keeps it.
__device__ __forceinline__ void make_norm(const Step& step, const Norm& norm, const NormWeights& weights, bool is_centred, u32 row,
                                          real* y, bool keeps, float2* places) {
    constexpr u32 PARTS_AT_ONCE = 4;
    float x[FOURS][4];
    const u32 columns = norm.columns;
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
        const u32 column = (i * THREADS + threadIdx.x) * 4;
#pragma unroll
        for (int e = 0; e < 4; e++) x[i][e] = 0.0f;
        if (column >= columns) continue;
        const Four a = load_if_there(place_in_row(step, norm.a, norm.a_ids, norm.a_rows, row, columns, column));
        if (norm.b) {
            float b[4] = {};
            if (norm.b_parts) {
                const float* sums = at<const float>(step, norm.b) + (u64)row * columns + column;
                const u64 stride = (u64)step.rows * columns;
                for (u32 part = 0; part < norm.b_parts; part += PARTS_AT_ONCE) {
                    uint4 raw[PARTS_AT_ONCE];
#pragma unroll
                    for (u32 i = 0; i < PARTS_AT_ONCE; i++) {
                        if (part + i < norm.b_parts) raw[i] = load_shared_by_all(sums + (part + i) * stride);
                    }
#pragma unroll
                    for (u32 i = 0; i < PARTS_AT_ONCE; i++) {
                        float own[4];
                        widen<float>(raw[i], own);
                        if (part + i < norm.b_parts) {
#pragma unroll
                            for (int e = 0; e < 4; e++) b[e] += own[e];
                        }
                    }
                }
                float bias[4];
                widen_four(weights.bias[i], bias);
#pragma unroll
                for (int e = 0; e < 4; e++) b[e] = rounded(norm.b_bias ? b[e] + bias[e] : b[e]);
            } else {
                widen_four(load_if_there(place_in_row(step, norm.b, norm.b_ids, norm.b_rows, row, columns, column)), b);
            }
            widen_four(a, x[i]);
#pragma unroll
            for (int e = 0; e < 4; e++) x[i][e] = rounded(x[i][e] + b[e]);
        } else {
            widen_four(a, x[i]);
        }
        if (keeps && norm.sum) store_four(at<real>(step, norm.sum) + (u64)row * columns + column, x[i]);
    }
    finish_norm(norm, weights, is_centred, x, y, places);
}

// ---- Products ----------------------------------------------------------------------------------------------------

struct Memory {
    // Rows that the block has the norms of; sums of warps, or of chains; two places for each warp, for rows to take turns.
    real* own_rows;
    float* sums;
    float2* places;
    u32 stages, barriers;
};

__device__ __forceinline__ void finish(const Step& step, const Product& product, u32 flags, u32 row, u32 output, float bias,
                                       float sum) {
    if (product.bias) sum += bias;
    real stored = from_float<real>(sum);
    if (flags & ACTIVATED) stored = from_float<real>(gelu_of(to_float(stored)));
    at<real>(step, product.out)[(u64)row * product.outputs + output] = stored;
}

#if REAL == 0

// In f32 a warp has an output at a time, and nothing is fetched ahead.
__device__ __forceinline__ void multiply_rows(const Step& step, const Product& product, u32 flags, const Memory& memory, const Pieces& pieces) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 end = min(pieces.end * TILE, product.outputs);
    for (u32 output = pieces.job * TILE + warp; output < end; output += WARPS) {
#if INT8
        const Int8Row weights(at<const char>(step, product.w), product.depth, output);
#else
        const uint4* weights = reinterpret_cast<const uint4*>(at<const real>(step, product.w) + (u64)output * product.depth);
#endif
        float sums[MOST_SINGLE_ROWS] = {};
        const bool is_gated = flags & GATED, is_own = flags & OWN_NORM;
        const u32 stride = is_gated ? 2 * product.depth : product.depth;
#pragma unroll 2
        for (u32 pack = lane; pack < product.depth / WIDTH; pack += 32) {
            float own[WIDTH];
#if INT8
            weights.load(pack * WIDTH, own);
#else
            widen<real>(__ldg(weights + pack), own);
#endif
#pragma unroll
            for (u32 row = 0; row < MOST_SINGLE_ROWS; row++) {
                if (row >= step.rows) break;
                float other[WIDTH];
                const real* from = (is_own ? memory.own_rows : at<const real>(step, product.x)) + row * stride + pack * WIDTH;
                uint4 x = is_own ? *reinterpret_cast<const uint4*>(from) : load_shared_by_all(from);
                if (is_gated) x = gated(x, load_shared_by_all(from + product.depth));
                widen<real>(x, other);
#pragma unroll
                for (int e = 0; e < WIDTH; e++) sums[row] = fmaf(own[e], other[e], sums[row]);
            }
        }
#pragma unroll
        for (u32 row = 0; row < MOST_SINGLE_ROWS; row++) {
            const float sum = warp_sum(sums[row]);
            if (lane == 0 && row < step.rows) finish(step, product, flags, row, output, load_bias(step, product, output), sum);
        }
    }
}

#else

// f(s, m, half, row, column) for the sixteen bytes of every step that a lane takes of rows.
template <typename F> __device__ __forceinline__ void for_factors(u32 rows, u32 first, u32 count, F f) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < WARP_STEPS; s++) {
#pragma unroll
        for (int m = 0; m < TILES; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 row = m * 16 + half * 8 + lane / 4;
                if (s < count && row < rows) f(s, m, half, row, (first + s) * 32 + lane % 4 * 8);
            }
        }
    }
}

typedef uint4 Factors[WARP_STEPS][TILES][2];

// What a warp multiplies of all rows: `count` steps from the first.
__device__ __forceinline__ void load_factors(const Step& step, const Product& product, u32 flags, const real* own_rows, u32 first,
                                             u32 count, Factors& x) {
#pragma unroll
    for (int s = 0; s < WARP_STEPS; s++) {
#pragma unroll
        for (int m = 0; m < TILES; m++) x[s][m][0] = x[s][m][1] = make_uint4(0, 0, 0, 0);
    }
    // Blocks make norms themselves for few rows alone.
    if (TILES == 1 && flags & OWN_NORM) {
        for_factors(step.rows, first, count, [&](int s, int m, int half, u32 row, u32 column) {
            x[s][m][half] = *reinterpret_cast<const uint4*>(own_rows + row * product.depth + column);
        });
        return;
    }
    const bool is_gated = flags & GATED;
    const u32 stride = is_gated ? 2 * product.depth : product.depth;
    const real* from = at<const real>(step, product.x);
    for_factors(step.rows, first, count, [&](int s, int m, int half, u32 row, u32 column) {
        x[s][m][half] = load_shared_by_all(from + row * stride + column);
    });
    if (!is_gated) return;
    for_factors(step.rows, first, count, [&](int s, int m, int half, u32 row, u32 column) {
        x[s][m][half] = gated(x[s][m][half], load_shared_by_all(from + row * stride + product.depth + column));
    });
}

#if INT8
// The same as below with weights of eight bits: every step's sums are whole numbers of what its weights are counted in. Steps and tiles that are not
// there have nothing to add: in their place lie whole numbers, but scales may be anything.
__device__ __forceinline__ void multiply_int8(const Factors& x, u32 stage, u32 count, float (&sums)[GROUP][TILES][4]) {
    const u32 lane = threadIdx.x % 32, first = WARP_STEPS * (threadIdx.x / 32);
    uint2 bytes[WARP_STEPS][GROUP];
    float scales[WARP_STEPS][GROUP][2];
#pragma unroll
    for (int s = 0; s < WARP_STEPS; s++) {
        const u32 weights = stage + int8_step(lane / 4, first + s) + lane % 4 * 8, scale = stage + int8_scale(lane % 4 * 2, first + s);
#pragma unroll
        for (int t = 0; t < GROUP; t++) {
            bytes[s][t] = load_int8_weights(weights + t * TILE_BYTES);
            scales[s][t][0] = load_scale(scale + t * TILE_BYTES);
            scales[s][t][1] = load_scale(scale + INT8_ROW_SCALES + t * TILE_BYTES);
        }
    }
#pragma unroll
    for (int s = 0; s < WARP_STEPS; s++) {
        float parts[GROUP][TILES][4] = {};
        uint4 w[GROUP];
#pragma unroll
        for (int t = 0; t < GROUP; t++) w[t] = halves_of_bytes(bytes[s][t]);
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            const uint4 low = x[s][m][0], high = x[s][m][1];
            const u32 even[4] = {low.x, high.x, low.y, high.y}, odd[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
            for (int t = 0; t < GROUP; t++) multiply(parts[t][m], even, w[t].x, w[t].y);
#pragma unroll
            for (int t = 0; t < GROUP; t++) multiply(parts[t][m], odd, w[t].z, w[t].w);
        }
#pragma unroll
        for (int t = 0; t < GROUP; t++) {
#pragma unroll
            for (int m = 0; m < TILES; m++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    sums[t][m][e] = fmaf(parts[t][m][e], s < count ? scales[s][t][e % 2] : 0.0f, sums[t][m][e]);
                }
            }
        }
    }
}
#endif

// Rows are the first factor of the matrix units, weights the second. A lane takes eight neighbours of K at a time of both; which
// of them meet in which instruction is the same for both, and does not matter otherwise.
__device__ __forceinline__ void multiply_rows(const Step& step, const Product& product, u32 flags, const Memory& memory, Pieces pieces,
                                              float bias, u32& used) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 none = 0xffffffffu;
    bool is_first = true;
    u32 held = none, first = 0, count = 0;
    Factors x;
    float sums[GROUP][TILES][4];
    for (; pieces.is_there(); pieces.advance()) {
        const u32 part = pieces.part_of_depth(), tiles = pieces.count();
        const u32 begin = first_step(product, part), steps = first_step(product, part + 1) - begin;
        if (part != held) {
            held = part;
            first = INT8 ? WARP_STEPS * warp : steps * warp / WARPS;
            count = INT8 ? int8_count(steps) : steps * (warp + 1) / WARPS - first;
            load_factors(step, product, flags, memory.own_rows, begin + first, count, x);
        }
        if (pieces.part == 0) {
#pragma unroll
            for (int t = 0; t < GROUP; t++) {
#pragma unroll
                for (int m = 0; m < TILES; m++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) sums[t][m][e] = 0.0f;
                }
            }
        }
        const u32 stage = used % STAGES;
        wait_for_stage(memory.barriers + 8 * stage, used / STAGES & 1);
#if INT8
        multiply_int8(x, memory.stages + stage * STAGE, count, sums);
#else
        const u32 weights = memory.stages + stage * STAGE + lane / 4 * STAGE_ROW + first * 64 + lane % 4 * 16;
#pragma unroll
        for (int s = 0; s < WARP_STEPS; s++) {
            // What lies in the stage behind its weights is anything, and must not meet the sums of others.
            const bool is_there = s < count;
#pragma unroll
            for (int first_tile = 0; first_tile < GROUP; first_tile += TILES_AT_ONCE) {
                uint4 w[TILES_AT_ONCE];
#pragma unroll
                for (int t = 0; t < TILES_AT_ONCE; t++) {
                    w[t] = load_weights(weights + (first_tile + t) * TILE * STAGE_ROW + s * 64);
                    if (!is_there) w[t] = make_uint4(0, 0, 0, 0);
                }
#pragma unroll
                for (int m = 0; m < TILES; m++) {
                    const uint4 low = x[s][m][0], high = x[s][m][1];
                    const u32 even[4] = {low.x, high.x, low.y, high.y}, odd[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
                    for (int t = 0; t < TILES_AT_ONCE; t++) multiply(sums[first_tile + t][m], even, w[t].x, w[t].y);
#pragma unroll
                    for (int t = 0; t < TILES_AT_ONCE; t++) multiply(sums[first_tile + t][m], odd, w[t].z, w[t].w);
                }
            }
        }
#endif
        __syncwarp();
        if (lane == 0) leave_stage(memory.barriers + 8 * (STAGES + stage));
        used += 1;
        if (!pieces.is_last_part()) continue;
        if (!is_first) {
            // The sums of the piece before have been taken.
            wait_for_block();
            bias = load_bias(step, product, pieces.tile() * TILE + threadIdx.x % COLUMNS);
        }
        is_first = false;
#pragma unroll
        for (int t = 0; t < GROUP; t++) {
            if (t >= tiles) break;
            float* to = memory.sums + (warp * COLUMNS + t * TILE + lane % 4 * 2) * SUM_ROW;
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                const u32 row = m * 16 + lane / 4;
                if (row < step.rows) {
                    to[row] = sums[t][m][0];
                    to[SUM_ROW + row] = sums[t][m][1];
                }
                if (row + 8 < step.rows) {
                    to[row + 8] = sums[t][m][2];
                    to[SUM_ROW + row + 8] = sums[t][m][3];
                }
            }
        }
        wait_for_block();
        const u32 column = threadIdx.x % COLUMNS, output = pieces.tile() * TILE + column;
        if (threadIdx.x >= ROWS_AT_ONCE * COLUMNS || column >= tiles * TILE || output >= product.outputs) continue;
        for (u32 row = threadIdx.x / COLUMNS; row < step.rows; row += ROWS_AT_ONCE) {
            float sum = 0.0f;
#pragma unroll
            for (u32 other = 0; other < WARPS; other++) sum += memory.sums[(other * COLUMNS + column) * SUM_ROW + row];
            if (flags & APART) {
                at<float>(step, product.out)[((u64)part * step.rows + row) * product.outputs + output] = sum;
            } else {
                finish(step, product, flags, row, output, bias, sum);
            }
        }
    }
}

#endif

// ---- Attention ---------------------------------------------------------------------------------------------------

// The lane's shares of a head of keys or queries, turned by the angles of the row's position where there are any.
__device__ __forceinline__ void load_turned(const Step& step, const Attention& of, const real* head, u32 row,
                                            Share (&to)[KEY_SHARES]) {
#pragma unroll
    for (int s = 0; s < KEY_SHARES; s++) {
        const u32 column = key_column(s), half = SIZE / 2;
        const bool is_there = column < SIZE;
        to[s] = load_share(head + column, is_there);
        if (TURNS && of.angles && is_there) {
            const Share other = load_share(head + (column < half ? column + half : column - half), true);
            to[s] = turned(step, of, to[s], other, row, column);
        }
    }
}

// A query head of a row is an item, and `warps` warps have one: each takes some of its chains. The first keys and values are on their
// way before the block waits for the others.
__device__ __forceinline__ void attend(const Step& step, const Attention& of, const Memory& memory, Barrier& barrier, u32 flags) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 slot = warp / of.warps, slots = WARPS / of.warps, warp_of_slot = warp % of.warps;
    const u32 items = step.rows * of.heads, group = of.heads / of.kv_heads;
    const u32 q_stride = (of.heads + 2 * of.kv_heads) * SIZE, kv_stride = of.kv_heads * SIZE;
    const u32* places = at<const u32>(step, of.places);
    float* chains = memory.sums + slot * CHAINS * CHAIN;
    bool has_waited = false;
    for (u32 item = blockIdx.x + gridDim.x * slot; item < items; item += gridDim.x * slots) {
        const u32 b = item / of.heads, head = item % of.heads, kv_head = head / group;
        const Range seen = seen_by(sight_of(b, 1, of.keys, of.window, 1, places, nullptr, nullptr), 0);
        const u64 row = key_row(b, places, of.rows);
        const u32 start = places[2 * b + 1];
        const int newest = start < of.keys ? (int)start : -1;
        real* k = at<real>(step, of.k) + row * of.keys * kv_stride + kv_head * SIZE;
        real* v = at<real>(step, of.v) + row * of.keys * kv_stride + kv_head * SIZE;
        Course course = {k, v, chains, warp_of_slot, of.warps, kv_stride, seen.first, seen.first, seen.end, newest, of.scale * UNIT_OF_SCORES};
        Keys keys;
        Values values;
        course.load(keys, values);
        if (!has_waited) barrier.end(flags);
        has_waited = true;
        const real* qkv = at<const real>(step, of.qkv) + (u64)b * q_stride;
        Share own[KEY_SHARES];
        load_turned(step, of, qkv + head * SIZE, b, own);
        load_turned(step, of, qkv + (of.heads + kv_head) * SIZE, b, course.new_key);
        const real* value = qkv + (of.heads + of.kv_heads + kv_head) * SIZE;
#pragma unroll
        for (int s = 0; s < VALUE_SHARES; s++) course.new_value[s] = load_share(value + value_column(s), value_column(s) < SIZE);
        if (newest >= 0 && places[2 * b] < of.rows && head % group == 0 && warp_of_slot == 0) course.keep_newest(k, v);
        Query query(own);
        while (course.go_on(keys, values, query)) {}
        wait_for_warps(1 + slot, of.warps);
        real* out = at<real>(step, of.out) + ((u64)b * of.heads + head) * SIZE;
        const Joint joint(chains);
        for (u32 place = warp_of_slot * 32 + lane; place < SIZE; place += 32 * of.warps) out[place] = joint.element(place);
        wait_for_warps(1 + slot, of.warps);
    }
    if (!has_waited) barrier.end(flags);
}

// ---- The step ----------------------------------------------------------------------------------------------------

// What the warps do that compute.
__device__ __forceinline__ void go_through(const Step& step, const Memory& memory, u32* arrived) {
    Barrier barrier = {arrived, arrived[1]};
#if REAL != 0
    u32 used = 0;
#endif
    for (u32 index = 0; index < step.count; index++) {
        const Phase& phase = step.phases[index];
        const u32 flags = phase.flags;
        barrier.begin(flags);
        if (phase.kind == ATTENTION) {
            const Attention of = phase.attention;
            attend(step, of, memory, barrier, flags);
            continue;
        }
        // What does not depend on other blocks is on its way while they are waited for.
        const bool is_product = phase.kind == PRODUCT, is_owned = TILES == 1 && flags & OWN_NORM;
        const Norm norm = phase.norm;
        NormWeights weights;
        if (!is_product || is_owned) weights.load(step, norm);
        if (!is_product) {
            barrier.end(flags);
            for (u32 row = blockIdx.x; row < step.rows; row += gridDim.x) {
                make_norm(step, norm, weights, flags & CENTRED, row, at<real>(step, norm.y) + (u64)row * norm.columns,
                          true, memory.places + row / gridDim.x % 2 * WARPS);
            }
            continue;
        }
        const Product product = phase.product;
        const Pieces pieces(product, flags);
        const float bias = load_bias(step, product, pieces.tile() * TILE + threadIdx.x % COLUMNS);
        barrier.end(flags);
        if (is_owned && (pieces.is_there() || blockIdx.x == 0)) {
            for (u32 row = 0; row < step.rows; row++) {
                make_norm(step, norm, weights, flags & CENTRED, row, memory.own_rows + row * norm.columns,
                          blockIdx.x == 0, memory.places + row % 2 * WARPS);
            }
            wait_for_block();
        }
#if REAL == 0
        multiply_rows(step, product, flags, memory, pieces);
#else
        multiply_rows(step, product, flags, memory, pieces, bias, used);
#endif
    }
    // All others have begun and know where this run began.
    if (blockIdx.x == 0 && threadIdx.x == 0) arrived[1] = barrier.target;
}

// `own_bytes` are those of rows that the block has the norms of, `sum_bytes` those of sums.
extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
decode_step(const Phase* table, char* scratch, u32* arrived, u32* fault, u32 count, u32 rows, u32 own_bytes, u32 sum_bytes) {
    extern __shared__ __align__(128) char shared_memory[];
    __shared__ float2 places[2 * WARPS];
    __shared__ u64 stage_barriers[2 * STAGES];
    Memory memory;
    memory.stages = shared_address(shared_memory);
    char* behind = shared_memory + (REAL == 0 ? 0 : STAGES * STAGE);
    memory.sums = reinterpret_cast<float*>(behind);
    memory.own_rows = reinterpret_cast<real*>(behind + sum_bytes);
    Phase* phases = reinterpret_cast<Phase*>(behind + sum_bytes + own_bytes);
    memory.places = places;
    memory.barriers = shared_address(stage_barriers);
    const u32 words = count * (sizeof(Phase) / 16);
    for (u32 i = threadIdx.x; i < words; i += ALL_THREADS) {
        reinterpret_cast<uint4*>(phases)[i] = reinterpret_cast<const uint4*>(table)[i];
    }
    if (threadIdx.x < 2 * STAGES) {
        const u32 arrivals = threadIdx.x < STAGES ? 1 : WARPS;
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(memory.barriers + 8 * threadIdx.x), "r"(arrivals) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const Step step = {phases, scratch, fault, count, rows};
    if (threadIdx.x >= THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (REAL != 0 && threadIdx.x < THREADS + 32) fetch_weights(step, memory.stages, memory.barriers);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        go_through(step, memory, arrived);
    }
}

#endif
