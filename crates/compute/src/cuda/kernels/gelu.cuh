// GELU in its tanh form and its slope, and SiLU's gate. Comes after prelude.cuh.

// √(2/π) and the weight of the cube in GELU's tanh form.
constexpr float GELU_SCALE = 0.7978845608028654f;
constexpr float GELU_CUBE = 0.044715f;

// Beyond ±10 the slopes of all activations are 0 or 1; x² and x³ may overflow there. Keeps what is not a number.
__device__ __forceinline__ float near_zero(float x) { return x < -10.0f ? -10.0f : x > 10.0f ? 10.0f : x; }

// ½(1 + tanh u) is the sigmoid of 2u; this is e⁻²ᵘ.
__device__ __forceinline__ float gelu_decay(float x) {
    return exp_real(-2.0f * GELU_SCALE * (x + GELU_CUBE * x * x * x));
}

__device__ __forceinline__ float gelu_of(float x) {
    // Far below zero the decay overflows to infinity and the quotient is zero.
    return divide_real(x, 1.0f + gelu_decay(x));
}

__device__ __forceinline__ float gelu_slope(float at) {
    const float x = near_zero(at), decay = gelu_decay(x);
    const float sigmoid = divide_real(1.0f, 1.0f + decay);
    const float inner = GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * x * x);
    return sigmoid * (1.0f + 2.0f * x * (decay * sigmoid) * inner);
}

__device__ __forceinline__ float silu_gate_of(float gate, float up) {
    // The decay overflows to infinity where the quotient is zero.
    return divide_real(gate, 1.0f + exp_real(-gate)) * up;
}
