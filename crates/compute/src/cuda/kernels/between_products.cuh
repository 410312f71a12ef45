// A norm between two products of `batch_rows.cu`, which takes no launch of its own.
//
// The first product adds its result to rows that are kept, and leaves the sums, the sums times the norm's gains, and of every piece of a
// row, as long as a block has outputs, the mean and the squares of distances from it. The second multiplies sums times gains by its weights
// as they are, and corrects what comes of it: y = rstd·(gained·wᵀ − mean·(w·g)) + (w·s + b). The products of weights with gains and
// shifts are made once. Comes after the numbers of batch_rows.cu.
#pragma once

// What a row, or a piece of it, is spread around, and how much.
struct Spread { float mean, squares; };

// Whether a norm takes out a mean; otherwise rows spread around 0.
#ifndef CENTRED
#define CENTRED 0
#endif

template <u32 LANES> __device__ __forceinline__ float sum_of_lanes(float x) {
#pragma unroll
    for (u32 apart = LANES / 2; apart; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
    return x;
}

// Of a piece that lies in some lanes, EACH numbers in each.
template <u32 LANES> __device__ __forceinline__ Spread spread_of(const float (&x)[EACH]) {
    Spread piece = {0, 0};
    if (CENTRED) {
#pragma unroll
        for (u32 e = 0; e < EACH; e++) piece.mean += x[e];
        piece.mean = sum_of_lanes<LANES>(piece.mean) * (1.0f / OUTPUTS);
    }
#pragma unroll
    for (u32 e = 0; e < EACH; e++) piece.squares += (x[e] - piece.mean) * (x[e] - piece.mean);
    piece.squares = sum_of_lanes<LANES>(piece.squares);
    return piece;
}

// All pieces of a row, shared out among some lanes.
template <u32 PIECES, u32 LANES> struct Pieces {
    Spread own[(PIECES + LANES - 1) / LANES];
    // Asks for them.
    __device__ __forceinline__ void load(const Spread* pieces, u32 row, bool is_there) {
#pragma unroll
        for (u32 piece = threadIdx.x % LANES, i = 0; i < (PIECES + LANES - 1) / LANES; i++, piece += LANES) {
            own[i] = {0, 0};
            if (is_there && piece < PIECES) own[i] = pieces[(u64)row * PIECES + piece];
        }
    }
    // The row's mean, and 1 by its spread.
    __device__ __forceinline__ float2 merge(float eps) const {
        float mean = 0, squares = 0;
        if (CENTRED) {
#pragma unroll
            for (const Spread& piece : own) mean += piece.mean;
            mean = sum_of_lanes<LANES>(mean) * (1.0f / PIECES);
        }
#pragma unroll
        for (u32 i = 0; i < (PIECES + LANES - 1) / LANES; i++) {
            const float apart = own[i].mean - mean;
            if (threadIdx.x % LANES + i * LANES < PIECES) squares += own[i].squares + OUTPUTS * (apart * apart);
        }
        return make_float2(mean, rsqrtf(sum_of_lanes<LANES>(squares) * (1.0f / (PIECES * OUTPUTS)) + eps));
    }
};

// What gains and shifts come to in the weights of a thread's outputs.
struct Through {
    float of_gains[EACH], of_shifts[EACH];
    __device__ __forceinline__ Through(float4 first, float4 second)
        : of_gains{first.x, first.z, second.x, second.z}, of_shifts{first.y, first.w, second.y, second.w} {}
};

// Sums over rows with gains become those over a norm's rows, with the bias; `spread` is its row's.
__device__ __forceinline__ void correct(float (&sum)[EACH], float2 spread, const Through& through, const float (&bias)[EACH]) {
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
        sum[e] = CENTRED ? spread.y * (sum[e] - spread.x * through.of_gains[e]) + through.of_shifts[e] : spread.y * sum[e] + bias[e];
    }
}

// What gains and shifts come to in weights: w·g and w·s + b of every output, a warp to each. Nothing where there is no shift or bias.
extern "C" __global__ void through_norm(const real* w, const real* gain, const real* shift, const real* bias, float2* through,
                                        u32 outputs, u32 depth) {
    const u32 output = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (output >= outputs) return;
    float of_gains = 0, of_shifts = 0;
    for (u32 k = lane; k < depth; k += 32) {
        const float weight = to_float(w[(u64)output * depth + k]);
        of_gains += weight * to_float(gain[k]);
        if (shift) of_shifts += weight * to_float(shift[k]);
    }
    of_gains = sum_of_lanes<32>(of_gains);
    of_shifts = sum_of_lanes<32>(of_shifts);
    if (lane == 0) through[output] = make_float2(of_gains, of_shifts + (bias ? to_float(bias[output]) : 0.0f));
}
