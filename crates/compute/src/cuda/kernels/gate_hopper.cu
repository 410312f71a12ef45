// Products with a gate on Hopper. Forward: gates and ups = x·wᵀ, where w has the rows of all gates before those of all ups,
// and y = SiLU(gate) ⊙ up. Kept are not the two but their slopes, up ⊙ SiLU'(gate) and SiLU(gate), so that the gradient,
// which is either slope times d_y·w, has no exponentials.
//
// Two warpgroups take turns at the matrix units, as in gelu_hopper.cu. Forward, a tile is of 64 gates and their 64 ups, so
// that a thread has both of a pair. Backward, a tile of 128 columns has four times as much to exchange with memory as it has
// products: slopes come and gradients leave in units of 64 by 64 pairs, for which each warpgroup has two places, and a warp
// beside the one that keeps the ring full asks for both. So neither warpgroup waits until something has left.
#include "prelude.cuh"
#include "gelu.cuh"
#include "tile_products.cuh"

#if REAL != 0 && defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- Sizes -------------------------------------------------------------------------------------------------------

static_assert(COLUMNS == 128, "a tile is two sheets wide");

// What leaves at once: 64 rows of both slopes and of y, or of both gradients.
constexpr int FORWARD_BYTES = 3 * HALF_BYTES, UNIT_BYTES = 2 * HALF_BYTES;
constexpr int FORWARD_STAGES = STAGES_BESIDE<CONSUMERS * FORWARD_BYTES>;
// Units of a tile, and places for them.
constexpr int UNITS = 4, PLACES = 2;
constexpr int BACKWARD_STAGES = STAGES_BESIDE<CONSUMERS * PLACES * UNIT_BYTES>;

// ---- Forward -----------------------------------------------------------------------------------------------------

// Slopes and y of a tile, 64 rows after the other, by way of shared memory.
__device__ __forceinline__ void finish_forward(const Sums& sums, u32 kept, const TensorMap* slopes_map,
                                               const TensorMap* y_map, u32 row, u32 column, u32 width, int group) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS;
    bool is_first = threadIdx.x % GROUP_THREADS == 0;
    u32 rows = kept + warp * 16 * SHEET_ROW_BYTES;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // What was stored before has been read when all meet.
        if (is_first) stores_wait();
        group_wait(group);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            u32 of_gates[4], of_ups[4], ys[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float* gates = &sums[half][n * 4 + 2 * i];
                const float* ups = gates + COLUMNS / 4;
                float of_gate[2], of_up[2], y[2];
#pragma unroll
                for (int e = 0; e < 2; e++) silu_gate_and_slopes(gates[e], ups[e], y[e], of_gate[e], of_up[e]);
                of_gates[i] = pack(of_gate[0], of_gate[1]);
                of_ups[i] = pack(of_up[0], of_up[1]);
                ys[i] = pack(y[0], y[1]);
            }
            u32 to = matrices_at(rows, n, lane);
            store_matrices(to, of_gates);
            store_matrices(to + HALF_BYTES, of_ups);
            store_matrices(to + 2 * HALF_BYTES, ys);
        }
        writes_for_copies();
        group_wait(group);
        if (is_first) {
            u32 from = row + half * 64;
            store_box(slopes_map, kept, column, from);
            store_box(slopes_map, kept + HALF_BYTES, width + column, from);
            store_box(y_map, kept + 2 * HALF_BYTES, column, from);
            stores_commit();
        }
    }
}

__device__ __forceinline__ void forward(const TensorMap* x, const TensorMap* w, const TensorMap* slopes, const TensorMap* y,
                                        u32 rows, u32 width, u32 depth) {
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 stages = shared_address(memory), all_kept = stages + FORWARD_STAGES * STAGE_BYTES;
    Ring<FORWARD_STAGES, 0> ring{all_kept + CONSUMERS * FORWARD_BYTES};
    Plan plan(rows, 2 * width);
    u32 tiles = plan.tiles(), steps = (depth + DEPTH - 1) / DEPTH;
    if (threadIdx.x == 0) {
        prefetch_map(x);
        prefetch_map(w);
        prefetch_map(slopes);
        prefetch_map(y);
        ring.begin();
    }
    take_turn();
    cluster_wait();

    if (threadIdx.x < GROUP_THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        // Of two blocks, one fetches gates for both, and the other ups.
        auto fetch_right = [&](u32 to, u32 full, u32 column, u32 term) {
#pragma unroll
            for (u32 part = 0; part < 2; part++) {
                if (CLUSTER > 1 && part != plan.rank) continue;
                copy_box<(CLUSTER > 1)>(to + part * HALF_BYTES, full, w, term, part * width + column / 2);
            }
        };
        if (threadIdx.x == 0) fetch_stages(plan, ring, stages, x, steps, fetch_right);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        int group = threadIdx.x / GROUP_THREADS - 1, lane = threadIdx.x % 32;
        // A stage may be overwritten when all blocks that it goes to are done with it: a lane tells each of them.
        auto release = [&](u32 stage) {
            if (lane < CLUSTER) barrier_arrive_at(ring.empty(stage), lane);
        };
        if (group == 1) turn_give<GROUP_THREADS>(0);
        for (u32 tile = group; tile < tiles; tile += CONSUMERS) {
            Sums sums;
            u32 row, column;
            plan.place(tile, row, column);
            auto multiply = [&](u32 stage, bool begins) {
                multiply_stage<false>(sums, stages + stage * STAGE_BYTES, begins);
            };
            u32 last = multiply_in_turn<GROUP_THREADS, FORWARD_STAGES>(ring, group, tile, tiles, steps, multiply, release);
            pin(sums[0]);
            pin(sums[1]);
            release(last);
            finish_forward(sums, all_kept + group * FORWARD_BYTES, slopes, y, row, column / 2, width, group);
        }
        if (threadIdx.x % GROUP_THREADS == 0) stores_wait();
    }
    __syncwarp();
    // Nobody leaves while another block may still write to its memory.
    cluster_wait();
}

// ---- Backward ----------------------------------------------------------------------------------------------------

// The barriers of a ring, and those of each warpgroup's places: slopes have come, and gradients are there.
struct Barriers : Ring<BACKWARD_STAGES, CONSUMERS * PLACES> {
    __device__ __forceinline__ u32 come(int group, u32 place) const { return kept(group * PLACES + place); }
    __device__ __forceinline__ u32 made(int group, u32 place) const { return kept((CONSUMERS + group) * PLACES + place); }
    __device__ __forceinline__ void begin() const {
        Ring::begin();
        for (int place = 0; place < CONSUMERS * PLACES; place++) {
            barrier_begin_counted(kept(CONSUMERS * PLACES + place), GROUP_WARPS);
        }
        barriers_begun();
    }
};

// Where a unit of a tile begins: the halves of a sheet, then those of the next.
__device__ __forceinline__ void unit_place(u32 unit, u32& row, u32& column) {
    row += unit % 2 * 64;
    column += unit / 2 * 64;
}

// The thread that brings a warpgroup's slopes and takes its gradients away.
__device__ __forceinline__ void exchange(const Plan& plan, const Barriers& barriers, u32 kept, const TensorMap* slopes,
                                         const TensorMap* d, u32 width, int group) {
    u32 tiles = plan.tiles(), own = tiles > group ? (tiles - group + CONSUMERS - 1) / CONSUMERS : 0, units = own * UNITS;
    auto place = [&](u32 unit, u32& row, u32& column) {
        plan.place(unit / UNITS * CONSUMERS + group, row, column);
        unit_place(unit % UNITS, row, column);
    };
    for (u32 unit = 0; unit < units + PLACES; unit++) {
        u32 at = unit % PLACES, here = kept + at * UNIT_BYTES, row, column;
        if (unit >= PLACES) {
            place(unit - PLACES, row, column);
            barrier_wait(barriers.made(group, at), (unit / PLACES - 1) % 2);
            store_box(d, here, column, row);
            store_box(d, here + HALF_BYTES, width + column, row);
            stores_commit();
            stores_wait();
        }
        if (unit < units) {
            place(unit, row, column);
            barrier_expect(barriers.come(group, at), UNIT_BYTES);
            copy_box<false>(here, barriers.come(group, at), slopes, column, row);
            copy_box<false>(here + HALF_BYTES, barriers.come(group, at), slopes, width + column, row);
        }
    }
}

// The gradients of a tile in place of slopes.
__device__ __forceinline__ void finish_backward(const Sums& sums, const Barriers& barriers, u32 kept, int group) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS;
#pragma unroll
    for (int unit = 0; unit < UNITS; unit++) {
        // A tile's units use either place twice, so every tile begins with the same phase.
        barrier_wait(barriers.come(group, unit % PLACES), unit / PLACES % 2);
        u32 rows = kept + unit % PLACES * UNIT_BYTES + warp * 16 * SHEET_ROW_BYTES;
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            u32 at = matrices_at(rows, n, lane), of_gates[4], of_ups[4];
            load_matrices(of_gates, at);
            load_matrices(of_ups, at + HALF_BYTES);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float* d_y = &sums[unit % 2][unit / 2 * COLUMNS / 4 + n * 4 + 2 * i];
                float of_gate[2], of_up[2];
                widen_pair(of_gates[i], of_gate, real());
                widen_pair(of_ups[i], of_up, real());
                of_gates[i] = pack(d_y[0] * of_gate[0], d_y[1] * of_gate[1]);
                of_ups[i] = pack(d_y[0] * of_up[0], d_y[1] * of_up[1]);
            }
            store_matrices(at, of_gates);
            store_matrices(at + HALF_BYTES, of_ups);
        }
        writes_for_copies();
        __syncwarp();
        if (lane == 0) barrier_arrive(barriers.made(group, unit % PLACES));
    }
}

__device__ __forceinline__ void backward(const TensorMap* d_y, const TensorMap* w, const TensorMap* slopes,
                                         const TensorMap* d, u32 rows, u32 width, u32 depth) {
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 stages = shared_address(memory), all_kept = stages + BACKWARD_STAGES * STAGE_BYTES;
    Barriers barriers{all_kept + CONSUMERS * PLACES * UNIT_BYTES};
    Plan plan(rows, width);
    u32 tiles = plan.tiles(), steps = (depth + DEPTH - 1) / DEPTH;
    if (threadIdx.x == 0) {
        prefetch_map(d_y);
        prefetch_map(w);
        prefetch_map(slopes);
        prefetch_map(d);
        barriers.begin();
    }
    take_turn();
    cluster_wait();

    if (threadIdx.x < GROUP_THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        int warp = threadIdx.x / 32;
        bool is_first = threadIdx.x % 32 == 0;
        auto fetch_right = [&](u32 to, u32 full, u32 column, u32 term) { fetch_rows(plan, w, to, full, column, term); };
        if (is_first && warp == 0) fetch_stages(plan, barriers, stages, d_y, steps, fetch_right);
        if (is_first && warp > 0 && warp <= CONSUMERS) {
            int group = warp - 1;
            exchange(plan, barriers, all_kept + group * PLACES * UNIT_BYTES, slopes, d, width, group);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        int group = threadIdx.x / GROUP_THREADS - 1, lane = threadIdx.x % 32;
        auto release = [&](u32 stage) {
            if (lane < CLUSTER) barrier_arrive_at(barriers.empty(stage), lane);
        };
        if (group == 1) turn_give<GROUP_THREADS>(0);
        for (u32 tile = group; tile < tiles; tile += CONSUMERS) {
            Sums sums;
            auto multiply = [&](u32 stage, bool begins) {
                multiply_stage<true>(sums, stages + stage * STAGE_BYTES, begins);
            };
            u32 last =
                multiply_in_turn<GROUP_THREADS, BACKWARD_STAGES>(barriers, group, tile, tiles, steps, multiply, release);
            pin(sums[0]);
            pin(sums[1]);
            release(last);
            finish_backward(sums, barriers, all_kept + group * PLACES * UNIT_BYTES, group);
        }
    }
    __syncwarp();
    // Nobody leaves while another block may still write to its memory.
    cluster_wait();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
product_gate(MAP x, MAP w, MAP slopes, MAP y, u32 rows, u32 width, u32 depth) {
    forward(&x, &w, &slopes, &y, rows, width, depth);
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
product_gate_slopes(MAP d_y, MAP w, MAP slopes, MAP d, u32 rows, u32 width, u32 depth) {
    backward(&d_y, &w, &slopes, &d, rows, width, depth);
}

#endif
