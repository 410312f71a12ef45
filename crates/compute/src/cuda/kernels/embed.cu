// Rows of a table by id, the gradient of that, and rotary positions.
//
// N rows of C columns, a table of V rows. An id outside its table is reported and counts for nothing.
//
// The gradient sums the rows of every id in the order of their positions. Positions are sorted by id without comparing
// ids across the whole tensor: a chunk of CHUNK positions counts its ids (`embed_grad_rank`), counts are summed over
// the chunks before and over the ids below (`embed_grad_scan`, `embed_grad_scan_blocks`), and every position then knows
// its place (`embed_grad_place`). Tiles of TILE places are summed apart (`embed_grad_tiles`); where the places of one
// id cross from tile to tile, a tile keeps what it has of the id's beginning (`tails`) or of its continuation
// (`heads`), and `embed_grad_join` adds those in order. So an id with thousands of rows is summed by many blocks.
#include "prelude.cuh"

#ifndef WIDE
#define WIDE 1
#endif

constexpr int W = WIDE ? WIDTH : 1;
constexpr u32 THREADS = 256;

// A warp per row.
extern "C" __global__ void __launch_bounds__(THREADS)
    embed(const real* __restrict__ table, const u32* __restrict__ ids, real* __restrict__ y, u64 n_rows, u32 columns,
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

// For each position, how many before it in its chunk have its id; for each chunk and id, how many positions there are.
// `counts` is [chunks, V] and zero before.
extern "C" __global__ void __launch_bounds__(CHUNK)
    embed_grad_rank(const u32* __restrict__ ids, u32* __restrict__ ranks, u32* __restrict__ counts, u32 n,
                    u32 table_rows, u32* fault) {
    take_turn();
    __shared__ uint4 shared[CHUNK / 4];
    u32* chunk = reinterpret_cast<u32*>(shared);
    const u64 position = (u64)blockIdx.x * CHUNK + threadIdx.x;
    const u32 id = position < n ? ids[position] : NOWHERE;
    chunk[threadIdx.x] = id;
    __syncthreads();
    if (position >= n) return;
    if (id >= table_rows) {
        report_fault(fault, id, table_rows);
        return;
    }
    u32 rank = 0;
    const u32 whole = threadIdx.x / 4;
#pragma unroll 4
    for (u32 i = 0; i < whole; i++) {
        const uint4 four = shared[i];
        rank += (u32)(four.x == id) + (u32)(four.y == id) + (u32)(four.z == id) + (u32)(four.w == id);
    }
    for (u32 i = whole * 4; i < threadIdx.x; i++) rank += (u32)(chunk[i] == id);
    ranks[position] = rank;
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
// `starts` the places of smaller ids of the same block, and `blocks` the sum over the block.
extern "C" __global__ void __launch_bounds__(THREADS)
    embed_grad_scan(u32* __restrict__ counts, u32* __restrict__ totals, u32* __restrict__ starts,
                    u32* __restrict__ blocks, u32 chunks, u32 table_rows) {
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
}

// One block: the places of all blocks of ids before each, and behind the last the number of all places.
extern "C" __global__ void __launch_bounds__(1024) embed_grad_scan_blocks(u32* blocks, u32 count) {
    take_turn();
    __shared__ u32 warps[32];
    u32 before = 0;
    for (u32 first = 0; first < count; first += 1024) {
        const u32 at = first + threadIdx.x;
        const u32 x = at < count ? blocks[at] : 0;
        u32 total;
        const u32 sum = block_scan(x, warps, total);
        if (at < count) blocks[at] = before + sum;
        before += total;
    }
    if (threadIdx.x == 0) blocks[count] = before;
}

// The first place of an id.
__device__ __forceinline__ u32 start_of(u32 id, const u32* starts, const u32* blocks) {
    return starts[id] + blocks[id / THREADS];
}

// `order` gives the position at each place.
extern "C" __global__ void __launch_bounds__(THREADS)
    embed_grad_place(const u32* __restrict__ ids, const u32* __restrict__ ranks, const u32* __restrict__ counts,
                     const u32* __restrict__ starts, const u32* __restrict__ blocks, u32* __restrict__ order, u32 n,
                     u32 table_rows) {
    take_turn();
    const u64 position = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (position >= n) return;
    const u32 id = ids[position];
    if (id >= table_rows) return;
    const u32 earlier = counts[position / CHUNK * table_rows + id];
    order[start_of(id, starts, blocks) + earlier + ranks[position]] = (u32)position;
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

// A block per tile of places (x) and per blockDim.x·W columns (y); a thread owns W columns of the whole tile.
extern "C" __global__ void __launch_bounds__(THREADS)
    embed_grad_tiles(const u32* __restrict__ ids, const real* __restrict__ d_y, const u32* __restrict__ order,
                     const u32* __restrict__ totals, const u32* __restrict__ starts, const u32* __restrict__ blocks,
                     float* __restrict__ d_table, float* __restrict__ heads, float* __restrict__ tails, u32 columns,
                     u32 id_blocks, u32 adds) {
    take_turn();
    __shared__ u32 positions[TILE], tile_ids[TILE], first_places[TILE], id_totals[TILE];
    const u32 places = blocks[id_blocks], first = blockIdx.x * TILE;
    if (first >= places) return;
    const u32 count = min(TILE, places - first);
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        const u32 position = order[first + i], id = ids[position];
        positions[i] = position;
        tile_ids[i] = id;
        first_places[i] = start_of(id, starts, blocks);
        id_totals[i] = totals[id];
    }
    __syncthreads();
    const u32 column = (blockIdx.y * blockDim.x + threadIdx.x) * W;
    if (column >= columns) return;
    float sum[W];
#pragma unroll
    for (int e = 0; e < W; e++) sum[e] = 0.0f;
    constexpr u32 AHEAD = 8;
    for (u32 group = 0; group < count; group += AHEAD) {
        Kept<W> rows[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            if (group + i < count) rows[i].load(d_y + (u64)positions[group + i] * columns + column);
        }
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            const u32 at = group + i;
            if (at >= count) break;
            float d[W];
            rows[i].get(d);
#pragma unroll
            for (int e = 0; e < W; e++) sum[e] += d[e];
            const u32 id = tile_ids[at];
            if (at + 1 < count && tile_ids[at + 1] == id) continue;
            const bool begins = first_places[at] >= first;
            const bool ends = first_places[at] + id_totals[at] == first + at + 1;
            if (begins && ends) {
                put(d_table + (u64)id * columns + column, sum, adds);
            } else {
                store((begins ? tails : heads) + (u64)blockIdx.x * columns + column, sum);
            }
#pragma unroll
            for (int e = 0; e < W; e++) sum[e] = 0.0f;
        }
    }
}

constexpr u32 JOIN_COLUMNS = 32, JOIN_GROUPS = 8;

// A block per tile (x) and 32 columns (y); it has work where an id begins in the tile and goes on behind it. Eight
// warps each sum a part of the tiles that follow, in order, and the parts are added in order.
extern "C" __global__ void __launch_bounds__(JOIN_COLUMNS * JOIN_GROUPS)
    embed_grad_join(const u32* __restrict__ ids, const u32* __restrict__ order, const u32* __restrict__ totals,
                    const u32* __restrict__ starts, const u32* __restrict__ blocks, float* __restrict__ d_table,
                    const float* __restrict__ heads, const float* __restrict__ tails, u32 columns, u32 id_blocks,
                    u32 adds) {
    take_turn();
    const u32 tile = blockIdx.x, places = blocks[id_blocks];
    const u64 behind = (u64)(tile + 1) * TILE;
    if (behind >= places) return;
    const u32 id = ids[order[behind - 1]];
    const u32 start = start_of(id, starts, blocks), end = start + totals[id];
    if (start / TILE != tile || end <= behind) return;
    const u32 last = (end - 1) / TILE, tiles = last - tile;
    const u32 lane = threadIdx.x % JOIN_COLUMNS, group = threadIdx.x / JOIN_COLUMNS;
    const u32 column = blockIdx.y * JOIN_COLUMNS + lane;
    const u32 share = (tiles + JOIN_GROUPS - 1) / JOIN_GROUPS;
    const u32 from = min(group * share, tiles), to = min(from + share, tiles);
    float sum = 0.0f;
    if (column < columns) {
#pragma unroll 8
        for (u32 i = from; i < to; i++) sum += heads[(u64)(tile + 1 + i) * columns + column];
    }
    __shared__ float sums[JOIN_GROUPS][JOIN_COLUMNS];
    sums[group][lane] = sum;
    __syncthreads();
    if (group > 0 || column >= columns) return;
    float all = tails[(u64)tile * columns + column];
#pragma unroll
    for (u32 i = 0; i < JOIN_GROUPS; i++) all += sums[i][lane];
    float* place = d_table + (u64)id * columns + column;
    *place = adds ? *place + all : all;
}

// Zeroes the rows of ids that no position has. A warp per row.
extern "C" __global__ void __launch_bounds__(THREADS)
    embed_grad_rest(const u32* __restrict__ totals, float* __restrict__ d_table, u32 columns, u32 table_rows) {
    take_turn();
    const u32 lane = threadIdx.x % 32, warps = gridDim.x * (THREADS / 32);
    for (u64 row = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; row < table_rows; row += warps) {
        if (totals[row] != 0) continue;
        float zeros[W] = {};
        for (u32 column = lane * W; column < columns; column += 32 * W) store(d_table + row * columns + column, zeros);
    }
}

// Elements i and i + D/2 of every head are turned by the angle of the row's position. A thread owns W neighbours of
// each half in all heads of a row, so that it reads cosines and sines once. The last `still` heads are copied. `packs` is
// D/2/W.
extern "C" __global__ void __launch_bounds__(THREADS)
    rope(const real* __restrict__ x, const u32* __restrict__ positions, const float* __restrict__ table,
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
