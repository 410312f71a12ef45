// Gradients of weights on Hopper: d_w = d_yᵀ·x over all rows, in f32.
//
// Such a product has few results and long sums. The library's tiles are of a few sizes, and where a weight has 200 of
// them, 132 multiprocessors take two turns at what would be one and a half. Here a tile is 256 of one factor's columns by
// COLUMNS of the other's, which may be any multiple of eight, so that the tiles of many weights fill whole turns.
//
// Two warpgroups have half of a tile each, and a third asks the copy engine for what comes next into a ring of stages. Two
// blocks side by side are a cluster and share the 256 columns: each fetches half of them for both. Terms of sums are rows
// of both factors, so both lie in shared memory as they do in memory, in sheets of 64 rows and 64 columns.
#include "prelude.cuh"
#include "turns.cuh"

#if REAL != 0 && defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- Sizes -------------------------------------------------------------------------------------------------------

constexpr int WIDE = 256, DEPTH = 64;
constexpr u32 TERMS_BYTES = DEPTH * SHEET_ROW_BYTES;
constexpr int WIDE_SHEETS = WIDE / 64, OTHER_SHEETS = (COLUMNS + 63) / 64;
constexpr u32 WIDE_BYTES = WIDE_SHEETS * TERMS_BYTES, STAGE_BYTES = WIDE_BYTES + OTHER_SHEETS * TERMS_BYTES;
constexpr int STAGES = (MOST_SHARED_BYTES - RING_BYTES) / STAGE_BYTES;
constexpr int CONSUMERS = 2, THREADS = (1 + CONSUMERS) * GROUP_THREADS;

// ---- Products ----------------------------------------------------------------------------------------------------

// sums [64, N] = or += aᵀ [64, 16] · b [16, N], where the 16 terms of both are rows.
#define PRODUCT_OF(N, HALF, A, B, ADD) \
    __device__ __forceinline__ void product(float (&sums)[HALF], u64 a, u64 b, u32 add) { \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16" PRODUCT_TYPES \
                     "{" PLACES_##HALF "}, %" #A ", %" #B ", add, 1, 1, 1, 1;\n}" \
                     : NUMBERS_##HALF(sums) : "l"(a), "l"(b), "r"(add)); \
    }
PRODUCT_OF(128, 64, 64, 65, 66)
PRODUCT_OF(136, 68, 68, 69, 70)
PRODUCT_OF(144, 72, 72, 73, 74)
PRODUCT_OF(152, 76, 76, 77, 78)
PRODUCT_OF(160, 80, 80, 81, 82)
PRODUCT_OF(168, 84, 84, 85, 86)
PRODUCT_OF(176, 88, 88, 89, 90)
PRODUCT_OF(184, 92, 92, 93, 94)
PRODUCT_OF(192, 96, 96, 97, 98)
PRODUCT_OF(200, 100, 100, 101, 102)

// 128 of the wide columns, 64 after the other.
typedef float Sums[2][COLUMNS / 2];

__device__ __forceinline__ void multiply_stage(Sums& sums, u32 stage, int group, bool is_first) {
    u64 wide = operand(stage + group * 2 * TERMS_BYTES, TERMS_BYTES), other = operand(stage + WIDE_BYTES, TERMS_BYTES);
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
        // In the units of operands: 16 rows are 2048 bytes.
        u32 add = !is_first || k > 0;
        product(sums[0], wide + k * 128, other + k * 128, add);
        product(sums[1], wide + k * 128 + TERMS_BYTES / 16, other + k * 128, add);
    }
}

// ---- Work --------------------------------------------------------------------------------------------------------

// Where a block's tile begins. Clusters take one pair of tiles after the other, along the wide columns first.
struct Tile {
    u32 wide, other;
    __device__ __forceinline__ Tile(u32 unit, u32 rank, u32 wide_columns) {
        u32 wide_tiles = (wide_columns + WIDE - 1) / WIDE;
        wide = unit % wide_tiles * WIDE;
        other = (unit / wide_tiles * CLUSTER + rank) * COLUMNS;
    }
};

typedef Ring<STAGES, 0, CONSUMERS * GROUP_WARPS> Barriers;

// The thread that keeps the ring full.
__device__ __forceinline__ void fetch_all(const TensorMap* wide, const TensorMap* other, u32 wide_columns, u32 rows,
                                          u32 units, const Barriers& ring, u32 stages, u32 rank) {
    constexpr u32 SHARE = WIDE_SHEETS / CLUSTER;
    Place<STAGES> at(0);
#pragma unroll 1
    for (u32 unit = blockIdx.x / CLUSTER; unit < units; unit += gridDim.x / CLUSTER) {
        Tile tile(unit, rank, wide_columns);
#pragma unroll 1
        for (u32 row = 0; row < rows; row += DEPTH, at.next()) {
            u32 full = ring.full(at.stage), to = stages + at.stage * STAGE_BYTES;
            barrier_wait(ring.empty(at.stage), at.round % 2 ^ 1);
            barrier_expect(full, STAGE_BYTES);
#pragma unroll
            for (u32 i = 0; i < SHARE; i++) {
                u32 sheet = rank * SHARE + i;
                copy_box<true>(to + sheet * TERMS_BYTES, full, wide, tile.wide + sheet * 64, row);
            }
#pragma unroll
            for (u32 sheet = 0; sheet < OTHER_SHEETS; sheet++) {
                copy_box<false>(to + WIDE_BYTES + sheet * TERMS_BYTES, full, other, tile.other + sheet * 64, row);
            }
        }
    }
}

// A tile's results where they belong. TURNED: the wide columns are the columns of `out`, not its rows. Either way the lanes
// of a warp fill whole sectors of 32 bytes.
template <bool TURNED>
__device__ __forceinline__ void finish(const Sums& sums, float* out, const Tile& tile, u32 wide_columns,
                                       u32 other_columns, u32 adds, int group) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS;
    u32 first_wide = tile.wide + group * 128 + warp * 16 + lane / 4, first_other = tile.other + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
            for (int lower = 0; lower < 2; lower++) {
                u32 wide = first_wide + half * 64 + lower * 8, other = first_other + n * 8;
                float low = sums[half][n * 4 + lower * 2], high = sums[half][n * 4 + lower * 2 + 1];
                if (wide >= wide_columns || other >= other_columns) continue;
                if constexpr (TURNED) {
                    float* to = out + (u64)other * wide_columns + wide;
                    to[0] = adds ? to[0] + low : low;
                    to[wide_columns] = adds ? to[wide_columns] + high : high;
                } else {
                    float2* to = reinterpret_cast<float2*>(out + (u64)wide * other_columns + other);
                    float2 there = adds ? *to : make_float2(0.0f, 0.0f);
                    *to = make_float2(there.x + low, there.y + high);
                }
            }
        }
    }
}

template <bool TURNED>
__device__ __forceinline__ void run(const TensorMap* wide, const TensorMap* other, float* out, u32 wide_columns,
                                    u32 other_columns, u32 rows, u32 adds) {
    constexpr u32 PAIR = CLUSTER * COLUMNS;
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 stages = shared_address(memory), rank = rank_in_cluster();
    u32 units = (wide_columns + WIDE - 1) / WIDE * ((other_columns + PAIR - 1) / PAIR);
    Barriers ring{stages + STAGES * STAGE_BYTES};
    if (threadIdx.x == 0) {
        prefetch_map(wide);
        prefetch_map(other);
        ring.begin();
    }
    take_turn();
    cluster_wait();

    // What one thread gives back must pay for what another asks for, or all of them wait forever.
    if (threadIdx.x < GROUP_THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) fetch_all(wide, other, wide_columns, rows, units, ring, stages, rank);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        int group = threadIdx.x / GROUP_THREADS - 1, lane = threadIdx.x % 32;
        // A stage may be overwritten when both blocks are done with it: a lane tells each of them.
        auto release = [&](u32 stage) {
            if (lane < CLUSTER) barrier_arrive_at(ring.empty(stage), lane);
        };
        Place<STAGES> at(0);
        Sums sums;
        for (u32 unit = blockIdx.x / CLUSTER; unit < units; unit += gridDim.x / CLUSTER) {
            u32 before = 0;
            for (u32 row = 0; row < rows; row += DEPTH) {
                barrier_wait(ring.full(at.stage), at.round % 2);
                products_begin();
                multiply_stage(sums, stages + at.stage * STAGE_BYTES, group, row == 0);
                products_commit();
                products_wait<1>();
                if (row > 0) release(before);
                before = at.stage;
                at.next();
            }
            products_wait<0>();
            pin(sums[0]);
            pin(sums[1]);
            release(before);
            Tile tile(unit, rank, wide_columns);
            finish<TURNED>(sums, out, tile, wide_columns, other_columns, adds, group);
        }
    }
    __syncwarp();
    // Nobody leaves while the other block may still write to its memory.
    cluster_wait();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
weight_gradient(MAP wide, MAP other, float* out, u32 wide_columns, u32 other_columns, u32 rows, u32 adds) {
    run<false>(&wide, &other, out, wide_columns, other_columns, rows, adds);
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
weight_gradient_turned(MAP wide, MAP other, float* out, u32 wide_columns, u32 other_columns, u32 rows, u32 adds) {
    run<true>(&wide, &other, out, wide_columns, other_columns, rows, adds);
}

#endif
