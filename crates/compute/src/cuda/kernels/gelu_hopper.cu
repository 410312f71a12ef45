// Products with GELU on Hopper: y = GELU(h), h = x·wᵀ + bias, and the gradient d_h = (d_y·w) ⊙ GELU'(h) with the sums
// of its columns. With SLOPE, what is kept of h is GELU'(h): forward the exponentials are there, and the gradient has none.
//
// The library multiplies a tile, then works on it while the matrix units stand still, which costs a third of the
// product. Here a block stays on its multiprocessor and two warpgroups take turns: one multiplies a tile of its own while
// the other takes exponentials of the tile before and hands it to the copy engine. A third warpgroup does nothing but ask
// the copy engine for what comes next into a ring of stages.
//
// Tiles are 128 rows by COLUMNS. Wide ones read less from the cache for each product, and a cluster of two blocks, one
// below the other, less again: each fetches half of the weights that both need, and the copy engine brings it to both.
// But what two blocks share they wait for together.
#include "prelude.cuh"
#include "gelu.cuh"
#include "tile_products.cuh"

#if REAL != 0 && defined(__CUDA_ARCH_FEAT_SM90_ALL)

#ifndef SLOPE
#define SLOPE 0
#endif

// ---- Sizes -------------------------------------------------------------------------------------------------------

constexpr int SHEETS = COLUMNS / 64;
// Sheets by which a warpgroup exchanges results with the copy engine: one of h and one of y, or all of h at once.
template <bool BACKWARD> constexpr int KEPT_SHEETS = BACKWARD ? SHEETS : 2;
template <bool BACKWARD>
constexpr int STAGES = STAGES_BESIDE<CONSUMERS * KEPT_SHEETS<BACKWARD> * SHEET_BYTES>;

// ---- Work --------------------------------------------------------------------------------------------------------

// The bias of a lane's columns in a sheet that begins at `column`.
__device__ __forceinline__ void load_bias(u32 (&added)[8], const real* bias, u32 column, u32 columns) {
    const u32* pairs = reinterpret_cast<const u32*>(bias);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        u32 at = column + n * 8 + threadIdx.x % 4 * 2;
        added[n] = bias && at < columns ? pairs[at / 2] : 0;
    }
}

// h and y of a tile, 64 rows of a sheet at a time, each by way of half a sheet in shared memory: while the copy engine reads
// one half, the other is written. `added` is the bias of the first sheet.
__device__ __forceinline__ void finish_forward(const Sums& sums, u32 (&added)[8], u32 kept, const TensorMap* h_map,
                                               const TensorMap* y_map, const real* bias, u32 row, u32 column,
                                               u32 columns, int group) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS;
    bool is_first = threadIdx.x % GROUP_THREADS == 0;
#pragma unroll
    for (int sheet = 0; sheet < SHEETS; sheet++) {
        u32 next[8];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (half == 1 && sheet + 1 < SHEETS) load_bias(next, bias, column + (sheet + 1) * 64, columns);
            u32 from = kept + half * HALF_BYTES, rows = from + warp * 16 * SHEET_ROW_BYTES;
#pragma unroll
            for (int n = 0; n < 8; n += 2) {
                u32 h[4], y[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float shift[2];
                    widen_pair(added[n + i / 2], shift, real());
                    int at = (sheet * 8 + n) * 4 + 2 * i;
                    float low = sums[half][at] + shift[0], high = sums[half][at + 1] + shift[1];
                    if constexpr (SLOPE) {
                        float of[2], slopes[2];
                        gelu_and_slope(low, of[0], slopes[0]);
                        gelu_and_slope(high, of[1], slopes[1]);
                        h[i] = pack(slopes[0], slopes[1]);
                        y[i] = pack(of[0], of[1]);
                    } else {
                        h[i] = pack(low, high);
                        y[i] = pack(gelu_of(low), gelu_of(high));
                    }
                }
                u32 to = matrices_at(rows, n, lane);
                store_matrices(to, h);
                store_matrices(to + SHEET_BYTES, y);
            }
            writes_for_copies();
            // What was stored from the other half has been read when all meet.
            if (is_first) stores_wait();
            group_wait(group);
            if (is_first) {
                store_box(h_map, from, column + sheet * 64, row + half * 64);
                store_box(y_map, from + SHEET_BYTES, column + sheet * 64, row + half * 64);
                stores_commit();
            }
        }
#pragma unroll
        for (int n = 0; n < 8 && sheet + 1 < SHEETS; n++) added[n] = next[n];
    }
}

// The sums of a warp's share of a tile's columns, to `to` and on: a row of ones times the tile, by the matrix units.
__device__ __forceinline__ void sum_columns(u32 kept, float* to, u32 column, u32 columns) {
    constexpr u32 ONE = REAL == 1 ? 0x3f803f80u : 0x3c003c00u;
    const u32 ones[4] = {ONE, ONE, ONE, ONE};
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS;
#pragma unroll
    for (int pair = 0; pair < COLUMNS / 16 / GROUP_WARPS; pair++) {
        int n = 2 * (warp * (COLUMNS / 16 / GROUP_WARPS) + pair);
        float sums[2][4] = {};
#pragma unroll
        for (int row = 0; row < ROWS; row += 16) {
            u32 terms[4];
            load_matrices_transposed(terms, matrices_at(kept + n / 8 * SHEET_BYTES + row * SHEET_ROW_BYTES, n % 8, lane));
            multiply(sums[0], ones, terms[0], terms[1]);
            multiply(sums[1], ones, terms[2], terms[3]);
        }
        // All rows of these sums are the same.
        u32 at = column + n * 8 + lane * 2;
        if (lane < 4 && at < columns) *reinterpret_cast<float2*>(to + at) = make_float2(sums[0][0], sums[0][1]);
        if (lane < 4 && at + 8 < columns) *reinterpret_cast<float2*>(to + at + 8) = make_float2(sums[1][0], sums[1][1]);
    }
}

// d_h of a tile in place of h, which is there, and the sums of its columns. What comes next of h is asked for before it is
// needed: the matrix units read the same memory, and every answer takes its time.
__device__ __forceinline__ void finish_backward(const Sums& sums, u32 kept, const TensorMap* d_h_map,
                                                float* column_sums, u32 row, u32 column, u32 rows_in_all, u32 columns,
                                                int group) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS;
    constexpr int PAIRS = SHEETS * 4;
    u32 h[2][2][4];
    auto at = [&](int pair, int half) {
        u32 rows = kept + pair / 4 * SHEET_BYTES + (half * 64 + warp * 16) * SHEET_ROW_BYTES;
        return matrices_at(rows, pair % 4 * 2, lane);
    };
    load_matrices(h[0][0], at(0, 0));
    load_matrices(h[0][1], at(0, 1));
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
        if (pair + 1 < PAIRS) {
            load_matrices(h[(pair + 1) % 2][0], at(pair + 1, 0));
            load_matrices(h[(pair + 1) % 2][1], at(pair + 1, 1));
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 (&numbers)[4] = h[pair % 2][half];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float x[2];
                if constexpr (SLOPE) {
                    widen_pair(numbers[i], x, real());
                } else {
                    widen_pair(pair_near_zero(numbers[i]), x, real());
                    x[0] = gelu_slope_near(x[0]);
                    x[1] = gelu_slope_near(x[1]);
                }
                numbers[i] = pack(sums[half][pair * 8 + 2 * i] * x[0], sums[half][pair * 8 + 2 * i + 1] * x[1]);
            }
            store_matrices(at(pair, half), numbers);
        }
    }
    writes_for_copies();
    group_wait(group);
    if (threadIdx.x % GROUP_THREADS == 0) {
#pragma unroll
        for (int sheet = 0; sheet < SHEETS; sheet++) {
            store_box(d_h_map, kept + sheet * SHEET_BYTES, column + sheet * 64, row);
        }
        stores_commit();
    }
    if (column_sums) {
        if (row < rows_in_all) sum_columns(kept, column_sums + (u64)(row / ROWS) * columns, column, columns);
        group_wait(group);
    }
}

template <bool BACKWARD>
__device__ __forceinline__ void run(const TensorMap* left, const TensorMap* right, const TensorMap* h_map,
                                    const TensorMap* out_map, const real* bias, float* column_sums, u32 rows,
                                    u32 columns, u32 depth) {
    constexpr int STAGES = ::STAGES<BACKWARD>, KEPT_BYTES = KEPT_SHEETS<BACKWARD> * SHEET_BYTES;
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 stages = shared_address(memory), all_kept = stages + STAGES * STAGE_BYTES;
    Ring<STAGES, CONSUMERS> ring{all_kept + CONSUMERS * KEPT_BYTES};
    Plan plan(rows, columns);
    u32 tiles = plan.tiles(), steps = (depth + DEPTH - 1) / DEPTH;
    if (threadIdx.x == 0) {
        prefetch_map(left);
        prefetch_map(right);
        prefetch_map(h_map);
        prefetch_map(out_map);
        ring.begin();
    }
    take_turn();
    cluster_wait();

    if (threadIdx.x < GROUP_THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        auto fetch_right = [&](u32 to, u32 full, u32 column, u32 term) {
            if constexpr (BACKWARD) {
                fetch_rows(plan, right, to, full, column, term);
            } else {
                constexpr u32 SHARE = COLUMNS / CLUSTER;
                u32 own = plan.rank * SHARE;
                copy_box<(CLUSTER > 1)>(to + own * SHEET_ROW_BYTES, full, right, term, column + own);
            }
        };
        if (threadIdx.x == 0) fetch_stages(plan, ring, stages, left, steps, fetch_right);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        int group = threadIdx.x / GROUP_THREADS - 1, lane = threadIdx.x % 32;
        bool is_first = threadIdx.x % GROUP_THREADS == 0;
        u32 kept = all_kept + group * KEPT_BYTES;
        // A stage may be overwritten when all blocks that it goes to are done with it: a lane tells each of them.
        auto release = [&](u32 stage) {
            if (lane < CLUSTER) barrier_arrive_at(ring.empty(stage), lane);
        };
        auto fetch_h = [&](u32 tile) {
            u32 row, column;
            plan.place(tile, row, column);
            barrier_expect(ring.kept(group), KEPT_BYTES);
#pragma unroll
            for (int sheet = 0; sheet < SHEETS; sheet++) {
                copy_box<false>(kept + sheet * SHEET_BYTES, ring.kept(group), h_map, column + sheet * 64, row);
            }
        };
        if (BACKWARD && is_first && (u32)group < tiles) fetch_h(group);
        if (group == 1) turn_give<GROUP_THREADS>(0);
        for (u32 tile = group; tile < tiles; tile += CONSUMERS) {
            Sums sums;
            u32 row, column, added[8];
            plan.place(tile, row, column);
            if constexpr (!BACKWARD) load_bias(added, bias, column, columns);
            auto multiply = [&](u32 stage, bool begins) {
                multiply_stage<BACKWARD>(sums, stages + stage * STAGE_BYTES, begins);
            };
            u32 last = multiply_in_turn<GROUP_THREADS, STAGES>(ring, group, tile, tiles, steps, multiply, release);
            pin(sums[0]);
            pin(sums[1]);
            release(last);
            if constexpr (BACKWARD) {
                barrier_wait(ring.kept(group), tile / CONSUMERS % 2);
                finish_backward(sums, kept, out_map, column_sums, row, column, rows, columns, group);
                if (is_first) {
                    stores_wait();
                    if (tile + CONSUMERS < tiles) fetch_h(tile + CONSUMERS);
                }
            } else {
                finish_forward(sums, added, kept, h_map, out_map, bias, row, column, columns, group);
            }
        }
        if (is_first) stores_wait();
    }
    __syncwarp();
    // Nobody leaves while another block may still write to its memory.
    cluster_wait();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
product_gelu(MAP x, MAP w, MAP h, MAP y, const real* bias, u32 rows, u32 columns, u32 depth) {
    run<false>(&x, &w, &h, &y, bias, nullptr, rows, columns, depth);
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
product_gelu_slope(MAP d_y, MAP w, MAP h, MAP d_h, float* column_sums, u32 rows, u32 columns, u32 depth) {
    run<true>(&d_y, &w, &h, &d_h, nullptr, column_sums, rows, columns, depth);
}

#endif
