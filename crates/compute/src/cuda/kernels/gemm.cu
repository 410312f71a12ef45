// The matrix product for what the library has no algorithm for (odd sizes in 16 bits, foreign alignments), the rounding of
// f32 operands to the type that they are multiplied in, and the turning of weights that multiply faster the other way round.
#include "prelude.cuh"

#define TILE 64
#define DEPTH 16

// out [rows, columns] = left [rows, inner] · right [inner, columns] + bias, or that added to it. A transposed factor is stored
// the other way round. OUT is the type of the result: 0 is f32, 1 is real. 256 threads, each 4 × 4 results.
#if OUT == 0
typedef float result;
#else
typedef real result;
#endif

extern "C" __global__ void __launch_bounds__(256) gemm(
    const real* left, const real* right, const result* bias, result* out, u32 rows, u32 columns, u32 inner,
    u32 left_leading, u32 right_leading, u32 out_leading, u32 left_transposed, u32 right_transposed, u32 add) {
    take_turn();
    __shared__ float a[DEPTH][TILE + 4], b[DEPTH][TILE + 4];
    u32 row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE;
    u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float sums[4][4] = {};
    for (u32 k0 = 0; k0 < inner; k0 += DEPTH) {
        for (u32 i = threadIdx.x; i < TILE * DEPTH; i += 256) {
            // Neighbouring threads read neighbouring elements of whatever way the factor is stored.
            u32 r = left_transposed ? i % TILE : i / DEPTH, k = left_transposed ? i / TILE : i % DEPTH;
            u64 at = left_transposed ? (u64)(k0 + k) * left_leading + row0 + r : (u64)(row0 + r) * left_leading + k0 + k;
            a[k][r] = row0 + r < rows && k0 + k < inner ? to_float(left[at]) : 0.0f;
            u32 c = right_transposed ? i / DEPTH : i % TILE, l = right_transposed ? i % DEPTH : i / TILE;
            at = right_transposed ? (u64)(column0 + c) * right_leading + k0 + l : (u64)(k0 + l) * right_leading + column0 + c;
            b[l][c] = column0 + c < columns && k0 + l < inner ? to_float(right[at]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] += a[k][ty + 16 * i] * b[k][tx + 16 * j];
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 row = row0 + ty + 16 * i, column = column0 + tx + 16 * j;
            if (row < rows && column < columns) {
                u64 at = (u64)row * out_leading + column;
                float sum = sums[i][j];
                if (bias) sum += to_float(bias[column]);
                if (add) sum += to_float(out[at]);
                out[at] = from_float<result>(sum);
            }
        }
    }
}

extern "C" __global__ void round_operand(const float* from, real* to, u64 elements) {
    take_turn();
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += (u64)gridDim.x * blockDim.x)
        to[i] = from_float<real>(from[i]);
}

// to [columns, rows] = from [rows, columns] with the two changed over. A block of 256 threads moves a tile.
extern "C" __global__ void __launch_bounds__(256) turn(const real* from, real* to, u32 rows, u32 columns, u32 leading) {
    take_turn();
    __shared__ real tile[TILE][TILE + 2];
    const u32 row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE, x = threadIdx.x % TILE, y = threadIdx.x / TILE;
#pragma unroll 4
    for (u32 r = y; r < TILE; r += 256 / TILE) {
        if (row0 + r < rows && column0 + x < columns) tile[r][x] = from[(u64)(row0 + r) * leading + column0 + x];
    }
    __syncthreads();
#pragma unroll 4
    for (u32 c = y; c < TILE; c += 256 / TILE) {
        if (column0 + c < columns && row0 + x < rows) to[(u64)(column0 + c) * rows + row0 + x] = tile[x][c];
    }
}
