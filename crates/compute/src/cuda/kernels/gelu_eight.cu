// Products of eight bits on Hopper whose results become numbers of eight bits at once: h = x·wᵀ + bias and GELU(h), and the
// gradient d_h = (d_y·w) ⊙ GELU'(h) with the sums of its columns.
//
// Apart, a product writes 16 bits for each number, and quantising reads them, writes one byte in a row and the same one in a
// column: memory takes most of the time of both. Here the numbers are quantised where they are, in the registers of the
// warpgroup that multiplied them, while other warpgroups multiply; see turns.cuh. What they are counted in is known before: a
// product of a part of the rows was looked through for its largest number.
//
// A thread holds of a product two rows that are eight apart, and pairs of columns. For bytes to lie side by side, factors come
// into shared memory in another order: the copy engine puts rows 2·i and 2·i + 1 of each 16 of the left factor eight apart, and of
// each 16 rows of the right one 4·q and 4·q + 1 before 4·q + 2 and 4·q + 3. So a thread holds neighbouring rows and four
// neighbouring columns: a word of four bytes in a row, and, of two words, pairs of bytes in a column, which `stmatrix`
// transposes.
#include "prelude.cuh"
#include "eight_bits.cuh"
#include "gelu.cuh"

// With SLOPE, what is kept of h is GELU'(h).
#ifndef SLOPE
#define SLOPE 0
#endif
#include "turns.cuh"

#if REAL == 1 && defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- Sizes -------------------------------------------------------------------------------------------------------

// Teams of two warpgroups take turns; each warpgroup has half of a tile's rows. In the warpgroup before them one warp keeps the
// ring full, and one for each team hands results to the copy engine, so that no team waits for it.
constexpr int TEAMS = 2, HALVES = ROWS / GROUP_ROWS, TEAM_THREADS = HALVES * GROUP_THREADS;
constexpr int TEAM_WARPS = HALVES * GROUP_WARPS, THREADS = GROUP_THREADS + TEAMS * TEAM_THREADS;
// Terms of a stage: a row of a sheet.
constexpr int DEPTH = SHEET_ROW_BYTES, STAGE_BYTES = 2 * SHEET_BYTES;
// Sheets by which a team exchanges tiles with the copy engine: bytes in columns, and two of h. The one that is done with first
// becomes bytes in rows.
constexpr u32 IN_COLUMNS = 0, H_EARLY = SHEET_BYTES, H_LATE = 2 * SHEET_BYTES, IN_ROWS = H_EARLY;
constexpr int KEPT_BYTES = 3 * SHEET_BYTES;
constexpr int STAGES = (MOST_SHARED_BYTES - TEAMS * KEPT_BYTES - RING_BYTES) / STAGE_BYTES;
// Pieces of 16 columns of a sheet of h.
constexpr int PIECES = COLUMNS / 32;

// Each team has a barrier for every sheet of h: `kept(team)` for the early one and `kept(TEAMS + team)` for the late one.
typedef Ring<STAGES, 2 * TEAMS, TEAM_WARPS> Stages;

// The threads of a team tell the warp that hands its results on, and go on; that warp waits for them.
__device__ __forceinline__ void results_give(int team) {
    writes_for_copies();
    asm volatile("bar.arrive %0, %1;" ::"r"(team + 5), "n"(TEAM_THREADS + 32) : "memory");
}
__device__ __forceinline__ void results_wait(int team) {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 5), "n"(TEAM_THREADS + 32) : "memory");
}

// ---- Copies ------------------------------------------------------------------------------------------------------

// A box of the left factor, whose rows are dimensions: 8 pairs, 2 of a pair, sixteens.
__device__ __forceinline__ void copy_left(u32 to, u32 barrier, const TensorMap* map, u32 term, u32 row) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %4, %5}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(term), "r"(0), "r"(row / 16) : "memory");
}
// A box of the right factor, whose rows are dimensions: 2 of a pair, 4 fours, 2 pairs of a four, sixteens.
__device__ __forceinline__ void copy_right(u32 to, u32 barrier, const TensorMap* map, u32 term, u32 row) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %4, %4, %5}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(term), "r"(0), "r"(row / 16) : "memory");
}

__device__ __forceinline__ void store_matrices_transposed(u32 to, const u32 (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]) : "memory");
}
__device__ __forceinline__ uint2 load_pair(u32 from) {
    uint2 x;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from));
    return x;
}
__device__ __forceinline__ void store_pair(u32 to, u32 x, u32 y) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(x), "r"(y) : "memory");
}

// ---- Products ----------------------------------------------------------------------------------------------------

// sums [64, 128] = or += a [64, 32] · b [32, 128].
template <bool E5M2> __device__ __forceinline__ void product(float (&sums)[64], u64 a, u64 b, u32 add) {
    if constexpr (E5M2) {
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k32.f32.e5m2.e4m3 {" PLACES_64 "}, %64, %65, add, 1, 1;\n}"
                     : NUMBERS_64(sums) : "l"(a), "l"(b), "r"(add));
    } else {
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" PLACES_64 "}, %64, %65, add, 1, 1;\n}"
                     : NUMBERS_64(sums) : "l"(a), "l"(b), "r"(add));
    }
}

// Half of a tile. Of piece p, lane l has in sums[8·p + 4·b + 2·r + e] row 2·(l/4) + r of a warp's 16 and column 4·(l%4) + 2·b + e.
typedef float Sums[COLUMNS / 2];

template <bool E5M2> __device__ __forceinline__ void multiply_stage(Sums& sums, u32 stage, int half, bool is_first) {
    u64 a = operand(stage + half * GROUP_ROWS * SHEET_ROW_BYTES, 16), b = operand(stage + SHEET_BYTES, 16);
    // In the units of operands, 16 bytes.
#pragma unroll
    for (int k = 0; k < DEPTH / 32; k++) product<E5M2>(sums, a + k * 2, b + k * 2, !is_first || k > 0);
}

// The thread that keeps the ring full.
__device__ __forceinline__ void fetch_all(const Plan& plan, const Stages& ring, u32 stages,
                                          const TensorMap* left, const TensorMap* right, u32 steps) {
    Place<STAGES> at(0);
    for (u32 tile = 0; tile < plan.tiles(); tile++) {
        u32 row, column;
        plan.place(tile, row, column);
        for (u32 step = 0; step < steps; step++, at.next()) {
            u32 full = ring.full(at.stage), to = stages + at.stage * STAGE_BYTES, term = step * DEPTH;
            barrier_wait(ring.empty(at.stage), at.round % 2 ^ 1);
            barrier_expect(full, STAGE_BYTES);
            copy_left(to, full, left, term, row);
            copy_right(to + SHEET_BYTES, full, right, term, column);
        }
    }
}

// ---- Results -----------------------------------------------------------------------------------------------------

// A thread's place in a tile.
struct Own {
    u32 half, warp, lane;
    __device__ __forceinline__ Own() {
        half = threadIdx.x / GROUP_THREADS % HALVES ^ 1;
        warp = threadIdx.x / 32 % GROUP_WARPS;
        lane = threadIdx.x % 32;
    }
    // The first of a warp's 16 rows.
    __device__ __forceinline__ u32 row() const { return half * GROUP_ROWS + warp * 16; }
};

// The bytes of a sheet of h: [p][r] are the thread's four columns of piece p in row r of its two.
typedef u32 Bytes[PIECES][2];

template <bool E5M2> __device__ __forceinline__ u32 four_bytes(const float (&x)[4]) {
    return two_bytes<E5M2>(x[0], x[1]) | two_bytes<E5M2>(x[2], x[3]) << 16;
}

// Where the four numbers of h lie that belong to four bytes of piece p of a sheet.
__device__ __forceinline__ u32 four_at(u32 sheet, const Own& own, int p, int r) {
    u32 row = own.row() + own.lane / 4 * 2 + r, place = p * 2 + own.lane % 4 / 2;
    return sheet + row * SHEET_ROW_BYTES + ((place ^ row % 8) << 4) + own.lane % 2 * 8;
}

// Bytes as they stand, to a sheet.
__device__ __forceinline__ void store_rows(u32 to, const Own& own, const Bytes& bytes, u32 first) {
    u32 row = own.row() + own.lane % 8 * 2 + own.lane / 8 % 2;
#pragma unroll
    for (int p = 0; p < PIECES; p += 2) {
        const u32 words[4] = {bytes[p][0], bytes[p][1], bytes[p + 1][0], bytes[p + 1][1]};
        store_matrices(to + row * SHEET_ROW_BYTES + ((first + p + own.lane / 16 ^ row % 8) << 4), words);
    }
}

// The same transposed: rows of the sheet are columns of the tile.
__device__ __forceinline__ void store_columns(u32 to, const Own& own, const Bytes& bytes, u32 first) {
    u32 lane = own.lane, column = lane / 16 * 16 + lane % 8 / 2 * 4 + lane / 8 % 2 * 2 + lane % 2, place = own.row() / 16;
    to += (first * 16 + column) * SHEET_ROW_BYTES + ((place ^ column % 8) << 4);
#pragma unroll
    for (int p = 0; p < PIECES; p += 2) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            words[2 * i] = __byte_perm(bytes[p + i][0], bytes[p + i][1], 0x5140);
            words[2 * i + 1] = __byte_perm(bytes[p + i][0], bytes[p + i][1], 0x7362);
        }
        store_matrices_transposed(to + p * 16 * SHEET_ROW_BYTES, words);
    }
}

// ---- Sums of columns ---------------------------------------------------------------------------------------------

// Every warp leaves the sums of four parts of its rows in place of its late h, which it alone has read: part,
// then pieces of 16 columns, which change places by the part so that no bank is met twice.
constexpr int SUM_PARTS = 4, SUMS_BYTES = COLUMNS * 4;

__device__ __forceinline__ u32 sums_at(u32 kept, u32 warp_row, u32 part, u32 piece) {
    return kept + H_LATE + warp_row * SHEET_ROW_BYTES + part * SUMS_BYTES + ((piece ^ part) << 6);
}

// Half of the pieces' sums over two lanes of eight.
typedef float HalfSums[PIECES * 2];

__device__ __forceinline__ void add_lanes(HalfSums& sums, const float (&totals)[PIECES * 4], const Own& own) {
    bool is_upper = own.lane & 16;
#pragma unroll
    for (int i = 0; i < PIECES * 2; i++) {
        float low = totals[i], high = totals[i + PIECES * 2];
        sums[i] = (is_upper ? high : low) + __shfl_xor_sync(0xffffffffu, is_upper ? low : high, 16);
    }
}

__device__ __forceinline__ void leave_sums(u32 kept, const Own& own, const HalfSums& sums, u32 first) {
#pragma unroll
    for (int p = 0; p < PIECES / 2; p++) {
        u32 piece = first + own.lane / 16 * (PIECES / 2) + p;
        store_shared(sums_at(kept, own.row(), own.lane / 4 % SUM_PARTS, piece) + own.lane % 4 * 16,
                     make_uint4(__float_as_uint(sums[p * 4]), __float_as_uint(sums[p * 4 + 1]),
                                __float_as_uint(sums[p * 4 + 2]), __float_as_uint(sums[p * 4 + 3])));
    }
}

// Adds what the warps left, four columns to a lane, in a fixed order.
__device__ __forceinline__ float4 added_sums(u32 kept, float unit) {
    u32 lane = threadIdx.x % 32;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (u32 row = 0; row < ROWS; row += 16) {
#pragma unroll
        for (u32 part = 0; part < SUM_PARTS; part++) {
            uint4 x = load_shared(sums_at(kept, row, part, lane / 4) + lane % 4 * 16);
            sum.x += __uint_as_float(x.x);
            sum.y += __uint_as_float(x.y);
            sum.z += __uint_as_float(x.z);
            sum.w += __uint_as_float(x.w);
        }
    }
    return make_float4(sum.x * unit, sum.y * unit, sum.z * unit, sum.w * unit);
}

// ---- Tiles -------------------------------------------------------------------------------------------------------

// What numbers are multiplied with: the units of both factors and, in a gradient, the power of two of the results, which changes no
// bit when the product is rounded to 16. `unit` is that of the results.
struct Units {
    float product, unit, scale;
};

template <bool BACKWARD>
__device__ __forceinline__ Units units_of(const float* left, const float* right, const u32* partials) {
    float scale = scale_from<PARTIALS>(partials, SAMPLED_TOP<BACKWARD>);
    return {*left * *right * (BACKWARD ? scale : 1.0f), 1.0f / scale, scale};
}

// Half of a tile's columns: h to a sheet, and the bytes of GELU(h).
__device__ __forceinline__ void forward_half(Bytes& bytes, const float* sums, u32 sheet, const Own& own,
                                             const Units& units, const real* bias) {
    uint2 biases[PIECES] = {};
    if (bias) {
#pragma unroll
        for (int p = 0; p < PIECES; p++) biases[p] = *reinterpret_cast<const uint2*>(bias + p * 16 + own.lane % 4 * 4);
    }
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        float added[4];
        widen_pair(biases[p].x, added, real());
        widen_pair(biases[p].y, added + 2, real());
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float* x = sums + p * 8 + r * 2;
            u32 low = pack(fmaf(x[0], units.product, added[0]), fmaf(x[1], units.product, added[1]));
            u32 high = pack(fmaf(x[4], units.product, added[2]), fmaf(x[5], units.product, added[3]));
            float y[4];
            widen_pair(low, y, real());
            widen_pair(high, y + 2, real());
            if constexpr (SLOPE) {
                float slopes[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float of;
                    gelu_and_slope(y[i], of, slopes[i]);
                    y[i] = of * units.scale;
                }
                low = pack(slopes[0], slopes[1]);
                high = pack(slopes[2], slopes[3]);
            } else {
                // In units: the sigmoid is one over as many of them.
#pragma unroll
                for (int i = 0; i < 4; i++) y[i] *= reciprocal(fmaf(units.unit, gelu_decay(y[i]), units.unit));
            }
            store_pair(four_at(sheet, own, p, r), low, high);
            bytes[p][r] = four_bytes<false>(y);
        }
    }
}

// A tile of a product. The early sheet of h is on its way to memory while the late one is computed.
__device__ __forceinline__ void finish_forward(const Sums& sums, u32 kept, const Units& units, const real* bias,
                                               const Stages& ring, u32 round, int team) {
    const Own own;
    Bytes early, late;
    barrier_wait(ring.kept(team), round % 2);
    forward_half(early, sums, kept + H_EARLY, own, units, bias);
    store_columns(kept + IN_COLUMNS, own, early, 0);
    results_give(team);
    forward_half(late, sums + PIECES * 8, kept + H_LATE, own, units, bias ? bias + PIECES * 16 : nullptr);
    store_columns(kept + IN_COLUMNS, own, late, PIECES);
    barrier_wait(ring.kept(TEAMS + team), round % 2);
    store_rows(kept + IN_ROWS, own, early, 0);
    store_rows(kept + IN_ROWS, own, late, PIECES);
}

// Half of a gradient's columns from a sheet of h: the bytes, and the sums over two of a thread's rows and two lanes.
__device__ __forceinline__ void backward_half(HalfSums& half_sums, const float* sums, u32 kept, u32 sheet, u32 first,
                                              const Own& own, const Units& units, bool wants_sums) {
    Bytes bytes;
    float totals[PIECES * 4];
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float* x = sums + p * 8 + r * 2;
            uint2 pairs = load_pair(four_at(sheet, own, p, r));
            float h[4], d[4];
            widen_pair(SLOPE ? pairs.x : pair_near_zero(pairs.x), h, real());
            widen_pair(SLOPE ? pairs.y : pair_near_zero(pairs.y), h + 2, real());
            widen_pair(pack(x[0] * units.product, x[1] * units.product), d, real());
            widen_pair(pack(x[4] * units.product, x[5] * units.product), d + 2, real());
#pragma unroll
            for (int i = 0; i < 4; i++) {
                d[i] *= SLOPE ? h[i] : gelu_slope_near(h[i]);
                totals[p * 4 + i] = r == 0 ? d[i] : totals[p * 4 + i] + d[i];
            }
            bytes[p][r] = four_bytes<true>(d);
        }
    }
    store_columns(kept + IN_COLUMNS, own, bytes, first);
    // What a warp writes now lies where it alone read h.
    __syncwarp();
    store_rows(kept + IN_ROWS, own, bytes, first);
    if (wants_sums) add_lanes(half_sums, totals, own);
}

// A tile of a gradient. Both halves in one go would take more registers than there are: the second one moves to where the first was.
__device__ __forceinline__ void finish_backward(Sums& sums, u32 kept, const Units& units, bool wants_sums,
                                                const Stages& ring, u32 round, int team) {
    const Own own;
    HalfSums late = {}, early;
#pragma unroll 1
    for (u32 half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < PIECES * 2; i++) early[i] = late[i];
        barrier_wait(ring.kept(half * TEAMS + team), round % 2);
        u32 sheet = kept + (half == 0 ? H_EARLY : H_LATE);
        backward_half(late, sums, kept, sheet, half * PIECES, own, units, wants_sums);
#pragma unroll
        for (int i = 0; i < PIECES * 8; i++) sums[i] = sums[PIECES * 8 + i];
    }
    if (wants_sums) {
        leave_sums(kept, own, early, 0);
        leave_sums(kept, own, late, PIECES);
    }
}

// ---- Work --------------------------------------------------------------------------------------------------------

// Where h is, or goes to, and where results go.
struct Tensors {
    const TensorMap *h, *in_rows, *in_columns;
    float* column_sums;
};

// One thread asks for a sheet of h, or hands it on.
__device__ __forceinline__ void fetch_sheet(const Stages& ring, u32 barrier, u32 to, const TensorMap* h, u32 column, u32 row) {
    barrier_expect(ring.kept(barrier), SHEET_BYTES);
    copy_box<false>(to, ring.kept(barrier), h, column, row);
}
__device__ __forceinline__ void store_sheet(const TensorMap* map, u32 from, u32 column, u32 row) {
    store_box(map, from, column, row);
    stores_commit();
}

// The warp that exchanges tiles of a product with the copy engine. The team learns when it may write the early sheet of h, and
// when bytes may take its place.
__device__ __forceinline__ void exchange_forward(const Plan& plan, const Stages& ring, u32 kept, const Tensors& to, int team) {
    bool is_first = threadIdx.x % 32 == 0;
    u32 tiles = plan.tiles();
    if (is_first) barrier_arrive_at(ring.kept(team), 0);
    for (u32 tile = team; tile < tiles; tile += TEAMS) {
        u32 row, column;
        plan.place(tile, row, column);
        results_wait(team);
        if (is_first) {
            store_sheet(to.h, kept + H_EARLY, column, row);
            stores_wait();
            barrier_arrive_at(ring.kept(TEAMS + team), 0);
        }
        __syncwarp();
        results_wait(team);
        if (is_first) {
            store_sheet(to.h, kept + H_LATE, column + 64, row);
            store_sheet(to.in_rows, kept + IN_ROWS, column, row);
            store_sheet(to.in_columns, kept + IN_COLUMNS, row, column);
            stores_wait();
            barrier_arrive_at(ring.kept(team), 0);
        }
        __syncwarp();
    }
}

// The same for a gradient, whose h comes from memory and whose sums of columns this warp adds up.
__device__ __forceinline__ void exchange_backward(const Plan& plan, const Stages& ring, u32 kept, const Tensors& to,
                                                  float unit, u32 columns, int team) {
    bool is_first = threadIdx.x % 32 == 0;
    u32 tiles = plan.tiles();
    auto fetch = [&](u32 tile, bool is_early) {
        if (tile >= tiles || !is_first) return;
        u32 row, column;
        plan.place(tile, row, column);
        if (is_early) fetch_sheet(ring, team, kept + H_EARLY, to.h, column, row);
        else fetch_sheet(ring, TEAMS + team, kept + H_LATE, to.h, column + 64, row);
    };
    fetch(team, true);
    fetch(team, false);
    for (u32 tile = team; tile < tiles; tile += TEAMS) {
        u32 row, column;
        plan.place(tile, row, column);
        results_wait(team);
        if (is_first) {
            store_sheet(to.in_rows, kept + IN_ROWS, column, row);
            store_sheet(to.in_columns, kept + IN_COLUMNS, row, column);
        }
        if (to.column_sums) {
            float4* own = reinterpret_cast<float4*>(to.column_sums + (u64)(row / ROWS) * columns + column);
            own[threadIdx.x % 32] = added_sums(kept, unit);
        }
        __syncwarp();
        fetch(tile + TEAMS, false);
        if (is_first) stores_wait();
        fetch(tile + TEAMS, true);
    }
}

// A warp of a team.
template <bool BACKWARD>
__device__ __forceinline__ void multiply_all(const Plan& plan, const Stages& ring, u32 stages, u32 kept,
                                             const Units& units, const Tensors& to, const real* bias, u32 steps,
                                             int team) {
    const Own own;
    auto release = [&](u32 stage) {
        if (own.lane == 0) barrier_arrive_at(ring.empty(stage), 0);
    };
    if (team == 1) turn_give<TEAM_THREADS>(0);
    u32 tiles = plan.tiles();
    for (u32 tile = team; tile < tiles; tile += TEAMS) {
        Sums sums;
        auto multiply = [&](u32 stage, bool begins) {
            multiply_stage<BACKWARD>(sums, stages + stage * STAGE_BYTES, own.half, begins);
        };
        u32 last = multiply_in_turn<TEAM_THREADS, STAGES>(ring, team, tile, tiles, steps, multiply, release);
        pin(sums);
        release(last);
        if constexpr (BACKWARD) {
            finish_backward(sums, kept, units, to.column_sums != nullptr, ring, tile / TEAMS, team);
        } else {
            u32 row, column;
            plan.place(tile, row, column);
            finish_forward(sums, kept, units, bias ? bias + column : nullptr, ring, tile / TEAMS, team);
        }
        results_give(team);
    }
}

template <bool BACKWARD>
__device__ __forceinline__ void run(const TensorMap* left, const TensorMap* right, const Tensors& to,
                                    const float* left_unit, const float* right_unit, const real* bias,
                                    const u32* partials, float* unit, u32 rows, u32 columns, u32 depth) {
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 stages = shared_address(memory), all_kept = stages + STAGES * STAGE_BYTES;
    Stages ring{all_kept + TEAMS * KEPT_BYTES};
    Plan plan(rows, columns);
    u32 steps = (depth + DEPTH - 1) / DEPTH;
    if (threadIdx.x == 0) {
        prefetch_map(left);
        prefetch_map(right);
        prefetch_map(to.h);
        prefetch_map(to.in_rows);
        prefetch_map(to.in_columns);
        ring.begin();
    }
    take_turn();
    __syncthreads();

    if (threadIdx.x < GROUP_THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        int warp = threadIdx.x / 32, team = warp - 1;
        if (threadIdx.x == 0) fetch_all(plan, ring, stages, left, right, steps);
        if (team >= 0 && team < TEAMS) {
            float own = units_of<BACKWARD>(left_unit, right_unit, partials).unit;
            if (blockIdx.x == 0 && threadIdx.x == 32) *unit = own;
            u32 kept = all_kept + team * KEPT_BYTES;
            if constexpr (BACKWARD) exchange_backward(plan, ring, kept, to, own, columns, team);
            else exchange_forward(plan, ring, kept, to, team);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
        int team = (threadIdx.x - GROUP_THREADS) / TEAM_THREADS;
        const Units units = units_of<BACKWARD>(left_unit, right_unit, partials);
        multiply_all<BACKWARD>(plan, ring, stages, all_kept + team * KEPT_BYTES, units, to, bias, steps, team);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
product_gelu_bytes(MAP x, MAP w, MAP h, MAP in_rows, MAP in_columns, const float* x_unit, const float* w_unit,
                   const real* bias, const u32* partials, float* unit, u32 rows, u32 columns, u32 depth) {
    run<false>(&x, &w, {&h, &in_rows, &in_columns, nullptr}, x_unit, w_unit, bias, partials, unit, rows, columns, depth);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
product_gelu_slope_bytes(MAP d_y, MAP w, MAP h, MAP in_rows, MAP in_columns, const float* d_y_unit, const float* w_unit,
                         const u32* partials, float* unit, float* column_sums, u32 rows, u32 columns, u32 depth) {
    run<true>(&d_y, &w, {&h, &in_rows, &in_columns, column_sums}, d_y_unit, w_unit, nullptr, partials, unit, rows, columns,
              depth);
}

#endif
