// y = x·wᵀ + b for some tiles of 64 rows x of halves, which is what a step of many texts multiplies: little work, so that waiting is what
// takes time.
//
// A cluster of PARTS blocks owns 64 outputs of a tile. Each of its blocks multiplies all rows along a part of K and leaves the sums in its shared
// memory; then it reads all parts of its own rows there and adds them up, in their order. So the order of a sum depends on K, the number of
// outputs and the launches beside it, and not on rows. Weights are on their way before the kernel before has ended. When its rows have
// come, and nothing is waited for that comes from memory, a block may ask the second cache for keys and values that the next attention
// will read.
//
// A product may do a part of the norm of its rows, or of the norm of what it is added to; see between_products.cuh.
#include "prelude.cuh"
#include "gelu.cuh"
#include "matrix.cuh"
#include "warpgroup.cuh"

// Only Hopper multiplies by warpgroups.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Blocks of a cluster.
#ifndef PARTS
#define PARTS 1
#endif
// Sheets of a part of K.
#ifndef SHEETS
#define SHEETS 4
#endif
// Whether there is a norm before this product, or behind it, of which it does a part.
#ifndef OF_NORM
#define OF_NORM 0
#endif
#ifndef BEFORE_NORM
#define BEFORE_NORM 0
#endif

constexpr u32 THREADS = 128;
// Outputs and rows of a block, of which a sheet has 64 elements each.
constexpr u32 OUTPUTS = 64, TILE = 64, DEPTH = 64, SHEET_BYTES = 64 * DEPTH * sizeof(real);
// Sheets that are waited for first.
constexpr u32 FIRST_SHEETS = (SHEETS + 1) / 2;
// Outputs that a thread adds up at a time, and threads of a row.
constexpr u32 EACH = 4, ROW_THREADS = OUTPUTS / EACH;
// Rows whose parts a block adds up at a time, and how many times, of all rows of a tile.
constexpr u32 AT_ONCE = THREADS / ROW_THREADS, ROUNDS = ((TILE + PARTS - 1) / PARTS + AT_ONCE - 1) / AT_ONCE;
// Threads that share what pieces of a row spread, where they have rows of a norm.
constexpr u32 SHARERS = PARTS == 1 ? 2 : 4;

#include "between_products.cuh"

// Sheets FIRST..END of a matrix of `rows` rows into shared memory; rows that there are not are zeroes.
template <u32 FIRST, u32 END> __device__ __forceinline__ void copy_sheets(u32 to, const real* from, u32 rows, u32 depth) {
    const u32 row = threadIdx.x / 8, piece = threadIdx.x % 8;
    to += row * 128 + ((piece ^ (row % 8)) << 4);
    from += piece * 8;
#pragma unroll
    for (u32 further = 0; further < 64; further += THREADS / 8) {
        const bool is_there = row + further < rows;
        const real* its = from + (is_there ? (u64)(row + further) * depth : 0);
#pragma unroll
        for (u32 sheet = FIRST; sheet < END; sheet++) {
            copy_async(to + sheet * SHEET_BYTES + further * 128, its + sheet * DEPTH, is_there);
        }
    }
    copies_commit();
}

// The threads' own copies have come, for the matrix units and for all threads.
template <int LEFT> __device__ __forceinline__ void wait_for_copies() {
    copies_wait<LEFT>();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
}

template <u32 FIRST, u32 END> __device__ __forceinline__ void multiply_sheets(float (&sums)[OUTPUTS / 2], u32 x, u32 w) {
    const u64 a = operand(x, 16), b = operand(w, 16);
    products_begin();
#pragma unroll
    for (u32 sheet = FIRST; sheet < END; sheet++) {
#pragma unroll
        for (u32 k = 0; k < DEPTH / 16; k++) {
            // Sixteen elements further in a sheet are 32 bytes, in the units of operands 2.
            const u32 further = sheet * (SHEET_BYTES / 16) + k * 2;
            if (sheet + k == 0) product_rows<false>(sums, a, b);
            else product_rows<true>(sums, a + further, b + further);
        }
    }
    products_commit();
}

// Blocks of the cluster wait for each other in two steps. What a thread has written to its block's shared memory and released before the
// first is there for all after the second.
__device__ __forceinline__ void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// An arrival that releases nothing waits for no load either, and a block's memory goes with the block: so a branch on a number of every load
// stands before it. No sum is a NaN of that kind.
__device__ __forceinline__ void arrive_with(const float (&totals)[ROUNDS][EACH]) {
    bool are_there = true;
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) are_there &= __float_as_uint(totals[round][0]) != 0x7fedcba9;
    if (!are_there) asm volatile("nanosleep.u32 0;" ::: "memory");
    arrive_at_cluster();
}
// A release of all memory waits for the second cache; older compilers know no other.
__device__ __forceinline__ void release_shared_memory() {
#if __CUDACC_VER_MAJOR__ >= 13
    asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
#else
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void store_pair(u32 to, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}
// Sixteen bytes at the same place of another block's memory.
__device__ __forceinline__ uint4 load_of_block(u32 from, u32 block) {
    uint4 x;
    asm volatile("{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [there];\n}"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from), "r"(block) : "memory");
    return x;
}

// Where four neighbouring outputs of a row lie; pairs of four rows after each other meet no bank twice.
__device__ __forceinline__ u32 in_place(u32 row, u32 output) {
    return (row * OUTPUTS + (output ^ (row % 4) * 8)) * sizeof(float);
}

// Keys and values of a cache `[rows, keys, columns]` that the next attention reads: `count` of every sample behind the `first` ones.
struct Ahead {
    const real *k, *v;
    const u32* places;
    u32 rows, keys, columns, first, count;
};

// What a thread asks for: one sample's keys, or its values.
struct Asked {
    const real* from;
    u32 bytes;
    __device__ __forceinline__ Asked(const Ahead& ahead, u32 samples) : from(nullptr), bytes(0) {
        const u32 block = blockIdx.y * gridDim.x + blockIdx.x;
        const u32 item = block + threadIdx.x * gridDim.x * gridDim.y, sample = item / 2;
        if (ahead.count == 0 || sample >= samples) return;
        const u32 row = ahead.places[2 * sample], cached = min(ahead.places[2 * sample + 1], ahead.keys), first = min(ahead.first, cached);
        if (row >= ahead.rows) return;
        from = (item % 2 ? ahead.v : ahead.k) + ((u64)row * ahead.keys + first) * ahead.columns;
        bytes = min(ahead.count, cached - first) * ahead.columns * (u32)sizeof(real);
    }
    __device__ __forceinline__ void ask() const {
        if (bytes) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
    }
};

// Of four halves beside each other.
__device__ __forceinline__ uint2 add_four(uint2 a, uint2 b) {
    float x[EACH], y[EACH];
    widen_four(a, x);
    widen_four(b, y);
#pragma unroll
    for (u32 e = 0; e < EACH; e++) x[e] += y[e];
    return narrow_four(x);
}
__device__ __forceinline__ uint2 multiply_four(uint2 a, uint2 b) {
    float x[EACH], y[EACH];
    widen_four(a, x);
    widen_four(b, y);
#pragma unroll
    for (u32 e = 0; e < EACH; e++) x[e] *= y[e];
    return narrow_four(x);
}

// `activated` gets the GELU of the result, unless it is null. Where weights are settled they are read before the kernel before has ended.
// `outputs` is a multiple of EACH, `depth` as long as all parts. With a norm behind it the result is only added to `kept`, which gives
// `kept_sums`, `gained` and `pieces_behind`; with one before, `pieces` and `through` are those of it.
extern "C" __global__ void __launch_bounds__(THREADS)
batch_rows(const real* x, const real* w, const real* bias, real* __restrict__ y,
           real* __restrict__ activated, u32 rows, u32 outputs, u32 depth, u32 is_settled,
           const real* ahead_k, const real* ahead_v, const u32* places, u32 ahead_rows, u32 ahead_keys, u32 ahead_columns,
           u32 ahead_first, u32 ahead_count, const real* kept, const real* gain, real* kept_sums, real* gained, Spread* pieces_behind,
           const Spread* pieces, const float4* through, float eps) {
    extern __shared__ __align__(1024) char memory[];
    const u32 part = blockIdx.x % PARTS, first_output = blockIdx.x / PARTS * OUTPUTS;
    const u32 x_sheets = shared_address(memory), w_sheets = x_sheets + SHEETS * SHEET_BYTES, parts = w_sheets + SHEETS * SHEET_BYTES;
    const u32 tile = blockIdx.y * TILE, tile_rows = min(rows - tile, TILE);
    x += (u64)tile * depth + part * SHEETS * DEPTH;
    w += (u64)first_output * depth + part * SHEETS * DEPTH;
    float2* const spreads = reinterpret_cast<float2*>(memory + 2 * SHEETS * SHEET_BYTES + TILE * OUTPUTS * sizeof(float));
    // The rows of the tile that this block adds up, and the outputs of them that this thread does.
    const u32 per_block = (tile_rows + PARTS - 1) / PARTS, first_row = part * per_block;
    const u32 output = first_output + threadIdx.x % ROW_THREADS * EACH;
    auto is_there = [&](u32 own) { return own < per_block && first_row + own < tile_rows && output < outputs; };

    if (!is_settled) wait_for_kernel_before();
    copy_sheets<0, SHEETS>(w_sheets, w, outputs - first_output, depth);
    uint2 shift = make_uint2(0, 0);
    if (bias && output < outputs) shift = *reinterpret_cast<const uint2*>(bias + output);
    uint2 gains = make_uint2(0, 0), kept_of[ROUNDS];
    float4 through_of[2] = {};
    if (BEFORE_NORM) {
        if (output < outputs) gains = *reinterpret_cast<const uint2*>(gain + output);
#pragma unroll
        for (u32 round = 0; round < ROUNDS; round++) {
            const u32 own = round * AT_ONCE + threadIdx.x / ROW_THREADS;
            kept_of[round] = make_uint2(0, 0);
            if (is_there(own)) kept_of[round] = *reinterpret_cast<const uint2*>(kept + (u64)(tile + first_row + own) * outputs + output);
        }
    }
    if (OF_NORM && CENTRED && output < outputs) {
        through_of[0] = through[output / 2];
        through_of[1] = through[output / 2 + 1];
    }
    const Asked asked({ahead_k, ahead_v, places, ahead_rows, ahead_keys, ahead_columns, ahead_first, ahead_count}, rows);
    if (is_settled) wait_for_kernel_before();
    let_next_begin();
    copy_sheets<0, FIRST_SHEETS>(x_sheets, x, tile_rows, depth);
    copy_sheets<FIRST_SHEETS, SHEETS>(x_sheets, x, tile_rows, depth);
    Pieces<PARTS * SHEETS, SHARERS> its_pieces;
    const u32 shared_row = threadIdx.x / SHARERS;
    const bool is_shared = shared_row < per_block && first_row + shared_row < tile_rows;
    if (OF_NORM) its_pieces.load(pieces, tile + first_row + shared_row, is_shared);
    float sums[OUTPUTS / 2];
    wait_for_copies<1>();
    multiply_sheets<0, FIRST_SHEETS>(sums, x_sheets, w_sheets);
    wait_for_copies<0>();
    asked.ask();
    multiply_sheets<FIRST_SHEETS, SHEETS>(sums, x_sheets, w_sheets);
    if (OF_NORM) {
        const float2 spread = its_pieces.merge(eps);
        if (threadIdx.x % SHARERS == 0) spreads[shared_row] = spread;
    }
    products_wait<0>();
    pin(sums);

    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 upper = 0; upper < 2; upper++) {
        const u32 row = threadIdx.x / 32 * 16 + upper * 8 + lane / 4;
#pragma unroll
        for (u32 n = 0; n < OUTPUTS / 8; n++) {
            store_pair(parts + in_place(row, n * 8 + lane % 4 * 2), sums[4 * n + 2 * upper], sums[4 * n + 2 * upper + 1]);
        }
    }
    release_shared_memory();
    arrive_at_cluster();
    wait_for_cluster();

    // All that a thread adds up is on its way at once.
    uint4 its[ROUNDS][PARTS];
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
        const u32 own = round * AT_ONCE + threadIdx.x / ROW_THREADS;
        const u32 row = own < per_block && first_row + own < tile_rows ? first_row + own : 0;
#pragma unroll
        for (u32 other = 0; other < PARTS; other++) {
            its[round][other] = load_of_block(parts + in_place(row, threadIdx.x % ROW_THREADS * EACH), other);
        }
    }
    float totals[ROUNDS][EACH] = {};
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
#pragma unroll
        for (u32 other = 0; other < PARTS; other++) {
            float part_of[EACH];
            widen<float>(its[round][other], part_of);
#pragma unroll
            for (u32 e = 0; e < EACH; e++) totals[round][e] += part_of[e];
        }
        pin(totals[round]);
    }
    arrive_with(totals);
    float shifts[EACH];
    widen_four(shift, shifts);
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
        const u32 own = round * AT_ONCE + threadIdx.x / ROW_THREADS;
        const u64 at = (u64)(tile + first_row + own) * outputs + output;
        float(&sum)[EACH] = totals[round];
        if (OF_NORM) {
            correct(sum, spreads[own < per_block ? own : 0], Through(through_of[0], through_of[1]), shifts);
        } else {
#pragma unroll
            for (u32 e = 0; e < EACH; e++) sum[e] += shifts[e];
        }
        const uint2 stored = narrow_four(sum);
        if (BEFORE_NORM) {
            const uint2 total = add_four(kept_of[round], stored);
            float numbers[EACH];
            widen_four(total, numbers);
            const Spread piece = spread_of<ROW_THREADS>(numbers);
            if (!is_there(own)) continue;
            *reinterpret_cast<uint2*>(kept_sums + at) = total;
            *reinterpret_cast<uint2*>(gained + at) = multiply_four(total, gains);
            if (threadIdx.x % ROW_THREADS == 0) pieces_behind[at / OUTPUTS] = piece;
            continue;
        }
        if (!is_there(own)) continue;
        *reinterpret_cast<uint2*>(y + at) = stored;
        if (activated) {
            float active[EACH];
            widen_four(stored, active);
#pragma unroll
            for (u32 e = 0; e < EACH; e++) active[e] = gelu_of(active[e]);
            *reinterpret_cast<uint2*>(activated + at) = narrow_four(active);
        }
    }
    // A block's memory stays until all have read it. Lanes that had fewer rows meet the others first, as the barrier wants them.
    __syncwarp();
    wait_for_cluster();
}

#endif
