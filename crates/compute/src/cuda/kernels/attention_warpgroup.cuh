// Heads as Hopper's copy engine brings them, and products of them by warpgroups.
#pragma once
#include "attention.cuh"
#include "warpgroup.cuh"

// ---- Tiles -------------------------------------------------------------------------------------------------------
//
// A head of 128 elements is two sheets one after the other.

constexpr int SHEETS = HEAD / 64;

// A box of the copy engine: 64 rows of a sheet.
constexpr int BOX_ROWS = 64, BOX_BYTES = BOX_ROWS * SHEET_ROW_BYTES;

// Bytes of a tile with this many rows.
template <int ROWS> constexpr int TILE_BYTES = SHEETS * ROWS * SHEET_ROW_BYTES;

// ---- Copies ------------------------------------------------------------------------------------------------------

// What says of a copy, a load or a store that its bytes are the first to leave the cache.
__device__ __forceinline__ u64 first_to_leave() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Rows `first`.. of a head into a tile of ROWS; zeroes past the last row. Called by one thread. With MAKES_ROOM they are the first
// to leave the cache.
template <int ROWS, bool MAKES_ROOM = false>
__device__ __forceinline__ void copy_tile(u32 tile, u32 barrier, const TensorMap* map, u32 head, int first,
                                          u32 sample) {
#pragma unroll
    for (int sheet = 0; sheet < SHEETS; sheet++) {
#pragma unroll
        for (int row = 0; row < ROWS; row += BOX_ROWS) {
            u32 to = tile + (sheet * ROWS + row) * SHEET_ROW_BYTES;
            if constexpr (MAKES_ROOM) {
                asm volatile(
                    "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                    "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
                    ::"r"(to), "l"(map), "r"(barrier), "r"(sheet * 64), "r"(head), "r"(first + row), "r"(sample),
                    "l"(first_to_leave())
                    : "memory");
            } else {
                asm volatile(
                    "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                    "[%0], [%1, {%3, %4, %5, %6}], [%2];"
                    ::"r"(to), "l"(map), "r"(barrier), "r"(sheet * 64), "r"(head), "r"(first + row), "r"(sample)
                    : "memory");
            }
        }
    }
}
// As many bytes in one piece; a multiple of 16.
__device__ __forceinline__ void copy_bytes(u32 to, u32 barrier, const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %3, [%2];"
                 ::"r"(to), "l"(from), "r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ float2 load_shared_pair(u32 from) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
    return x;
}

// ---- Products ----------------------------------------------------------------------------------------------------

// sums [64, N] += a [64, 16], in registers as a result lies, · b [16, N], whose terms are rows in shared memory.
__device__ __forceinline__ void product_columns(float (&sums)[32], const u32 (&a)[4], u64 b) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16" PRODUCT_TYPES
                 "{" PLACES_32 "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}"
                 : NUMBERS_32(sums, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void product_columns(float (&sums)[64], const u32 (&a)[4], u64 b) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16" PRODUCT_TYPES
                 "{" PLACES_64 "}, {%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}"
                 : NUMBERS_64(sums) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// scores [64, 2·N] = (64 rows of a tile of LEFT_ROWS) · (2·N rows of a tile of RIGHT_ROWS)ᵀ.
template <int LEFT_ROWS, int RIGHT_ROWS, int N>
__device__ __forceinline__ void multiply_tiles(float (&scores)[N], u32 left, u32 right) {
    constexpr int LEFT_SHEET = LEFT_ROWS * SHEET_ROW_BYTES, RIGHT_SHEET = RIGHT_ROWS * SHEET_ROW_BYTES;
    u64 a = operand(left, 16), b = operand(right, 16);
    product_rows<false>(scores, a, b);
#pragma unroll
    for (int k = 1; k < HEAD / 16; k++) {
        // Sixteen elements further in a sheet are 32 bytes, in the units of operands 2.
        u32 within = k % 4 * 2;
        product_rows<true>(scores, a + (k / 4 * LEFT_SHEET / 16 + within), b + (k / 4 * RIGHT_SHEET / 16 + within));
    }
}

// sums [64, HEAD] += left [64, 16·K] · (rows of a tile of RIGHT_ROWS).
template <int RIGHT_ROWS, int K>
__device__ __forceinline__ void multiply_left(float (&sums)[HEAD / 2], const u32 (&left)[K][4], u32 right) {
    u64 b = operand(right, RIGHT_ROWS * SHEET_ROW_BYTES);
#pragma unroll
    for (int k = 0; k < K; k++) product_columns(sums, left[k], b + k * (16 * SHEET_ROW_BYTES / 16));
}

// Results [64, 2·N] rounded to the element type, as the left side of the next product.
template <int N> __device__ __forceinline__ void round_left(u32 (&left)[N / 8][4], const float (&scores)[N]) {
#pragma unroll
    for (int k = 0; k < N / 8; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++) left[k][i] = pack(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
    }
}

// ---- Results -----------------------------------------------------------------------------------------------------

// A warp writes its 16 rows of sums, each times a factor, to rows `first`.. of a head, by way of its own rows of a tile
// of GROUP_ROWS, which begin at `sheets`. Rows past `rows` are not written.
__device__ __forceinline__ void store_sums(const float (&sums)[HEAD / 2], const float (&factors)[2], u32 sheets,
                                           real* head, u64 stride, int first, int rows) {
    constexpr int PIECES = HEAD / 8, SHEET = GROUP_ROWS * SHEET_ROW_BYTES;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = lane / 4 + 8 * half;
            u32 to = sheets + n / 8 * SHEET + row * SHEET_ROW_BYTES + ((n % 8 ^ (row & 7)) << 4) + lane % 4 * 4;
            store_shared(to, pack(sums[4 * n + 2 * half] * factors[half], sums[4 * n + 2 * half + 1] * factors[half]));
        }
    }
    __syncwarp();
#pragma unroll
    for (int index = 0; index < 16 * PIECES / 32; index++) {
        int place = index * 32 + lane, row = place / PIECES, piece = place % PIECES;
        if (first + row >= rows) continue;
        u32 from = sheets + piece / 8 * SHEET + row * SHEET_ROW_BYTES + ((piece % 8 ^ (row & 7)) << 4);
        *reinterpret_cast<uint4*>(head + (u64)(first + row) * stride + piece * 8) = load_shared(from);
    }
}

// What `leave_column_sums` needs of shared memory.
constexpr int COLUMN_SUMS_BYTES = GROUP_WARPS * HEAD * sizeof(float);

// The sums of the columns of a warpgroup's 64 rows, times a factor, to HEAD places from `to` on; rows past `rows` do not count.
// `first` is the first of the warp's 16 rows. All warps of the group call it.
__device__ __forceinline__ void leave_column_sums(const float (&sums)[HEAD / 2], float factor, unsigned char* scratch,
                                                  float* to, int group, int first, int rows) {
    float* parts = reinterpret_cast<float*>(scratch);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS, row = first + lane / 4;
#pragma unroll
    for (int sheet = 0; sheet < SHEETS; sheet++) {
        float own[16];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int at = 32 * sheet + i / 2 * 4 + i % 2;
            own[i] = (row < rows ? sums[at] : 0.0f) + (row + 8 < rows ? sums[at + 2] : 0.0f);
        }
        sum_lanes<8>(own, lane);
        // The columns of what is left follow each other as the lanes do.
        *reinterpret_cast<float2*>(&parts[warp * HEAD + 64 * sheet + lane * 2]) = make_float2(own[0], own[1]);
    }
    group_wait(group);
    for (int column = threadIdx.x % GROUP_THREADS; column < HEAD; column += GROUP_THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < GROUP_WARPS; part++) sum += parts[part * HEAD + column];
        to[column] = factor * sum;
    }
}
