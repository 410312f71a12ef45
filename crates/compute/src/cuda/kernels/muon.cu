// What Muon does between its products, and the running average of parameters: element by element over f32.
//
// A thread owns four neighbours at a time; what is left of a buffer, and all of one that is not aligned (`wide` is 0), goes
// element by element.
#include "prelude.cuh"

constexpr u32 THREADS = 256;

// Calls one(i) for all elements, in groups of neighbours so that the compiler can keep four in flight.
template <typename Four, typename One>
__device__ __forceinline__ void for_elements(u64 n, u32 wide, Four four, One one) {
    const u64 packs = wide ? n / 4 : 0;
    const u64 first = (u64)blockIdx.x * THREADS + threadIdx.x, step = (u64)gridDim.x * THREADS;
    for (u64 pack = first; pack < packs; pack += step) four(pack * 4);
    for (u64 i = packs * 4 + first; i < n; i += step) one(i);
}

// With g the clipped gradient: m ← decay·m + (1 − decay)·g; ahead = decay·m + (1 − decay)·g. A refused step leaves m alone
// and looks nowhere.
extern "C" __global__ void __launch_bounds__(THREADS)
    momentum(const float* gradients, const float* scale, float* __restrict__ momenta,
             float* __restrict__ ahead, u64 n, float decay, float rest, u32 wide) {
    take_turn();
    const float factor = *scale;
    const bool is_wanted = factor > 0.0f;
    const auto change = [=](float g, float& m, float& a) {
        if (!is_wanted) {
            a = 0.0f;
            return;
        }
        const float part = rest * (g * factor);
        m = decay * m + part;
        a = decay * m + part;
    };
    for_elements(
        n, wide,
        [=](u64 i) {
            float g[4], m[4], a[4];
            load(gradients + i, g);
            load((const float*)momenta + i, m);
#pragma unroll
            for (int e = 0; e < 4; e++) change(g[e], m[e], a[e]);
            store(momenta + i, m);
            store(ahead + i, a);
        },
        [=](u64 i) { change(gradients[i], momenta[i], ahead[i]); });
}

// y = x / (norm + eps).
extern "C" __global__ void __launch_bounds__(THREADS)
    normalise(const float* x, const float* norm, float* __restrict__ y, u64 n, float eps,
              u32 wide) {
    take_turn();
    const float factor = (float)(1.0 / ((double)*norm + (double)eps));
    for_elements(
        n, wide,
        [=](u64 i) {
            float v[4];
            load(x + i, v);
#pragma unroll
            for (int e = 0; e < 4; e++) v[e] *= factor;
            store(y + i, v);
        },
        [=](u64 i) { y[i] = x[i] * factor; });
}

// z = a·x + b·y.
extern "C" __global__ void __launch_bounds__(THREADS)
    combine(const float* x, const float* y, float* __restrict__ z, u64 n, float a, float b,
            u32 wide) {
    take_turn();
    for_elements(
        n, wide,
        [=](u64 i) {
            float v[4], w[4];
            load(x + i, v);
            load(y + i, w);
#pragma unroll
            for (int e = 0; e < 4; e++) v[e] = a * v[e] + b * w[e];
            store(z + i, v);
        },
        [=](u64 i) { z[i] = a * x[i] + b * y[i]; });
}

// p ← p·(1 − rate·decay) − rate·length·x, unless the step is refused.
extern "C" __global__ void __launch_bounds__(THREADS)
    descend(const float* x, const float* scale, const float* rate,
            float* __restrict__ parameters, u64 n, float length, float decay, u32 wide) {
    take_turn();
    if (!(*scale > 0.0f)) return;
    const float shrink = (float)(1.0 - (double)*rate * (double)decay), step = (float)((double)*rate * (double)length);
    for_elements(
        n, wide,
        [=](u64 i) {
            float v[4], p[4];
            load(x + i, v);
            load((const float*)parameters + i, p);
#pragma unroll
            for (int e = 0; e < 4; e++) p[e] = p[e] * shrink - step * v[e];
            store(parameters + i, p);
        },
        [=](u64 i) { parameters[i] = parameters[i] * shrink - step * x[i]; });
}

// a ← d·a + (1 − d)·p with d = min(decay, (1 + t) / (10 + t)) after t updates, unless the step is refused.
extern "C" __global__ void __launch_bounds__(THREADS)
    average(const float* parameters, const float* scale, const u32* counter,
            float* __restrict__ averages, u64 n, float decay, u32 wide) {
    take_turn();
    if (!(*scale > 0.0f)) return;
    const double updates = *counter, early = (1.0 + updates) / (10.0 + updates);
    const double kept = early < (double)decay ? early : (double)decay;
    const float keep = (float)kept, rest = (float)(1.0 - kept);
    for_elements(
        n, wide,
        [=](u64 i) {
            float p[4], a[4];
            load(parameters + i, p);
            load((const float*)averages + i, a);
#pragma unroll
            for (int e = 0; e < 4; e++) a[e] = keep * a[e] + rest * p[e];
            store(averages + i, a);
        },
        [=](u64 i) { averages[i] = keep * averages[i] + rest * parameters[i]; });
}
