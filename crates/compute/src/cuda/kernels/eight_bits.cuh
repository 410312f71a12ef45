// Numbers as bytes of e4m3 or e5m2: what they are multiplied by first, how they are rounded, and how a few of them are transposed.
#pragma once

// Numbers that those who look for the largest leave, one for each block.
constexpr u32 PARTIALS = 256;

// Leaves the largest of a block's numbers.
template <u32 THREADS> __device__ __forceinline__ void leave_largest(u32 most, u32* partial) {
    __shared__ u32 warps[THREADS / 32];
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x < 32) {
        most = __reduce_max_sync(0xffffffffu, threadIdx.x < THREADS / 32 ? warps[threadIdx.x] : 0);
        if (threadIdx.x == 0) *partial = most;
    }
}

// The power of two by which numbers are multiplied when the largest has these bits; `top` is what it comes below.
__device__ __forceinline__ float scale_of(u32 largest, int top) {
    constexpr int MOST_SHIFT = 100;
    if (largest == 0) return 1.0f;
    if (largest >= 0x7f800000u) return __uint_as_float(0x7fffffffu);
    const int shift = top + 126 - (int)(largest >> 23);
    return __uint_as_float((u32)(127 + max(-MOST_SHIFT, min(MOST_SHIFT, shift))) << 23);
}

// What the largest of sampled numbers comes below: e4m3 has room up to 448, e5m2 up to 57,344.
template <bool E5M2> constexpr int SAMPLED_TOP = E5M2 ? 9 : 6;

// The same from what PARTS blocks left, by a whole warp.
template <u32 PARTS> __device__ __forceinline__ float scale_from(const u32* partials, int top) {
    u32 most = 0;
#pragma unroll
    for (u32 i = 0; i < PARTS; i += 32) most = max(most, partials[i + threadIdx.x % 32]);
    return scale_of(__reduce_max_sync(0xffffffffu, most), top);
}

// Two numbers as bytes, to nearest; what is too large becomes the largest there is.
template <bool E5M2> __device__ __forceinline__ u32 two_bytes(float low, float high) {
    u16 pair;
    if constexpr (E5M2) {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    }
    return pair;
}

// Words of 4 columns in 4 rows become words of 4 rows in 4 columns.
__device__ __forceinline__ void turn(u32 (&words)[4]) {
    const u32 a = __byte_perm(words[0], words[1], 0x5140), b = __byte_perm(words[2], words[3], 0x5140);
    const u32 c = __byte_perm(words[0], words[1], 0x7362), d = __byte_perm(words[2], words[3], 0x7362);
    words[0] = __byte_perm(a, b, 0x5410);
    words[1] = __byte_perm(a, b, 0x7632);
    words[2] = __byte_perm(c, d, 0x5410);
    words[3] = __byte_perm(c, d, 0x7632);
}
