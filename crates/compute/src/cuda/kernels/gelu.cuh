// GELU in its tanh form and its slope, and SiLU's gate. Comes after prelude.cuh.

// √(2/π) and the weight of the cube in GELU's tanh form.
constexpr float GELU_SCALE = 0.7978845608028654f;
constexpr float GELU_CUBE = 0.044715f;

// Beyond ±10 the slopes of all activations are 0 or 1; x² and x³ may overflow there. Keeps what is not a number.
__device__ __forceinline__ float near_zero(float x) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(-10.0f));
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(y) : "f"(10.0f));
    return y;
}

// ½(1 + tanh u) is the sigmoid of 2u; the decay is e⁻²ᵘ. Far below zero it overflows to infinity and GELU is zero.
#if REAL == 0
__device__ __forceinline__ float gelu_decay(float x) {
    return expf(-2.0f * GELU_SCALE * (x + GELU_CUBE * x * x * x));
}
__device__ __forceinline__ float gelu_of(float x) { return x / (1.0f + gelu_decay(x)); }
__device__ __forceinline__ float gelu_slope(float at) {
    const float x = near_zero(at), decay = gelu_decay(x), sigmoid = 1.0f / (1.0f + decay);
    const float inner = GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * x * x);
    return sigmoid * (1.0f + 2.0f * x * (decay * sigmoid) * inner);
}
#else
// In halves every instruction counts, because products wait for them: constants are multiplied beforehand.
__device__ __forceinline__ float gelu_decay(float x) {
    constexpr float LINEAR = -2.0f * GELU_SCALE * 1.4426950408889634f, CUBE = LINEAR * GELU_CUBE;
    return power_of_two(x * (LINEAR + CUBE * (x * x)));
}
__device__ __forceinline__ float gelu_sigmoid(float x) { return reciprocal(1.0f + gelu_decay(x)); }
__device__ __forceinline__ float gelu_of(float x) { return x * gelu_sigmoid(x); }
// The slope where x is near zero already.
__device__ __forceinline__ float gelu_slope_near(float x) {
    constexpr float CONSTANT = 2.0f * GELU_SCALE, SQUARE = 3.0f * CONSTANT * GELU_CUBE;
    const float sigmoid = gelu_sigmoid(x), rise = x * (CONSTANT + SQUARE * (x * x));
    return sigmoid + sigmoid * (rise - sigmoid * rise);
}
__device__ __forceinline__ float gelu_slope(float x) { return gelu_slope_near(near_zero(x)); }
// Both at once. The slope is no number beyond ±1e19, where x² overflows, as it does in norms.
__device__ __forceinline__ void gelu_and_slope(float x, float& y, float& slope) {
    constexpr float LINEAR = -2.0f * GELU_SCALE * 1.4426950408889634f, CUBE = LINEAR * GELU_CUBE;
    constexpr float CONSTANT = 2.0f * GELU_SCALE, SQUARE = 3.0f * CONSTANT * GELU_CUBE;
    const float square = x * x;
    const float sigmoid = reciprocal(1.0f + power_of_two(x * (LINEAR + CUBE * square)));
    y = x * sigmoid;
    slope = sigmoid + (y - y * sigmoid) * (CONSTANT + SQUARE * square);
}

// A gate and what the gradient wants of it and of what it lets through.
__device__ __forceinline__ void silu_gate_and_slopes(float gate, float up, float& y, float& of_gate, float& of_up) {
    const float sigmoid = reciprocal(1.0f + power_of_two(gate * -1.4426950408889634f));
    of_up = gate * sigmoid;
    of_gate = up * (sigmoid + (of_up - of_up * sigmoid));
    y = of_up * up;
}

// Two elements between −10 and 10, beyond which GELU's slope is 0 or 1.
__device__ __forceinline__ u32 pair_near_zero(u32 pair) {
#if REAL == 1
    asm("max.NaN.bf16x2 %0, %0, %1;\nmin.NaN.bf16x2 %0, %0, %2;" : "+r"(pair) : "r"(0xc120c120u), "r"(0x41204120u));
#else
    asm("max.NaN.f16x2 %0, %0, %1;\nmin.NaN.f16x2 %0, %0, %2;" : "+r"(pair) : "r"(0xc900c900u), "r"(0x49004900u));
#endif
    return pair;
}
#endif

__device__ __forceinline__ float silu_gate_of(float gate, float up) {
    // The decay overflows to infinity where the quotient is zero.
    return divide_real(gate, 1.0f + exp_real(-gate)) * up;
}
