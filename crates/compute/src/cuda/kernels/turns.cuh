// What products in turns are made of: a block stays on its multiprocessor, and some warpgroups take turns at the matrix units. One
// multiplies a tile of its own while the others work on the tiles before and hand them to the copy engine. Another warpgroup
// does nothing but ask the copy engine for what comes next into a ring of stages. Comes after prelude.cuh.
//
// Tiles are 128 rows by COLUMNS; CLUSTER blocks, one below the other, share what they read of the right factor.
#pragma once
#include "warpgroup.cuh"

#ifndef COLUMNS
#define COLUMNS 128
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif

constexpr int ROWS = 128, SHEET_BYTES = ROWS * SHEET_ROW_BYTES;
// Shared memory of a block, and what barriers take of it.
constexpr int MOST_SHARED_BYTES = 232448, RING_BYTES = 256;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- Clusters ----------------------------------------------------------------------------------------------------

__device__ __forceinline__ u32 rank_in_cluster() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// All threads of all blocks of the cluster meet.
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at the barrier that lies at this place of another block, or of this one. The order is that of a block, not of
// the cluster, which would cost a fence as long as two stages: what was read with it has come to an end.
__device__ __forceinline__ void barrier_arrive_at(u32 barrier, u32 rank) {
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}"
        ::"r"(barrier), "r"(rank) : "memory");
}

// ---- Copies ------------------------------------------------------------------------------------------------------

// A box of a matrix to this block, or to the same place of all blocks of the cluster, whose barriers at the same place
// learn of it.
template <bool TO_ALL>
__device__ __forceinline__ void copy_box(u32 to, u32 barrier, const TensorMap* map, u32 column, u32 row) {
    if constexpr (!TO_ALL) {
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4}], [%2];"
                     ::"r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row) : "memory");
    } else {
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, {%3, %4}], [%2], %5;"
                     ::"r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row), "h"((u16)((1 << CLUSTER) - 1)) : "memory");
    }
}
// A box from shared memory; what lies outside of the matrix is not written.
__device__ __forceinline__ void store_box(const TensorMap* map, u32 from, u32 column, u32 row) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(map), "r"(from), "r"(column), "r"(row) : "memory");
}
__device__ __forceinline__ void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until shared memory that was given to stores may be written again.
__device__ __forceinline__ void stores_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// ---- Turns -------------------------------------------------------------------------------------------------------

// Those who take turns, so many of them, wait for theirs at the matrix units, and others give it. `group_wait` and
// `team_wait` have the barriers below.
template <int THREADS> __device__ __forceinline__ void turn_wait(int turn) {
    asm volatile("bar.sync %0, %1;" ::"r"(turn + 7), "n"(2 * THREADS) : "memory");
}
template <int THREADS> __device__ __forceinline__ void turn_give(int turn) {
    asm volatile("bar.arrive %0, %1;" ::"r"(turn + 7), "n"(2 * THREADS) : "memory");
}

// ---- Work --------------------------------------------------------------------------------------------------------

// Which tile a block multiplies when: clusters take tiles in bands of BAND clusters' rows, column by column, so that what
// they read about the same time is little and stays in the cache.
constexpr u32 BAND = 8;

struct Plan {
    u32 row_units, column_units, clusters, cluster, rank;
    __device__ __forceinline__ Plan(u32 rows, u32 columns) {
        row_units = (rows + ROWS * CLUSTER - 1) / (ROWS * CLUSTER);
        column_units = (columns + COLUMNS - 1) / COLUMNS;
        clusters = gridDim.x / CLUSTER;
        cluster = blockIdx.x / CLUSTER;
        rank = rank_in_cluster();
    }
    // Tiles that each block of this cluster multiplies.
    __device__ __forceinline__ u32 tiles() const {
        u32 units = row_units * column_units;
        return units > cluster ? (units - cluster + clusters - 1) / clusters : 0;
    }
    __device__ __forceinline__ void place(u32 tile, u32& row, u32& column) const {
        u32 unit = cluster + tile * clusters, band = unit / (BAND * column_units), within = unit % (BAND * column_units);
        u32 height = min(BAND, row_units - band * BAND);
        row = ((band * BAND + within % height) * CLUSTER + rank) * ROWS;
        column = within / height * COLUMNS;
    }
};

// The barriers behind everything else in shared memory: of stages, each read by so many warps of a block, and of what is KEPT beside them.
template <int STAGE_COUNT, int KEPT, int WARPS = GROUP_WARPS> struct Ring {
    static constexpr int STAGES = STAGE_COUNT;
    u32 at;
    __device__ __forceinline__ u32 full(u32 stage) const { return at + stage * 8; }
    __device__ __forceinline__ u32 empty(u32 stage) const { return at + (STAGES + stage) * 8; }
    __device__ __forceinline__ u32 kept(int place) const { return at + (2 * STAGES + place) * 8; }
    __device__ __forceinline__ void begin() const {
        for (u32 stage = 0; stage < STAGES; stage++) {
            barrier_begin(full(stage));
            barrier_begin_counted(empty(stage), WARPS * CLUSTER);
        }
        for (int place = 0; place < KEPT; place++) barrier_begin(kept(place));
        barriers_begun();
    }
};

// A place in the ring.
template <int STAGES> struct Place {
    u32 stage, round;
    __device__ __forceinline__ explicit Place(u32 step) : stage(step % STAGES), round(step / STAGES) {}
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) {
            stage = 0;
            round++;
        }
    }
};

// The products of a tile, by those whose turn it is: `multiply` begins those of a stage, the first of which begin the sums, and
// `release` says that a stage has been read. All have ended then; the last stage, which is given back, is still to be released.
//
// The first stage stands before the loop, so that the compiler sees sums begin there: registers of sums that have been used are
// free for what follows them, where otherwise all of them would be kept for the next tile.
template <int THREADS, int STAGES, typename Barriers, typename Multiply, typename Release>
__device__ __forceinline__ u32 multiply_in_turn(const Barriers& ring, int turn, u32 tile, u32 tiles, u32 steps,
                                                Multiply multiply, Release release) {
    Place<STAGES> at(tile * steps);
    auto begin = [&](u32 step, bool begins) {
        barrier_wait(ring.full(at.stage), at.round % 2);
        products_begin();
        multiply(at.stage, begins);
        products_commit();
        if (step + 1 == steps && tile + 1 < tiles) turn_give<THREADS>(1 - turn);
    };
    turn_wait<THREADS>(turn);
    begin(0, true);
    for (u32 step = 1; step < steps; step++) {
        u32 before = at.stage;
        at.next();
        begin(step, false);
        products_wait<1>();
        release(before);
    }
    products_wait<0>();
    return at.stage;
}

#endif
