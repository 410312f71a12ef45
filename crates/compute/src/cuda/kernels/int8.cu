// Matrices of eight bits, whose numbers lie as int8.cuh says: made from f32, widened for products that read whole matrices, and looked up by rows.
#include "prelude.cuh"
#include "int8.cuh"

constexpr u32 THREADS = 256;

// A lane's two numbers of a group of 64 as whole numbers and what they are counted in: `int8.rs` of this crate bit for bit, so no product is
// added to anything without being rounded first.
struct Counted {
    int low, high;
    float scale;
    __device__ __forceinline__ Counted(float x, float y) {
        constexpr float MOST = 127.0f, FAR = 12582912.0f;
        u32 largest = max(__float_as_uint(x) & 0x7fffffffu, __float_as_uint(y) & 0x7fffffffu);
        largest = __reduce_max_sync(0xffffffffu, largest);
        const float magnitude = __uint_as_float(largest);
        float per_one = __fdiv_rn(MOST, magnitude);
        scale = __fdiv_rn(magnitude, MOST);
        if (largest >= 0x7f800000u) {
            scale = __uint_as_float(0x7fc00000u);
            per_one = 0.0f;
        } else if (__float_as_uint(per_one) >= 0x7f800000u) {
            scale = per_one = 0.0f;
        }
        const auto count = [&](float z) { return __float_as_int(__fadd_rn(__fmul_rn(z, per_one), FAR)) - __float_as_int(FAR); };
        low = static_cast<signed char>(count(x));
        high = static_cast<signed char>(count(y));
    }
};

// A warp has a group of 64. Rows and groups that are not there are zeroes, which is what the ends of tiles and chunks are filled with.
extern "C" __global__ void __launch_bounds__(THREADS) to_int8(const float* from, char* __restrict__ to, u32 rows, u32 columns) {
    take_turn();
    const u32 lane = threadIdx.x % 32, steps = (columns + INT8_STEP - 1) / INT8_STEP;
    const u32 groups = (columns + INT8_ROW - 1) / INT8_ROW * (INT8_ROW / INT8_GROUP), all_rows = (rows + INT8_TILE - 1) / INT8_TILE * INT8_TILE;
    const u64 warps = (u64)gridDim.x * (THREADS / 32), all = (u64)all_rows * groups;
    for (u64 item = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; item < all; item += warps) {
        u64 row;
        u32 group;
        locate(item, groups, row, group);
        const u32 first = group * INT8_GROUP + lane, second = first + 32, place = row % INT8_TILE;
        const float* own = from + row * columns;
        const Counted of(row < rows && first < columns ? own[first] : 0.0f, row < rows && second < columns ? own[second] : 0.0f);
        char* tile = to + row / INT8_TILE * int8_bytes(steps);
        tile[int8_step(place, 2 * group) + lane] = (char)of.low;
        tile[int8_step(place, 2 * group + 1) + lane] = (char)of.high;
        if (lane == 0) *reinterpret_cast<float*>(tile + int8_scale(place, 2 * group)) = of.scale;
    }
}

// The numbers that eight bits would stand for, in the type that they are stored in. A warp has a group, and may write where it reads.
extern "C" __global__ void __launch_bounds__(THREADS) round_to_int8(const float* from, real* to, u32 rows, u32 columns) {
    take_turn();
    const u32 lane = threadIdx.x % 32, groups = (columns + INT8_GROUP - 1) / INT8_GROUP;
    const u64 warps = (u64)gridDim.x * (THREADS / 32), all = (u64)rows * groups;
    for (u64 item = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; item < all; item += warps) {
        u64 row;
        u32 group;
        locate(item, groups, row, group);
        const u32 first = group * INT8_GROUP + lane, second = first + 32;
        const u64 own = row * columns;
        const Counted of(first < columns ? from[own + first] : 0.0f, second < columns ? from[own + second] : 0.0f);
        if (first < columns) to[own + first] = from_float<real>((float)of.low * of.scale);
        if (second < columns) to[own + second] = from_float<real>((float)of.high * of.scale);
    }
}

// to [rows, columns] in the element type. A thread has eight neighbours.
extern "C" __global__ void __launch_bounds__(THREADS) from_int8(const char* from, real* __restrict__ to, u32 rows, u32 columns) {
    take_turn();
    const u32 eights = (columns + 7) / 8;
    const u64 all = (u64)rows * eights, step = (u64)gridDim.x * THREADS;
    for (u64 item = (u64)blockIdx.x * THREADS + threadIdx.x; item < all; item += step) {
        u64 row;
        u32 eight;
        locate(item, eights, row, eight);
        float numbers[8];
        Int8Row(from, columns, row).load(eight * 8, numbers);
        real* own = to + row * columns + eight * 8;
        if (columns % 8 == 0) {
            store(own, numbers);
        } else {
#pragma unroll
            for (u32 e = 0; e < 8; e++) {
                if (eight * 8 + e < columns) own[e] = from_float<real>(numbers[e]);
            }
        }
    }
}

// Rows by id; one outside the table is reported and counts for nothing. A warp per row, a lane has four neighbours at a time.
extern "C" __global__ void __launch_bounds__(THREADS)
    embed_int8(const char* table, const u32* ids, real* __restrict__ y, u64 n_rows, u32 columns, u32 table_rows,
               u32* fault) {
    take_turn();
    const u32 lane = threadIdx.x % 32;
    const u64 warps = (u64)gridDim.x * (THREADS / 32);
    for (u64 row = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; row < n_rows; row += warps) {
        const u32 id = ids[row];
        const bool is_there = id < table_rows;
        if (!is_there && lane == 0) report_fault(fault, id, table_rows);
        const Int8Row from(table, columns, is_there ? id : 0);
#pragma unroll 4
        for (u32 column = lane * 4; column < columns; column += 128) {
            float numbers[4];
            from.load(column, numbers);
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                if (column + e < columns) y[row * columns + column + e] = from_float<real>(is_there ? numbers[e] : 0.0f);
            }
        }
    }
}
