// Adam and gradient descent over flat f32 buffers.
//
// `prepare` kernels, one thread each, look at the norm and turn what a step needs into a few numbers; they also advance
// the counter, which nobody else reads. The update itself goes over `ranges` in tiles of TILE elements that begin at
// multiples of TILE in the buffers, so that accesses are aligned wherever a range begins: four neighbours per thread at
// a time, and element by element at a range's ends. Nothing outside the ranges is touched.
#include "prelude.cuh"

constexpr u32 THREADS = 256;
constexpr u32 TILE = 4096;

// A run of parameters; `first_tile` is the number of tiles that the ranges before it take.
struct Range {
    u64 start, end, first_tile;
    float weight_decay;
    u32 unused;
};

// What the steps of all elements share. `is_wanted` is 0 where the norm is not finite: then nothing changes.
struct Step {
    double rate;
    float gradient_scale, corrected_rate, second_correction;
    u32 is_wanted;
};

// Gradients and norm are those of a loss that was multiplied by 2^exponent.
__device__ __forceinline__ bool prepare(float scaled_norm, float exponent, float clip, Step* step, u32* counter) {
    const double unscale = exp2(-(double)exponent), norm = scaled_norm * unscale;
    step->is_wanted = isfinite(norm);
    if (!isfinite(norm)) return false;
    step->gradient_scale = (float)(clip > 0.0f && norm > clip ? unscale * clip / norm : unscale);
    if (*counter != 0xffffffffu) ++*counter;
    return true;
}

extern "C" __global__ void prepare_adam(const float* norm, const float* rate, const float* exponent, u32* counter,
                                        Step* step, float clip, float beta1, float beta2) {
    if (!prepare(*norm, *exponent, clip, step, counter)) return;
    const double steps = *counter;
    step->rate = *rate;
    step->corrected_rate = (float)(*rate / (1.0 - pow((double)beta1, steps)));
    step->second_correction = (float)(1.0 / sqrt(1.0 - pow((double)beta2, steps)));
}

extern "C" __global__ void prepare_sgd(const float* norm, const float* rate, const float* exponent, u32* counter,
                                       Step* step, float clip) {
    if (prepare(*norm, *exponent, clip, step, counter)) step->rate = *rate;
}

// Calls four(i) for whole groups of neighbours and one(i) for the rest of every range's elements, both with the range.
template <typename Four, typename One>
__device__ __forceinline__ void for_ranges(const Range* ranges, u32 n_ranges, u64 n_tiles, u32 wide, Four four,
                                           One one) {
    for (u64 tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        // The last range whose first tile is not behind this one.
        u32 low = 0, high = n_ranges;
        while (high - low > 1) {
            const u32 middle = (low + high) / 2;
            if (ranges[middle].first_tile <= tile) low = middle;
            else high = middle;
        }
        const Range range = ranges[low];
        const u64 begin = (range.start / TILE + (tile - range.first_tile)) * TILE;
        const u64 from = begin > range.start ? begin : range.start;
        const u64 to = begin + TILE < range.end ? begin + TILE : range.end;
        if (wide) {
#pragma unroll 2
            for (u64 i = begin + 4 * threadIdx.x; i < to; i += 4 * THREADS) {
                if (i >= from && i + 4 <= to) {
                    four(i, range);
                } else {
                    for (u64 e = i > from ? i : from; e < i + 4 && e < to; e++) one(e, range);
                }
            }
        } else {
            for (u64 i = from + threadIdx.x; i < to; i += THREADS) one(i, range);
        }
    }
}

// With g the clipped gradient: g ← g + decay·p (Adam); m ← β₁m + (1 − β₁)g; v ← β₂v + (1 − β₂)g²; p ← p·(1 −
// rate·decay) (AdamW); p ← p − rate·(m/(1 − β₁ᵗ)) / (√(v/(1 − β₂ᵗ)) + ε).
extern "C" __global__ void __launch_bounds__(THREADS)
    adam(const float* __restrict__ gradients, float* __restrict__ parameters, float* __restrict__ first,
         float* __restrict__ second, const Step* __restrict__ prepared, const Range* __restrict__ ranges, u32 n_ranges,
         u64 n_tiles, float beta1, float rest1, float beta2, float rest2, float eps, u32 decoupled, u32 wide) {
    const Step step = *prepared;
    if (!step.is_wanted) return;
    const auto change = [=](float g, float& p, float& m, float& v, float decay, float shrink) {
        g = g * step.gradient_scale + decay * p;
        m = beta1 * m + rest1 * g;
        v = beta2 * v + rest2 * g * g;
        p = p * shrink - step.corrected_rate * m / (sqrtf(v) * step.second_correction + eps);
    };
    const auto terms = [=](const Range& range, float& decay, float& shrink) {
        decay = decoupled ? 0.0f : range.weight_decay;
        shrink = decoupled ? (float)(1.0 - step.rate * (double)range.weight_decay) : 1.0f;
    };
    for_ranges(
        ranges, n_ranges, n_tiles, wide,
        [=](u64 i, const Range& range) {
            float g[4], p[4], m[4], v[4], decay, shrink;
            load(gradients + i, g);
            load((const float*)parameters + i, p);
            load((const float*)first + i, m);
            load((const float*)second + i, v);
            terms(range, decay, shrink);
#pragma unroll
            for (int e = 0; e < 4; e++) change(g[e], p[e], m[e], v[e], decay, shrink);
            store(parameters + i, p);
            store(first + i, m);
            store(second + i, v);
        },
        [=](u64 i, const Range& range) {
            float decay, shrink;
            terms(range, decay, shrink);
            change(gradients[i], parameters[i], first[i], second[i], decay, shrink);
        });
}

// With g the clipped gradient: g ← g + decay·p; m ← momentum·m + g; p ← p − rate·m.
extern "C" __global__ void __launch_bounds__(THREADS)
    sgd(const float* __restrict__ gradients, float* __restrict__ parameters, float* __restrict__ momenta,
        const Step* __restrict__ prepared, const Range* __restrict__ ranges, u32 n_ranges, u64 n_tiles, float momentum,
        u32 wide) {
    const Step step = *prepared;
    if (!step.is_wanted) return;
    const float rate = (float)step.rate;
    const auto change = [=](float g, float& p, float& m, float decay) {
        m = momentum * m + (g * step.gradient_scale + decay * p);
        p -= rate * m;
    };
    for_ranges(
        ranges, n_ranges, n_tiles, wide,
        [=](u64 i, const Range& range) {
            float g[4], p[4], m[4];
            load(gradients + i, g);
            load((const float*)parameters + i, p);
            load((const float*)momenta + i, m);
#pragma unroll
            for (int e = 0; e < 4; e++) change(g[e], p[e], m[e], range.weight_decay);
            store(parameters + i, p);
            store(momenta + i, m);
        },
        [=](u64 i, const Range& range) { change(gradients[i], parameters[i], momenta[i], range.weight_decay); });
}
