// Rows of a table by id, the gradient of that, and rotary positions.
//
// N rows of C columns, a table of V rows. An id outside its table is reported and counts for nothing.
//
// The gradient sums the rows of every id in the order of their positions. Positions are sorted by id without comparing
// ids across the whole tensor: a chunk of CHUNK positions counts its ids (`embed_grad_rank`), counts are summed over
// the chunks before and over the ids below (`embed_grad_scan`), and every position then knows its place
// (`embed_grad_place`). Tiles of TILE places are summed apart (`embed_grad_tiles`); where the places of one id cross
// from tile to tile, a tile keeps what it has of the id's beginning (`tails`) or of its continuation (`heads`), and
// whichever of these tiles is done last adds them in an order that depends on their number alone. So an id with
// thousands of rows is summed by many blocks.
#include "prelude.cuh"

#ifndef WIDE
#define WIDE 1
#endif

constexpr int W = WIDE ? WIDTH : 1;
constexpr u32 THREADS = 256;

// A warp per row.
extern "C" __global__ void __launch_bounds__(THREADS)
    embed(const real* table, const u32* ids, real* __restrict__ y, u64 n_rows, u32 columns,
          u32 table_rows, u32* fault) {
    take_turn();
    const u32 lane = threadIdx.x % 32;
    const u64 warps = (u64)gridDim.x * (THREADS / 32);
    for (u64 row = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; row < n_rows; row += warps) {
        const u32 id = ids[row];
        const bool is_there = id < table_rows;
        if (!is_there && lane == 0) report_fault(fault, id, table_rows);
        const real* from = table + (u64)(is_there ? id : 0) * columns;
        real* to = y + row * columns;
#pragma unroll 4
        for (u32 column = lane * W; column < columns; column += 32 * W) {
            float values[W];
            load(from + column, values);
#pragma unroll
            for (int e = 0; e < W; e++) values[e] = is_there ? values[e] : 0.0f;
            store(to + column, values);
        }
    }
}

constexpr u32 CHUNK = 1024;
constexpr u32 TILE = 32;
constexpr u32 NOWHERE = 0xffffffffu;

// Whether this block is the last of so many to come here. What the others wrote before is visible to it then.
__device__ __forceinline__ bool is_last_of(u32 blocks, u32* arrived) {
    __shared__ u32 before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) before = atomicAdd(arrived, 1u);
    __syncthreads();
    const bool is_last = before + 1 == blocks;
    if (is_last) __threadfence();
    return is_last;
}

// For each position, how many before it in its chunk have its id; for each chunk and id, how many positions there are.
// A block per chunk (x) and THREADS of its positions (y). `counts` is [chunks, V] and zero before.
extern "C" __global__ void __launch_bounds__(THREADS)
    embed_grad_rank(const u32* ids, u32* __restrict__ ranks, u32* __restrict__ counts, u32 n,
                    u32 table_rows, u32* fault) {
    take_turn();
    __shared__ uint4 shared[CHUNK / 4];
    u32* chunk = reinterpret_cast<u32*>(shared);
    const u64 first = (u64)blockIdx.x * CHUNK;
    const u32 own = blockIdx.y * THREADS + threadIdx.x;
    for (u32 i = threadIdx.x; i <= own; i += THREADS) chunk[i] = first + i < n ? ids[first + i] : NOWHERE;
    __syncthreads();
    if (first + own >= n) return;
    const u32 id = chunk[own];
    if (id >= table_rows) {
        report_fault(fault, id, table_rows);
        return;
    }
    u32 rank = 0;
    const u32 whole = own / 4;
#pragma unroll 4
    for (u32 i = 0; i < whole; i++) {
        const uint4 four = shared[i];
        rank += (u32)(four.x == id) + (u32)(four.y == id) + (u32)(four.z == id) + (u32)(four.w == id);
    }
    for (u32 i = whole * 4; i < own; i++) rank += (u32)(chunk[i] == id);
    ranks[first + own] = rank;
    atomicAdd(&counts[(u64)blockIdx.x * table_rows + id], 1u);
}

// The sum of the threads' numbers before this one; `total` is that of the whole block. `warps` has a place per warp.
__device__ __forceinline__ u32 block_scan(u32 x, u32* warps, u32& total) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 sum = x;
#pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
        const u32 below = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) sum += below;
    }
    __syncthreads();
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    u32 before = 0;
    total = 0;
    for (u32 i = 0; i < blockDim.x / 32; i++) {
        if (i < warp) before += warps[i];
        total += warps[i];
    }
    return before + sum - x;
}

// A thread per id. Counts become the number of the id's positions in the chunks before; `totals` has all of them,
// `starts` the places of smaller ids of the same block. Of `blocks` the last block makes the places of all blocks before
// each, and behind the last the number of all places. `arrived` is zero before.
extern "C" __global__ void __launch_bounds__(THREADS)
    embed_grad_scan(u32* __restrict__ counts, u32* __restrict__ totals, u32* __restrict__ starts, u32* blocks,
                    u32* arrived, u32 chunks, u32 table_rows) {
    take_turn();
    __shared__ u32 warps[THREADS / 32];
    const u64 id = (u64)blockIdx.x * THREADS + threadIdx.x;
    u32 total = 0;
    if (id < table_rows) {
        // Sixteen loads at a time, because none may pass a store.
        constexpr u32 AHEAD = 16;
        for (u32 first = 0; first < chunks; first += AHEAD) {
            u32* at = counts + (u64)first * table_rows + id;
            u32 batch[AHEAD];
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) batch[i] = first + i < chunks ? at[(u64)i * table_rows] : 0;
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
                if (first + i < chunks) at[(u64)i * table_rows] = total;
                total += batch[i];
            }
        }
    }
    u32 sum;
    const u32 start = block_scan(total, warps, sum);
    if (id < table_rows) {
        totals[id] = total;
        starts[id] = start;
    }
    if (threadIdx.x == 0) blocks[blockIdx.x] = sum;
    if (!is_last_of(gridDim.x, arrived)) return;
    u32 before = 0;
    for (u32 first = 0; first < gridDim.x; first += THREADS) {
        const u32 at = first + threadIdx.x;
        const u32 x = at < gridDim.x ? blocks[at] : 0;
        const u32 smaller = block_scan(x, warps, sum);
        if (at < gridDim.x) blocks[at] = before + smaller;
        before += sum;
    }
    if (threadIdx.x == 0) blocks[gridDim.x] = before;
}

// What is known of a place: its position and id, and the places where those of the id begin and end.
typedef uint4 Place;

// `places` in their order.
extern "C" __global__ void __launch_bounds__(THREADS)
    embed_grad_place(const u32* ids, const u32* ranks, const u32* counts, const u32* totals, const u32* starts, const u32* blocks,
                     Place* __restrict__ places, u32 n, u32 table_rows) {
    take_turn();
    const u64 position = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (position >= n) return;
    const u32 id = ids[position];
    if (id >= table_rows) return;
    const u32 earlier = counts[position / CHUNK * table_rows + id];
    const u32 start = starts[id] + blocks[id / THREADS];
    places[start + earlier + ranks[position]] = make_uint4((u32)position, id, start, start + totals[id]);
}

__device__ __forceinline__ void put(float* to, float (&sum)[W], u32 adds) {
    if (adds) {
        float before[W];
        load((const float*)to, before);
#pragma unroll
        for (int e = 0; e < W; e++) sum[e] += before[e];
    }
    store(to, sum);
}

// Adds up `count` rows that lie `apart`, in their order, for the thread's columns.
__device__ __forceinline__ void add_rows(const float* from, u64 apart, u32 count, float (&sum)[W]) {
#pragma unroll 8
    for (u32 i = 0; i < count; i++) {
        float row[W];
        load(from + i * apart, row);
#pragma unroll
        for (int e = 0; e < W; e++) sum[e] += row[e];
    }
}

// An id whose places cross from tile to tile: it begins in tile `start` and goes on in `more`. These are summed in
// JOIN_GROUPS groups of `share`, so that thousands of tiles are not one chain.
constexpr u32 JOIN_GROUPS = 8;
struct Crossing {
    u32 start, more, share;
    __device__ __forceinline__ explicit Crossing(const Place& place)
        : start(place.z / TILE), more((place.w - 1) / TILE - start), share((more + JOIN_GROUPS - 1) / JOIN_GROUPS) {}
    __device__ __forceinline__ u32 groups() const { return (more + share - 1) / share; }
};

// A block per tile of places (x) and per blockDim.x·W columns (y); a thread owns W columns of the whole tile. Blocks
// behind the tiles each zero those of TILE rows that no position has, where nothing is added to. `arrived` is
// [2, y, tiles] and zero before: how many groups of an id that begins in a tile are summed, and how many tiles of a group
// that begins there.
extern "C" __global__ void __launch_bounds__(THREADS)
    embed_grad_tiles(const Place* places, const real* d_y, const u32* totals, const u32* n_places, float* __restrict__ d_table, float* heads, float* tails,
                     u32* arrived, u32 columns, u32 table_rows, u32 tiles, u32 adds) {
    take_turn();
    const u32 tile = blockIdx.x, first = tile * TILE;
    const u32 column = (blockIdx.y * blockDim.x + threadIdx.x) * W;
    const bool has_columns = column < columns;
    if (tile >= tiles) {
        const u32 start = (tile - tiles) * TILE, own = start + threadIdx.x % 32;
        u32 empty = __ballot_sync(0xffffffffu, own < table_rows && totals[own] == 0);
        const float zeros[W] = {};
        for (; has_columns && empty != 0; empty &= empty - 1) {
            store(d_table + (u64)(start + __ffs(empty) - 1) * columns + column, zeros);
        }
        return;
    }
    __shared__ Place shared[TILE];
    for (u32 i = threadIdx.x; i < TILE; i += blockDim.x) shared[i] = places[first + i];
    const u32 all = *n_places;
    __syncthreads();
    if (first >= all) return;
    const u32 count = min(TILE, all - first);
    float sum[W];
#pragma unroll
    for (int e = 0; e < W; e++) sum[e] = 0.0f;
    constexpr u32 AHEAD = 8;
    for (u32 group = 0; has_columns && group < count; group += AHEAD) {
        Kept<W> rows[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            if (group + i < count) rows[i].load(d_y + (u64)shared[group + i].x * columns + column);
        }
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            const u32 at = group + i;
            if (at >= count) break;
            float d[W];
            rows[i].get(d);
#pragma unroll
            for (int e = 0; e < W; e++) sum[e] += d[e];
            const Place place = shared[at];
            const bool ends = place.w == first + at + 1;
            if (at + 1 < count && !ends) continue;
            const bool begins = place.z >= first;
            if (begins && ends) {
                put(d_table + (u64)place.y * columns + column, sum, adds);
            } else {
                store((begins ? tails : heads) + (u64)tile * columns + column, sum);
            }
#pragma unroll
            for (int e = 0; e < W; e++) sum[e] = 0.0f;
        }
    }
    u32* groups_arrived = arrived + (u64)blockIdx.y * tiles;
    u32* tiles_arrived = groups_arrived + (u64)gridDim.y * tiles;
    // The id that the tile begins with, if it began before, and the one that it ends with, if that goes on behind.
    for (u32 side = 0; side < 2; side++) {
        const Place place = shared[side == 0 ? 0 : count - 1];
        const bool began = place.z < first;
        if (side == 0 ? !began : began || place.w <= first + TILE) continue;
        const Crossing id(place);
        float* group_heads = heads + (u64)(id.start + 1) * columns + column;
        if (began) {
            const u32 group = (tile - id.start - 1) / id.share * id.share, size = min(id.share, id.more - group);
            if (!is_last_of(size, tiles_arrived + id.start + 1 + group)) continue;
            if (has_columns && size > 1) {
                float sum[W] = {};
                add_rows(group_heads + (u64)group * columns, columns, size, sum);
                store(group_heads + (u64)group * columns, sum);
            }
        }
        if (is_last_of(id.groups() + 1, groups_arrived + id.start) && has_columns) {
            float sum[W];
            load((const float*)tails + (u64)id.start * columns + column, sum);
            add_rows(group_heads, (u64)id.share * columns, id.groups(), sum);
            put(d_table + (u64)place.y * columns + column, sum, adds);
        }
    }
}

// Elements i and i + D/2 of every head are turned by the angle of the row's position. A thread owns W neighbours of
// each half in all heads of a row, so that it reads cosines and sines once. The last `still` heads are copied. `packs` is
// D/2/W.
extern "C" __global__ void __launch_bounds__(THREADS)
    rope(const real* x, const u32* positions, const float* table,
         real* __restrict__ y, u64 n_rows, u32 n_heads, u32 still, u32 packs, u32 table_rows, float direction,
         u32* fault) {
    take_turn();
    const u32 half = packs * W;
    const u64 n = n_rows * packs;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (u64)gridDim.x * THREADS) {
        const u64 row = i / packs;
        const u32 column = (u32)(i - row * packs) * W;
        const u32 position = positions[row];
        float cosines[W] = {}, sines[W] = {};
        if (position < table_rows) {
            const float* angles = table + (u64)position * 2 * half + column;
            load(angles, cosines);
            load(angles + half, sines);
        } else {
            report_fault(fault, position, table_rows);
        }
#pragma unroll
        for (int e = 0; e < W; e++) sines[e] *= direction;
        const u64 at = row * n_heads * 2 * half + column;
#pragma unroll 4
        for (u32 head = 0; head < n_heads - still; head++) {
            const u64 place = at + (u64)head * 2 * half;
            float a[W], b[W], turned[W];
            load(x + place, a);
            load(x + place + half, b);
#pragma unroll
            for (int e = 0; e < W; e++) turned[e] = a[e] * cosines[e] - b[e] * sines[e];
            store(y + place, turned);
#pragma unroll
            for (int e = 0; e < W; e++) turned[e] = b[e] * cosines[e] + a[e] * sines[e];
            store(y + place + half, turned);
        }
#pragma unroll 4
        for (u32 head = n_heads - still; head < n_heads; head++) {
            const u64 place = at + (u64)head * 2 * half;
            Kept<W> a, b;
            a.load(x + place);
            b.load(x + place + half);
            a.save(y + place);
            b.save(y + place + half);
        }
    }
}
