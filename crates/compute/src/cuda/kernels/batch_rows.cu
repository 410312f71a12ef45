// y = x·wᵀ + b for up to 64 rows x of halves, which is what a step of many texts multiplies: little work, so that waiting is what
// takes time.
//
// A cluster of PARTS blocks owns 64 outputs. Each of its blocks multiplies all rows along a part of K, sends every row's sums to the
// block that owns the row, and adds up the parts of its own rows, in their order. So the order of a sum depends on K and the number of
// outputs alone. Weights are on their way before the kernel before has ended.
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

constexpr u32 THREADS = 128;
// Outputs of a block, of which a sheet has 64 elements each, and so many rows.
constexpr u32 OUTPUTS = 64, DEPTH = 64, SHEET_BYTES = 64 * DEPTH * sizeof(real);
// Sheets that are waited for first.
constexpr u32 FIRST_SHEETS = (SHEETS + 1) / 2;
// Outputs that a thread adds up at a time, and threads of a row.
constexpr u32 EACH = 4, ROW_THREADS = OUTPUTS / EACH;

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

// Blocks of the cluster wait for each other in two steps; what was sent before the first is there after the second.
__device__ __forceinline__ void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ void send_pair(u32 to, u32 block, float first, float second) {
    asm volatile("{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.v2.f32 [there], {%2, %3};\n}"
                 ::"r"(to), "r"(block), "f"(first), "f"(second) : "memory");
}

// Where four neighbouring outputs of a place lie; pairs of four places after each other meet no bank twice.
__device__ __forceinline__ u32 in_place(u32 place, u32 output) {
    return (place * OUTPUTS + (output ^ (place % 4) * 8)) * sizeof(float);
}

// `activated` gets the GELU of the result, unless it is null. Where weights are settled they are read before the kernel before has ended.
// `outputs` is a multiple of EACH, `depth` as long as all parts.
extern "C" __global__ void __launch_bounds__(THREADS)
batch_rows(const real* __restrict__ x, const real* __restrict__ w, const real* __restrict__ bias, real* __restrict__ y,
           real* __restrict__ activated, u32 rows, u32 outputs, u32 depth, u32 is_settled) {
    extern __shared__ __align__(1024) char memory[];
    const u32 part = blockIdx.x % PARTS, first_output = blockIdx.x / PARTS * OUTPUTS;
    const u32 x_sheets = shared_address(memory), w_sheets = x_sheets + SHEETS * SHEET_BYTES, parts = w_sheets + SHEETS * SHEET_BYTES;
    x += part * SHEETS * DEPTH;
    w += (u64)first_output * depth + part * SHEETS * DEPTH;
    const u32 output = first_output + threadIdx.x % ROW_THREADS * EACH;

    if (!is_settled) wait_for_kernel_before();
    copy_sheets<0, SHEETS>(w_sheets, w, outputs - first_output, depth);
    uint2 shift = make_uint2(0, 0);
    if (bias && output < outputs) shift = *reinterpret_cast<const uint2*>(bias + output);
    arrive_at_cluster();
    if (is_settled) wait_for_kernel_before();
    let_next_begin();
    copy_sheets<0, FIRST_SHEETS>(x_sheets, x, rows, depth);
    copy_sheets<FIRST_SHEETS, SHEETS>(x_sheets, x, rows, depth);
    float sums[OUTPUTS / 2];
    wait_for_copies<1>();
    multiply_sheets<0, FIRST_SHEETS>(sums, x_sheets, w_sheets);
    wait_for_copies<0>();
    multiply_sheets<FIRST_SHEETS, SHEETS>(sums, x_sheets, w_sheets);
    products_wait<0>();
    pin(sums);

    // All blocks of the cluster have begun: their memory is there.
    wait_for_cluster();
    const u32 lane = threadIdx.x % 32, per_block = (rows + PARTS - 1) / PARTS;
#pragma unroll
    for (u32 upper = 0; upper < 2; upper++) {
        const u32 row = threadIdx.x / 32 * 16 + upper * 8 + lane / 4;
        if (row >= rows) continue;
        const u32 owner = row / per_block, place = part * per_block + row % per_block;
#pragma unroll
        for (u32 n = 0; n < OUTPUTS / 8; n++) {
            send_pair(parts + in_place(place, n * 8 + lane % 4 * 2), owner, sums[4 * n + 2 * upper], sums[4 * n + 2 * upper + 1]);
        }
    }
    arrive_at_cluster();
    wait_for_cluster();

    const u32 first_row = part * per_block;
    for (u32 own = threadIdx.x / ROW_THREADS; own < per_block && first_row + own < rows; own += THREADS / ROW_THREADS) {
        float sum[EACH] = {};
#pragma unroll
        for (u32 other = 0; other < PARTS; other++) {
            float its[EACH];
            widen<float>(load_shared(parts + in_place(other * per_block + own, threadIdx.x % ROW_THREADS * EACH)), its);
#pragma unroll
            for (u32 e = 0; e < EACH; e++) sum[e] += its[e];
        }
        if (output >= outputs) continue;
        float shifts[EACH];
        widen_pair(shift.x, shifts, real());
        widen_pair(shift.y, shifts + 2, real());
        const uint2 stored = make_uint2(narrow_pair(sum[0] + shifts[0], sum[1] + shifts[1], real()),
                                        narrow_pair(sum[2] + shifts[2], sum[3] + shifts[3], real()));
        const u64 at = (u64)(first_row + own) * outputs + output;
        *reinterpret_cast<uint2*>(y + at) = stored;
        if (activated) {
            float before[EACH];
            widen_pair(stored.x, before, real());
            widen_pair(stored.y, before + 2, real());
            *reinterpret_cast<uint2*>(activated + at) = make_uint2(narrow_pair(gelu_of(before[0]), gelu_of(before[1]), real()),
                                                                   narrow_pair(gelu_of(before[2]), gelu_of(before[3]), real()));
        }
    }
}

#endif
