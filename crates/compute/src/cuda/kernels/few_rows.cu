// y = x·wᵀ + b for a few rows x, which is what decoding multiplies: bound by reading w, once.
//
// A warp, or SPLIT of them, owns an output: its row of w is read in packs of 16 bytes, and every pack is multiplied with the
// same pack of all ROWS rows of x. Sums are in f32, in an order that depends on the row's length alone. Weights of eight bits are
// read eight at a time.
#include "prelude.cuh"
#include "gelu.cuh"
#include "int8.cuh"

// Rows of x.
#ifndef ROWS
#define ROWS 1
#endif
// Warps of an output: 1, 2, 4 or 8.
#ifndef SPLIT
#define SPLIT 1
#endif

// Whether w is of eight bits.
#ifndef INT8
#define INT8 0
#endif

// Numbers of a row that a lane has at a time.
constexpr int PACK = INT8 ? 8 : WIDTH;
constexpr int WARPS = 8, THREADS = 32 * WARPS, OUTPUTS = WARPS / SPLIT;

// `activated` gets the GELU of the result, unless it is null.
extern "C" __global__ void __launch_bounds__(THREADS)
few_rows(const real* __restrict__ x, const real* __restrict__ w, const real* __restrict__ bias, real* __restrict__ y,
         real* __restrict__ activated, u32 outputs, u32 depth) {
    __shared__ float parts[WARPS][ROWS];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 output = blockIdx.x * OUTPUTS + warp / SPLIT, part = warp % SPLIT;
    const u32 packs = depth / PACK;
    float sums[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) sums[r] = 0.0f;
    if (output < outputs) {
#if INT8
        const Int8Row weights(w, depth, output);
#else
        const real* weights = w + (u64)output * depth;
#endif
#pragma unroll 4
        for (u32 pack = part * 32 + lane; pack < packs; pack += 32 * SPLIT) {
            float own[PACK];
#if INT8
            weights.load(pack * PACK, own);
#else
            load(weights + pack * PACK, own);
#endif
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float other[PACK];
                load(x + (u64)r * depth + pack * PACK, other);
#pragma unroll
                for (int i = 0; i < PACK; i++) sums[r] = fmaf(own[i], other[i], sums[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) sums[r] = warp_sum(sums[r]);
    if (SPLIT > 1) {
        if (lane == 0) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) parts[warp][r] = sums[r];
        }
        __syncthreads();
    }
    if (part != 0 || output >= outputs || lane >= ROWS) return;
    float sum = 0.0f;
    if (SPLIT > 1) {
#pragma unroll
        for (int other = 0; other < SPLIT; other++) sum += parts[warp + other][lane];
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum = (int)lane == r ? sums[r] : sum;
    }
    if (bias) sum += to_float(bias[output]);
    const u64 place = (u64)lane * outputs + output;
    const real stored = from_float<real>(sum);
    y[place] = stored;
    if (activated) activated[place] = from_float<real>(gelu_of(to_float(stored)));
}
