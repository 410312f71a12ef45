// Tiles of products of halves, as blocks of two warpgroups multiply them in turns from stages of a ring: 128 rows by COLUMNS, one
// factor's terms along rows, and those of the other along rows or columns. Comes after prelude.cuh.
#pragma once
#include "turns.cuh"

#if REAL != 0 && defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int DEPTH = 64;
constexpr int LEFT_BYTES = ROWS * DEPTH * 2, RIGHT_BYTES = COLUMNS * DEPTH * 2, STAGE_BYTES = LEFT_BYTES + RIGHT_BYTES;
constexpr int HALF_BYTES = SHEET_BYTES / 2;
constexpr int CONSUMERS = 2, THREADS = (1 + CONSUMERS) * GROUP_THREADS;
// Stages for which there is room beside so many bytes.
template <int BYTES> constexpr int STAGES_BESIDE = (MOST_SHARED_BYTES - RING_BYTES - BYTES) / STAGE_BYTES;

// ---- Products ----------------------------------------------------------------------------------------------------

// sums [64, 2·N] = or += a [64, 16] · b [16, 2·N]; the terms of b run along rows, or are its rows.
template <bool TERMS_ARE_ROWS> __device__ __forceinline__ void product(float (&sums)[64], u64 a, u64 b, u32 add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16" PRODUCT_TYPES
                 "{" PLACES_64 "}, %64, %65, add, 1, 1, 0, %67;\n}"
                 : NUMBERS_64(sums) : "l"(a), "l"(b), "r"(add), "n"(int(TERMS_ARE_ROWS)));
}
template <bool TERMS_ARE_ROWS> __device__ __forceinline__ void product(float (&sums)[96], u64 a, u64 b, u32 add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16" PRODUCT_TYPES
                 "{" PLACES_96 "}, %96, %97, add, 1, 1, 0, %99;\n}"
                 : NUMBERS_96(sums) : "l"(a), "l"(b), "r"(add), "n"(int(TERMS_ARE_ROWS)));
}

// One tile, 64 rows after the other.
typedef float Sums[2][COLUMNS / 2];

template <bool TERMS_ARE_ROWS> __device__ __forceinline__ void multiply_stage(Sums& sums, u32 stage, bool is_first) {
    constexpr u32 RIGHT_SHEET = DEPTH * SHEET_ROW_BYTES;
    u64 a = operand(stage, 16), b = operand(stage + LEFT_BYTES, TERMS_ARE_ROWS ? RIGHT_SHEET : 16);
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
        // In the units of operands: 16 terms along rows are 32 bytes, 16 rows are 2048.
        u64 left = a + k * 2, right = b + k * (TERMS_ARE_ROWS ? 128 : 2);
        u32 add = !is_first || k > 0;
        product<TERMS_ARE_ROWS>(sums[0], left, right, add);
        product<TERMS_ARE_ROWS>(sums[1], left + 64 * SHEET_ROW_BYTES / 16, right, add);
    }
}

// ---- Stages ------------------------------------------------------------------------------------------------------

// The thread that keeps the ring full: the left factor, and by `fetch_right(to, full, column, term)` this block's share of the right one.
template <typename Barriers, typename FetchRight>
__device__ __forceinline__ void fetch_stages(const Plan& plan, const Barriers& ring, u32 stages, const TensorMap* left,
                                             u32 steps, FetchRight fetch_right) {
    Place<Barriers::STAGES> at(0);
    for (u32 tile = 0; tile < plan.tiles(); tile++) {
        u32 row, column;
        plan.place(tile, row, column);
        for (u32 step = 0; step < steps; step++, at.next()) {
            u32 full = ring.full(at.stage), to = stages + at.stage * STAGE_BYTES, term = step * DEPTH;
            barrier_wait(ring.empty(at.stage), at.round % 2 ^ 1);
            barrier_expect(full, STAGE_BYTES);
            copy_box<false>(to, full, left, term, row);
            fetch_right(to + LEFT_BYTES, full, column, term);
        }
    }
}

// A block's share of a right factor whose terms are rows: some rows of each sheet.
__device__ __forceinline__ void fetch_rows(const Plan& plan, const TensorMap* right, u32 to, u32 full, u32 column, u32 term) {
    constexpr u32 SHARE = DEPTH / CLUSTER;
#pragma unroll
    for (int sheet = 0; sheet < COLUMNS / 64; sheet++) {
        u32 own = (sheet * DEPTH + plan.rank * SHARE) * SHEET_ROW_BYTES;
        copy_box<(CLUSTER > 1)>(to + own, full, right, column + sheet * 64, term + plan.rank * SHARE);
    }
}

// ---- Results -----------------------------------------------------------------------------------------------------

// Where lane l's row of four 8×8 matrices lies in a warp's 16 rows of a sheet: rows 0.. and 8.. of piece n, then of the
// piece after it.
__device__ __forceinline__ u32 matrices_at(u32 rows, int n, int lane) {
    u32 row = lane % 16, piece = n + lane / 16;
    return rows + row * SHEET_ROW_BYTES + ((piece ^ (row & 7)) << 4);
}

#endif
