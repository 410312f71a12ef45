// Instructions that Hopper's multiprocessors alone have: products by a warpgroup of 128 threads straight from shared
// memory, copies of tiles by the copy engine, and the barriers that both report to. Comes after prelude.cuh.
#pragma once
#include "matrix.cuh"

constexpr int GROUP_THREADS = 128, GROUP_WARPS = 4, GROUP_ROWS = 64;

// Tiles lie in shared memory as the copy engine writes them with a swizzle of 128 bytes: a sheet has rows of 64
// elements, piece p (of 16 bytes) of row r is at place p ^ (r % 8). Sheets begin at multiples of 1024 bytes.
constexpr int SHEET_ROW_BYTES = 128;

// What tells the copy engine about a tensor: `TensorMap` of the driver. Kernels take it by value.
struct alignas(64) TensorMap { u64 words[16]; };
#define MAP const __grid_constant__ TensorMap

__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- Barriers ----------------------------------------------------------------------------------------------------

// `barrier` is complete when one thread has arrived and all bytes that it expects are there.
__device__ __forceinline__ void barrier_begin(u32 barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
// The same when so many have arrived.
__device__ __forceinline__ void barrier_begin_counted(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barriers_begun() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}"
        ::"r"(barrier), "r"(parity) : "memory");
}

// Threads of one warpgroup wait for each other. Barrier 0 is that of the block. Each number stands in the code, because
// a block that might use any of them is given them all.
template <int NUMBER = 1> __device__ __forceinline__ void group_wait(int group) {
    if constexpr (NUMBER < 4) {
        if (group + 1 != NUMBER) return group_wait<NUMBER + 1>(group);
    }
    asm volatile("bar.sync %0, %1;" ::"n"(NUMBER), "n"(GROUP_THREADS) : "memory");
}

// Counts a warp that is done with something; true for the last of `warps`. Called by one lane. Needs no order: what the
// warp did with it has come to an end, either products that were waited for or loads whose numbers were used.
__device__ __forceinline__ bool is_last(u32 counter, int warps) {
    u32 before;
    asm volatile("atom.relaxed.cta.shared::cta.add.u32 %0, [%1], 1;" : "=r"(before) : "r"(counter) : "memory");
    return (before + 1) % warps == 0;
}

// ---- Shared memory -------------------------------------------------------------------------------------------------

// Orders what this thread wrote to shared memory before what the copy engine or the matrix units read.
__device__ __forceinline__ void writes_for_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Counterpart of `load_matrices`.
__device__ __forceinline__ void store_matrices(u32 to, const u32 (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]) : "memory");
}

// ---- Products ----------------------------------------------------------------------------------------------------

// How the matrix units find an operand: its address, the distance of the sheets where columns of a product run along
// rows of a tile, 1024 bytes from eight rows to the next eight, and the swizzle.
__device__ __forceinline__ u64 operand(u32 address, u32 sheet_bytes) {
    return (u64)(address >> 4 & 0x3fff) | (u64)(sheet_bytes >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// Registers that a product uses belong to it from `products_begin` to `products_wait`.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most LEFT committed groups are under way.
template <int LEFT> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Keeps the compiler from moving what reads or writes these numbers across this place.
template <int N> __device__ __forceinline__ void pin(float (&numbers)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(numbers[i])::"memory");
}

#if REAL == 1
#define PRODUCT_TYPES ".f32.bf16.bf16 "
#else
#define PRODUCT_TYPES ".f32.f16.f16 "
#endif
#define PLACES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PLACES_64 PLACES_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PLACES_68 PLACES_64 ", %64, %65, %66, %67"
#define PLACES_72 PLACES_68 ", %68, %69, %70, %71"
#define PLACES_76 PLACES_72 ", %72, %73, %74, %75"
#define PLACES_80 PLACES_76 ", %76, %77, %78, %79"
#define PLACES_84 PLACES_80 ", %80, %81, %82, %83"
#define PLACES_88 PLACES_84 ", %84, %85, %86, %87"
#define PLACES_92 PLACES_88 ", %88, %89, %90, %91"
#define PLACES_96 PLACES_92 ", %92, %93, %94, %95"
#define PLACES_100 PLACES_96 ", %96, %97, %98, %99"
#define NUMBERS_8(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
    "+f"(d[i + 7])
#define NUMBERS_32(d, i) NUMBERS_8(d, i), NUMBERS_8(d, i + 8), NUMBERS_8(d, i + 16), NUMBERS_8(d, i + 24)
#define NUMBERS_64(d) NUMBERS_32(d, 0), NUMBERS_32(d, 32)
#define NUMBERS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NUMBERS_68(d) NUMBERS_64(d), NUMBERS_4(d, 64)
#define NUMBERS_72(d) NUMBERS_68(d), NUMBERS_4(d, 68)
#define NUMBERS_76(d) NUMBERS_72(d), NUMBERS_4(d, 72)
#define NUMBERS_80(d) NUMBERS_76(d), NUMBERS_4(d, 76)
#define NUMBERS_84(d) NUMBERS_80(d), NUMBERS_4(d, 80)
#define NUMBERS_88(d) NUMBERS_84(d), NUMBERS_4(d, 84)
#define NUMBERS_92(d) NUMBERS_88(d), NUMBERS_4(d, 88)
#define NUMBERS_96(d) NUMBERS_92(d), NUMBERS_4(d, 92)
#define NUMBERS_100(d) NUMBERS_96(d), NUMBERS_4(d, 96)

// sums [64, N] = or += a [64, 16] · bᵀ [16, N]: both with the 16 terms along rows in shared memory. Lane l of warp w
// holds of rows 16·w + l/4 and the eighth after it the columns 8·n + 2·(l%4) and the next, in sums[4·n ..].
template <bool ADD> __device__ __forceinline__ void product_rows(float (&sums)[32], u64 a, u64 b) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16" PRODUCT_TYPES
                 "{" PLACES_32 "}, %32, %33, add, 1, 1, 0, 0;\n}"
                 : NUMBERS_32(sums, 0) : "l"(a), "l"(b), "n"(int(ADD)));
}
template <bool ADD> __device__ __forceinline__ void product_rows(float (&sums)[64], u64 a, u64 b) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16" PRODUCT_TYPES
                 "{" PLACES_64 "}, %64, %65, add, 1, 1, 0, 0;\n}"
                 : NUMBERS_64(sums) : "l"(a), "l"(b), "n"(int(ADD)));
}
// ---- Results -----------------------------------------------------------------------------------------------------

// The sums over eight lanes, 4 apart, of 2·HALF numbers: each gives half of what it has to another lane and keeps the other half,
// until two numbers are left.
template <int HALF> __device__ __forceinline__ void sum_lanes(float (&own)[16], int lane) {
    bool is_upper = lane & 2 * HALF;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float lower = own[i], upper = own[i + HALF], given = is_upper ? lower : upper;
        own[i] = (is_upper ? upper : lower) + __shfl_xor_sync(0xffffffffu, given, 2 * HALF);
    }
    if constexpr (HALF > 2) sum_lanes<HALF / 2>(own, lane);
}
