// The guard of a step, and Adam and gradient descent over flat f32 buffers.
//
// One thread each, `guard` decides whether the step is applied, and `prepare` kernels turn what it needs into a few
// numbers; they also advance the counter, which nobody else reads. The update itself goes over `ranges` in tiles of TILE
// elements that begin at multiples of TILE in the buffers, so that accesses are aligned wherever a range begins: four
// neighbours per thread at a time, and element by element at a range's ends. Nothing outside the ranges is touched.
#include "prelude.cuh"

constexpr u32 THREADS = 256;
constexpr u32 TILE = 4096;

// A run of parameters; `first_tile` is the number of tiles that the ranges before it take.
struct Range {
    u64 start, end, first_tile;
    float weight_decay, rate;
};

// What the steps of all elements share. `is_wanted` is 0 where the guard refused the step: then nothing changes.
struct Step {
    double rate;
    float gradient_scale, corrected_rate, second_correction;
    u32 is_wanted;
};

enum Verdict { APPLIED, OVERFLOW, NOT_FINITE, LOSS_OUTLIER, NORM_OUTLIER, HELD };

// Steps that running means are over, and the share of a mean that a spread is at least: as in `kernel/guard.rs`.
constexpr double WINDOW = 128.0;
constexpr double LEAST_SPREAD = 1e-3;

__device__ __forceinline__ double deviation(double x, double mean, double variance, bool can_tell) {
    const double spread = fmax(sqrt(variance), LEAST_SPREAD * fabs(mean));
    return can_tell && spread > 0.0 && isfinite(x) ? (x - mean) / spread : 0.0;
}

__device__ __forceinline__ void feed(double x, double share, float* mean, float* variance) {
    const double change = x - *mean;
    // What is kept in f32 stays finite, whatever norms there are.
    *variance = (float)fmin((1.0 - share) * (*variance + share * change * change), 3.4028234663852886e38);
    *mean = (float)(*mean + share * change);
}

// The norm is that of a loss multiplied by 2^exponent, the loss a plain sum over so many targets. `statistics` are steps
// seen, mean loss, its variance, mean norm, its variance, held; `report` is verdict, both deviations, usual norm.
extern "C" __global__ void guard(const float* scaled_norm, const float* loss_sum, const float* targets,
                                 const float* exponent, float* scale, float* report, float* statistics, float clip,
                                 float loss_outlier, float norm_outlier, float warmup, u32 holds) {
    take_turn();
    const double unscale = exp2(-(double)*exponent), norm = *scaled_norm * unscale;
    const double loss = *loss_sum / fmax((double)*targets, 1.0);
    const double steps = statistics[0];
    const bool can_tell = steps >= fmin(fmax((double)warmup, 1.0), WINDOW);
    const double loss_deviation = deviation(loss, statistics[1], statistics[2], can_tell);
    const double norm_deviation = deviation(norm, statistics[3], statistics[4], can_tell);
    report[3] = can_tell ? statistics[3] : 0.0f;
    Verdict verdict = APPLIED;
    if (statistics[5] != 0.0f) verdict = HELD;
    else if (!isfinite(loss) || (!isfinite(norm) && *exponent <= 0.0f)) verdict = NOT_FINITE;
    else if (!isfinite(norm)) verdict = OVERFLOW;
    else if (loss_outlier > 0.0f && loss_deviation > loss_outlier) verdict = LOSS_OUTLIER;
    else if (norm_outlier > 0.0f && norm_deviation > norm_outlier) verdict = NORM_OUTLIER;
    if (verdict == APPLIED && *targets > 0.0f) {
        const double share = 1.0 / (fmin(steps, WINDOW - 1.0) + 1.0);
        feed(loss, share, statistics + 1, statistics + 2);
        feed(norm, share, statistics + 3, statistics + 4);
        statistics[0] = (float)fmin(steps + 1.0, WINDOW);
    }
    if (holds && verdict != APPLIED && verdict != OVERFLOW) statistics[5] = 1.0f;
    const double applied = clip > 0.0f && norm > clip ? unscale * clip / norm : unscale;
    *scale = verdict == APPLIED ? (float)applied : 0.0f;
    report[0] = (float)verdict;
    report[1] = (float)loss_deviation;
    report[2] = (float)norm_deviation;
}

__device__ __forceinline__ bool prepare(float scale, Step* step, u32* counter) {
    step->is_wanted = scale > 0.0f;
    if (!step->is_wanted) return false;
    step->gradient_scale = scale;
    if (*counter != 0xffffffffu) ++*counter;
    return true;
}

extern "C" __global__ void prepare_adam(const float* scale, const float* rate, u32* counter, Step* step, float beta1,
                                        float beta2) {
    take_turn();
    if (!prepare(*scale, step, counter)) return;
    const double steps = *counter;
    step->rate = *rate;
    step->corrected_rate = (float)(*rate / (1.0 - pow((double)beta1, steps)));
    step->second_correction = (float)(1.0 / sqrt(1.0 - pow((double)beta2, steps)));
}

extern "C" __global__ void prepare_sgd(const float* scale, const float* rate, u32* counter, Step* step) {
    take_turn();
    if (prepare(*scale, step, counter)) step->rate = *rate;
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

// Four neighbours of a working copy.
__device__ __forceinline__ void store_four(real* to, const float (&from)[4]) {
#if REAL == 0
    store(to, from);
#else
    *reinterpret_cast<uint2*>(to) =
        make_uint2(narrow_pair(from[0], from[1], real()), narrow_pair(from[2], from[3], real()));
#endif
}

// With g the clipped gradient: g ← g + decay·p (Adam); m ← β₁m + (1 − β₁)g; v ← β₂v + (1 − β₂)g²; p ← p·(1 −
// rate·decay) (AdamW); p ← p − rate·(m/(1 − β₁ᵗ)) / (√(v/(1 − β₂ᵗ)) + ε). Where there is a `copy`, it takes p.
extern "C" __global__ void __launch_bounds__(THREADS)
    adam(const float* gradients, float* __restrict__ parameters, float* __restrict__ first,
         float* __restrict__ second, real* __restrict__ copy, const Step* prepared,
         const Range* ranges, u32 n_ranges, u64 n_tiles, float beta1, float rest1, float beta2,
         float rest2, float eps, u32 decoupled, u32 wide) {
    take_turn();
    const Step step = *prepared;
    if (!step.is_wanted) return;
    struct Terms {
        float decay, shrink, rate;
    };
    const auto change = [=](float g, float& p, float& m, float& v, const Terms& terms) {
        g = g * step.gradient_scale + terms.decay * p;
        m = beta1 * m + rest1 * g;
        v = beta2 * v + rest2 * g * g;
        p = p * terms.shrink - terms.rate * m / (sqrtf(v) * step.second_correction + eps);
    };
    const auto terms = [=](const Range& range) {
        const double shrink = 1.0 - step.rate * (double)range.rate * (double)range.weight_decay;
        return Terms{decoupled ? 0.0f : range.weight_decay, decoupled ? (float)shrink : 1.0f,
                     step.corrected_rate * range.rate};
    };
    for_ranges(
        ranges, n_ranges, n_tiles, wide,
        [=](u64 i, const Range& range) {
            float g[4], p[4], m[4], v[4];
            load(gradients + i, g);
            load((const float*)parameters + i, p);
            load((const float*)first + i, m);
            load((const float*)second + i, v);
            const Terms of = terms(range);
#pragma unroll
            for (int e = 0; e < 4; e++) change(g[e], p[e], m[e], v[e], of);
            store(parameters + i, p);
            store(first + i, m);
            store(second + i, v);
            if (copy) store_four(copy + i, p);
        },
        [=](u64 i, const Range& range) {
            change(gradients[i], parameters[i], first[i], second[i], terms(range));
            if (copy) copy[i] = from_float<real>(parameters[i]);
        });
}

// With g the clipped gradient: g ← g + decay·p; m ← momentum·m + g; p ← p − rate·m.
extern "C" __global__ void __launch_bounds__(THREADS)
    sgd(const float* gradients, float* __restrict__ parameters, float* __restrict__ momenta,
        const Step* prepared, const Range* ranges, u32 n_ranges, u64 n_tiles, float momentum,
        u32 wide) {
    take_turn();
    const Step step = *prepared;
    if (!step.is_wanted) return;
    const auto change = [=](float g, float& p, float& m, const Range& range) {
        m = momentum * m + (g * step.gradient_scale + range.weight_decay * p);
        p -= (float)(step.rate * (double)range.rate) * m;
    };
    for_ranges(
        ranges, n_ranges, n_tiles, wide,
        [=](u64 i, const Range& range) {
            float g[4], p[4], m[4];
            load(gradients + i, g);
            load((const float*)parameters + i, p);
            load((const float*)momenta + i, m);
#pragma unroll
            for (int e = 0; e < 4; e++) change(g[e], p[e], m[e], range);
            store(parameters + i, p);
            store(momenta + i, m);
        },
        [=](u64 i, const Range& range) { change(gradients[i], parameters[i], momenta[i], range); });
}
