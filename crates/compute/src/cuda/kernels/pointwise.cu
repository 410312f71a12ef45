// Element by element: activations and their gradients, sums and products of two tensors, filling, dropout.
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
    take_turn();
    map<1, 1>({x}, {y}, n, wide, [](const float (&x)[1], float (&y)[1]) {
        y[0] = gelu_of(x[0]);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS) gelu_slope(const real* x, real* slope, u64 n, u32 wide) {
    take_turn();
    map<1, 1>({x}, {slope}, n, wide, [](const float (&x)[1], float (&slope)[1]) {
        slope[0] = gelu_slope(x[0]);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gelu_grad(const real* x, const real* d_y, real* d_x, u64 n, u32 wide) {
    take_turn();
    map<2, 1>({x, d_y}, {d_x}, n, wide, [](const float (&in)[2], float (&out)[1]) {
        out[0] = in[1] * gelu_slope(in[0]);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS) gelu_erf(const real* x, real* y, u64 n, u32 wide) {
    take_turn();
    map<1, 1>({x}, {y}, n, wide, [](const float (&x)[1], float (&y)[1]) {
        y[0] = 0.5f * x[0] * (1.0f + erff(x[0] * HALF_ROOT));
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gelu_erf_grad(const real* x, const real* d_y, real* d_x, u64 n, u32 wide) {
    take_turn();
    map<2, 1>({x, d_y}, {d_x}, n, wide, [](const float (&in)[2], float (&out)[1]) {
        const float x = near_zero(in[0]);
        const float below = 0.5f * (1.0f + erff(x * HALF_ROOT));
        out[0] = in[1] * (below + x * (DENSITY_AT_ZERO * exp_real(-0.5f * x * x)));
    });
}

// max(x, 0), and not a number where x is not.
__device__ __forceinline__ float positive(float x) { return x < 0.0f ? 0.0f : x; }

extern "C" __global__ void __launch_bounds__(THREADS) relu_squared(const real* x, real* y, u64 n, u32 wide) {
    take_turn();
    map<1, 1>({x}, {y}, n, wide,
              [](const float (&x)[1], float (&y)[1]) { y[0] = positive(x[0]) * positive(x[0]); });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    relu_squared_grad(const real* x, const real* d_y, real* d_x, u64 n, u32 wide) {
    take_turn();
    map<2, 1>({x, d_y}, {d_x}, n, wide,
              [](const float (&in)[2], float (&out)[1]) { out[0] = in[1] * 2.0f * positive(in[0]); });
}

__device__ __forceinline__ void silu_gate_slopes(float gate, float up, float d_y, float& d_gate, float& d_up) {
    const float decay = exp_real(-gate);
    const float sigmoid = divide_real(1.0f, 1.0f + decay);
    const float silu = gate * sigmoid;
    // 1 − σ loses its digits where σ is near 1, and the product is not a number where the decay overflows.
    const float rest = gate < 0.0f ? 1.0f - sigmoid : decay * sigmoid;
    d_gate = d_y * up * (sigmoid + silu * rest);
    d_up = d_y * silu;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    silu_gate(const real* gate, const real* up, real* y, u64 n, u32 wide) {
    take_turn();
    map<2, 1>({gate, up}, {y}, n, wide,
              [](const float (&in)[2], float (&out)[1]) { out[0] = silu_gate_of(in[0], in[1]); });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    silu_gate_grad(const real* gate, const real* up, const real* d_y, real* d_gate, real* d_up, u64 n, u32 wide) {
    take_turn();
    map<3, 2>({gate, up, d_y}, {d_gate, d_up}, n, wide, [](const float (&in)[3], float (&out)[2]) {
        silu_gate_slopes(in[0], in[1], in[2], out[0], out[1]);
    });
}

// f(at, joint) for every pack of W neighbours in n elements of rows of `columns`: `at` is its place there, `joint` that of
// the same columns in the first half of rows twice as long.
template <int W, typename F> __device__ __forceinline__ void for_halves(u64 n, u32 columns, F f) {
    const u64 packs = n / W, step = (u64)gridDim.x * THREADS;
#pragma unroll 2
    for (u64 pack = (u64)blockIdx.x * THREADS + threadIdx.x; pack < packs; pack += step) {
        u64 row;
        u32 column;
        locate(pack, columns / W, row, column);
        f(pack * W, row * 2 * columns + column * W);
    }
}

// Gates and what they let through lie side by side in the rows of one tensor.
template <int W>
__device__ __forceinline__ void joint_gate(const real* __restrict__ gate_up, real* __restrict__ y, u64 n, u32 columns) {
    for_halves<W>(n, columns, [=](u64 at, u64 joint) {
        float gate[W], up[W];
        load(gate_up + joint, gate);
        load(gate_up + joint + columns, up);
#pragma unroll
        for (int e = 0; e < W; e++) gate[e] = silu_gate_of(gate[e], up[e]);
        store(y + at, gate);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    joint_silu_gate(const real* gate_up, real* y, u64 n, u32 columns, u32 wide) {
    take_turn();
    if (wide) joint_gate<WIDTH>(gate_up, y, n, columns);
    else joint_gate<1>(gate_up, y, n, columns);
}

template <int W>
__device__ __forceinline__ void joint_gate_grad(const real* __restrict__ gate_up, const real* __restrict__ d_y,
                                                real* __restrict__ d_gate_up, u64 n, u32 columns) {
    for_halves<W>(n, columns, [=](u64 at, u64 joint) {
        float gate[W], up[W], d[W];
        load(gate_up + joint, gate);
        load(gate_up + joint + columns, up);
        load(d_y + at, d);
#pragma unroll
        for (int e = 0; e < W; e++) {
            float d_gate, d_up;
            silu_gate_slopes(gate[e], up[e], d[e], d_gate, d_up);
            gate[e] = d_gate;
            up[e] = d_up;
        }
        store(d_gate_up + joint, gate);
        store(d_gate_up + joint + columns, up);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    joint_silu_gate_grad(const real* gate_up, const real* d_y, real* d_gate_up, u64 n, u32 columns, u32 wide) {
    take_turn();
    if (wide) joint_gate_grad<WIDTH>(gate_up, d_y, d_gate_up, n, columns);
    else joint_gate_grad<1>(gate_up, d_y, d_gate_up, n, columns);
}

// The slopes of gates and of what they let through, in place of both.
template <int W>
__device__ __forceinline__ void joint_gate_slopes(real* __restrict__ gate_up, real* __restrict__ y, u64 n, u32 columns) {
    for_halves<W>(n, columns, [=](u64 at, u64 joint) {
        float gate[W], up[W], out[W];
        load(gate_up + joint, gate);
        load(gate_up + joint + columns, up);
#pragma unroll
        for (int e = 0; e < W; e++) {
            float of_gate, of_up;
            out[e] = silu_gate_of(gate[e], up[e]);
            silu_gate_slopes(gate[e], up[e], 1.0f, of_gate, of_up);
            gate[e] = of_gate;
            up[e] = of_up;
        }
        store(gate_up + joint, gate);
        store(gate_up + joint + columns, up);
        store(y + at, out);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    joint_silu_gate_slopes(real* gate_up, real* y, u64 n, u32 columns, u32 wide) {
    take_turn();
    if (wide) joint_gate_slopes<WIDTH>(gate_up, y, n, columns);
    else joint_gate_slopes<1>(gate_up, y, n, columns);
}

// The first half of `d` holds the gradient that both halves of the slopes are multiplied with.
template <int W>
__device__ __forceinline__ void times_slopes(const real* __restrict__ slopes, real* __restrict__ d, u64 n, u32 columns) {
    for_halves<W>(n, columns, [=](u64, u64 joint) {
        float of_gate[W], of_up[W], d_y[W];
        load(slopes + joint, of_gate);
        load(slopes + joint + columns, of_up);
        load(d + joint, d_y);
#pragma unroll
        for (int e = 0; e < W; e++) {
            of_gate[e] *= d_y[e];
            of_up[e] *= d_y[e];
        }
        store(d + joint, of_gate);
        store(d + joint + columns, of_up);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    times_joint_slopes(const real* slopes, real* d, u64 n, u32 columns, u32 wide) {
    take_turn();
    if (wide) times_slopes<WIDTH>(slopes, d, n, columns);
    else times_slopes<1>(slopes, d, n, columns);
}

extern "C" __global__ void __launch_bounds__(THREADS) add(const real* a, const real* b, real* y, u64 n, u32 wide) {
    take_turn();
    map<2, 1>({a, b}, {y}, n, wide, [](const float (&in)[2], float (&out)[1]) { out[0] = in[0] + in[1]; });
}

extern "C" __global__ void __launch_bounds__(THREADS) mul(const real* a, const real* b, real* y, u64 n, u32 wide) {
    take_turn();
    map<2, 1>({a, b}, {y}, n, wide, [](const float (&in)[2], float (&out)[1]) { out[0] = in[0] * in[1]; });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    affine(const real* x, real* y, u64 n, u32 wide, float factor, float offset) {
    take_turn();
    map<1, 1>({x}, {y}, n, wide,
              [=](const float (&in)[1], float (&out)[1]) { out[0] = fmaf(factor, in[0], offset); });
}

// One number in every element.
extern "C" __global__ void __launch_bounds__(THREADS) broadcast(const real* x, real* y, u64 n, u32 wide) {
    take_turn();
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
    take_turn();
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
