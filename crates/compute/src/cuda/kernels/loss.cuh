// What a row's loss needs of its logits, and whether it has one: for those that take losses, each in their own order.
//
// The greatest logit and the sum of exponentials are found in one pass: a thread scales its sum down whenever it meets
// a greater logit.
#pragma once

constexpr u32 IGNORED = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;

// e^(x − top) for sums that end in an f32: exact near the top, where the terms count.
__device__ __forceinline__ float term(float x, float top) {
#if REAL == 0
    return expf(x - top);
#else
    return power_of_two((x - top) * LOG2_E);
#endif
}

// A row's greatest logit, the logarithm of its exponentials' sum relative to that, and its mean if it is wanted.
struct Total {
    float top, log_sum, mean;
    __device__ __forceinline__ float log_sum_exp() const { return top + log_sum; }
    __device__ __forceinline__ float loss(float logit, float weight, float smoothing, float z_loss) const {
        // In this order nothing cancels that the log-sum-exp has lost to rounding.
        const float plain = (top - logit) + log_sum, spread = (top - mean) + log_sum;
        const float squared = log_sum_exp() * log_sum_exp();
        // Spelled out, so that every kernel that takes losses finds the same bits.
        const float wanted = fmaf(smoothing, spread, __fmul_rn(1.0f - smoothing, plain));
        return weight * fmaf(z_loss, squared, wanted);
    }
};

// What a pass over logits gathers.
struct Gathered {
    float most, exponentials, sum;

    template <int N> __device__ __forceinline__ void add(const float (&x)[N], bool wants_sum) {
        float greatest = x[0];
#pragma unroll
        for (int e = 1; e < N; e++) greatest = fmaxf(greatest, x[e]);
        if (greatest > most) {
            exponentials *= term(most, greatest);
            most = greatest;
        }
        // While all logits so far are −∞ their exponentials are 0, whatever they are taken against.
        const float top = most == minus_infinity() ? 0.0f : most;
#pragma unroll
        for (int e = 0; e < N; e++) exponentials += term(x[e], top);
        if (wants_sum) {
#pragma unroll
            for (int e = 0; e < N; e++) sum += x[e];
        }
    }

    // What the loss needs of the whole row, in every thread.
    __device__ __forceinline__ Total finish(u32 columns, bool wants_sum) const {
        __shared__ float warps[32];
        Total total;
        total.top = block_max(most, warps);
        // A thread without a logit above −∞ has no sum to scale, unless what it met is not a number.
        const float own = most == minus_infinity() ? exponentials : exponentials * term(most, total.top);
        total.log_sum = logf(block_sum(own, warps));
        total.mean = wants_sum ? block_sum(sum, warps) / (float)columns : 0.0f;
        return total;
    }
};

// Whether a row counts. Says so if its target is in no vocabulary.
__device__ __forceinline__ bool counts(u32 target, u32 columns, u32* fault) {
    if (target == IGNORED) return false;
    if (target < columns) return true;
    if (threadIdx.x == 0) report_fault(fault, target, columns);
    return false;
}
