// Element by element: activations and their gradients, sums of two tensors, filling, dropout.
//
// A thread owns two packs of WIDTH neighbouring elements at a time, so that two 16-byte loads per operand are in
// flight; what is left of a tensor, and all of one that is not aligned (`wide` is 0), goes element by element.
#include "prelude.cuh"
#include "gelu.cuh"

constexpr u32 THREADS = 256;

// outᵢ = f(inᵢ) over n elements; f takes the numbers of all inputs and gives those of all outputs.
template <int IN, int OUT, typename F>
__device__ __forceinline__ void map(const real* const (&in)[IN], real* const (&out)[OUT], u64 n, u32 wide, F f) {
    const u64 packs = wide ? n / WIDTH : 0;
    const u64 step = (u64)gridDim.x * 2 * THREADS;
    for (u64 first = (u64)blockIdx.x * 2 * THREADS + threadIdx.x; first < packs; first += step) {
        const u64 second = first + THREADS;
        Kept<WIDTH> a[IN], b[IN];
#pragma unroll
        for (int i = 0; i < IN; i++) a[i].load(in[i] + first * WIDTH);
        if (second < packs) {
#pragma unroll
            for (int i = 0; i < IN; i++) b[i].load(in[i] + second * WIDTH);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u64 pack = half ? second : first;
            if (pack >= packs) break;
            float x[IN][WIDTH], y[OUT][WIDTH];
#pragma unroll
            for (int i = 0; i < IN; i++) (half ? b[i] : a[i]).get(x[i]);
#pragma unroll
            for (int e = 0; e < WIDTH; e++) {
                float from[IN], to[OUT];
#pragma unroll
                for (int i = 0; i < IN; i++) from[i] = x[i][e];
                f(from, to);
#pragma unroll
                for (int i = 0; i < OUT; i++) y[i][e] = to[i];
            }
#pragma unroll
            for (int i = 0; i < OUT; i++) store(out[i] + pack * WIDTH, y[i]);
        }
    }
    for (u64 e = packs * WIDTH + (u64)blockIdx.x * THREADS + threadIdx.x; e < n; e += (u64)gridDim.x * THREADS) {
        float from[IN], to[OUT];
#pragma unroll
        for (int i = 0; i < IN; i++) from[i] = to_float(in[i][e]);
        f(from, to);
#pragma unroll
        for (int i = 0; i < OUT; i++) out[i][e] = from_float<real>(to[i]);
    }
}

constexpr float HALF_ROOT = 0.7071067811865476f;     // 1/√2
constexpr float DENSITY_AT_ZERO = 0.3989422804014327f; // 1/√(2π)

extern "C" __global__ void __launch_bounds__(THREADS) gelu(const real* x, real* y, u64 n, u32 wide) {
    map<1, 1>({x}, {y}, n, wide, [](const float (&x)[1], float (&y)[1]) {
        y[0] = gelu_of(x[0]);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gelu_grad(const real* x, const real* d_y, real* d_x, u64 n, u32 wide) {
    map<2, 1>({x, d_y}, {d_x}, n, wide, [](const float (&in)[2], float (&out)[1]) {
        out[0] = in[1] * gelu_slope(in[0]);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS) gelu_erf(const real* x, real* y, u64 n, u32 wide) {
    map<1, 1>({x}, {y}, n, wide, [](const float (&x)[1], float (&y)[1]) {
        y[0] = 0.5f * x[0] * (1.0f + erff(x[0] * HALF_ROOT));
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gelu_erf_grad(const real* x, const real* d_y, real* d_x, u64 n, u32 wide) {
    map<2, 1>({x, d_y}, {d_x}, n, wide, [](const float (&in)[2], float (&out)[1]) {
        const float x = near_zero(in[0]);
        const float below = 0.5f * (1.0f + erff(x * HALF_ROOT));
        out[0] = in[1] * (below + x * (DENSITY_AT_ZERO * exp_real(-0.5f * x * x)));
    });
}

// max(x, 0), and not a number where x is not.
__device__ __forceinline__ float positive(float x) { return x < 0.0f ? 0.0f : x; }

extern "C" __global__ void __launch_bounds__(THREADS) relu_squared(const real* x, real* y, u64 n, u32 wide) {
    map<1, 1>({x}, {y}, n, wide,
              [](const float (&x)[1], float (&y)[1]) { y[0] = positive(x[0]) * positive(x[0]); });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    relu_squared_grad(const real* x, const real* d_y, real* d_x, u64 n, u32 wide) {
    map<2, 1>({x, d_y}, {d_x}, n, wide,
              [](const float (&in)[2], float (&out)[1]) { out[0] = in[1] * 2.0f * positive(in[0]); });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    silu_gate(const real* gate, const real* up, real* y, u64 n, u32 wide) {
    map<2, 1>({gate, up}, {y}, n, wide, [](const float (&in)[2], float (&out)[1]) {
        // The decay overflows to infinity where the quotient is zero.
        out[0] = divide_real(in[0], 1.0f + exp_real(-in[0])) * in[1];
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    silu_gate_grad(const real* gate, const real* up, const real* d_y, real* d_gate, real* d_up, u64 n, u32 wide) {
    map<3, 2>({gate, up, d_y}, {d_gate, d_up}, n, wide, [](const float (&in)[3], float (&out)[2]) {
        const float decay = exp_real(-in[0]);
        const float sigmoid = divide_real(1.0f, 1.0f + decay);
        const float silu = in[0] * sigmoid;
        // 1 − σ loses its digits where σ is near 1, and the product is not a number where the decay overflows.
        const float rest = in[0] < 0.0f ? 1.0f - sigmoid : decay * sigmoid;
        out[0] = in[2] * in[1] * (sigmoid + silu * rest);
        out[1] = in[2] * silu;
    });
}

extern "C" __global__ void __launch_bounds__(THREADS) add(const real* a, const real* b, real* y, u64 n, u32 wide) {
    map<2, 1>({a, b}, {y}, n, wide, [](const float (&in)[2], float (&out)[1]) { out[0] = in[0] + in[1]; });
}

// One number in every element.
extern "C" __global__ void __launch_bounds__(THREADS) broadcast(const real* x, real* y, u64 n, u32 wide) {
    const real value = *x;
    const u64 packs = wide ? n / WIDTH : 0;
    const u64 first = (u64)blockIdx.x * THREADS + threadIdx.x, step = (u64)gridDim.x * THREADS;
    Wide<real> values;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) values.at[e] = value;
    for (u64 pack = first; pack < packs; pack += step) store_wide(y + pack * WIDTH, values);
    for (u64 e = packs * WIDTH + first; e < n; e += step) y[e] = value;
}

// Whether an element is dropped is a function of the key, the step, the dropout's number, the sample's index and the
// element's place in the sample: four neighbours share one draw. blockIdx.y runs over samples.
extern "C" __global__ void __launch_bounds__(THREADS)
    dropout(const real* x, const u32* key, const u32* samples, real* y, u64 per_sample, u32 n_samples, u32 number,
            u32 threshold, float scale, u32 wide) {
    const u32 key0 = key[0], key1 = key[1], step = key[2];
    const u64 packs = wide ? per_sample / WIDTH : 0;
    const u64 first = (u64)blockIdx.x * THREADS + threadIdx.x, stride = (u64)gridDim.x * THREADS;
    for (u32 b = blockIdx.y; b < n_samples; b += gridDim.y) {
        const u32 sample = samples[b];
        const real* from = x + b * per_sample;
        real* to = y + b * per_sample;
        for (u64 pack = first; pack < packs; pack += stride) {
            float values[WIDTH];
            load(from + pack * WIDTH, values);
#pragma unroll
            for (int e = 0; e < WIDTH; e += 4) {
                const u32 draw = (u32)((pack * WIDTH + e) / 4);
                const uint4 words = philox(key0, key1, make_uint4(draw, sample, number, step));
                values[e] = words.x < threshold ? 0.0f : values[e] * scale;
                values[e + 1] = words.y < threshold ? 0.0f : values[e + 1] * scale;
                values[e + 2] = words.z < threshold ? 0.0f : values[e + 2] * scale;
                values[e + 3] = words.w < threshold ? 0.0f : values[e + 3] * scale;
            }
            store(to + pack * WIDTH, values);
        }
        for (u64 e = packs * WIDTH + first; e < per_sample; e += stride) {
            const uint4 words = philox(key0, key1, make_uint4((u32)(e / 4), sample, number, step));
            const u32 low = e & 1 ? words.y : words.x, high = e & 1 ? words.w : words.z;
            const float value = (e & 2 ? high : low) < threshold ? 0.0f : to_float(from[e]) * scale;
            to[e] = from_float<real>(value);
        }
    }
}
