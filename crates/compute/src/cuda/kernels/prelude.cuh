// What every kernel starts from: element types, wide loads, reductions, random numbers. NVRTC finds no system header,
// so nothing is included here.
//
// A file is compiled once per element type of activations and parameters: REAL is 0 for f32, 1 for bf16, 2 for f16.
// `real` is the stored type; arithmetic is in float.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

struct bf16 { u16 bits; };
struct f16 { u16 bits; };

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float to_float(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
template <> __device__ __forceinline__ f16 from_float<f16>(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

#if REAL == 0
typedef float real;
#elif REAL == 1
typedef bf16 real;
#elif REAL == 2
typedef f16 real;
#endif

// Elements that one 16-byte access moves.
template <typename T> struct Wide {
    static constexpr int N = 16 / sizeof(T);
    T at[N];
};
template <typename T> __device__ __forceinline__ Wide<T> load_wide(const T* from) {
    union { uint4 raw; Wide<T> wide; } both;
    both.raw = *reinterpret_cast<const uint4*>(from);
    return both.wide;
}
template <typename T> __device__ __forceinline__ void store_wide(T* to, const Wide<T>& wide) {
    union { uint4 raw; Wide<T> wide; } both;
    both.wide = wide;
    *reinterpret_cast<uint4*>(to) = both.raw;
}

// Elements of `real` in one 16-byte access.
constexpr int WIDTH = 16 / sizeof(real);

// Sixteen bytes as numbers, and back: pairs of halves are rounded together.
template <typename T> __device__ __forceinline__ void widen(const uint4& raw, float* to);
template <> __device__ __forceinline__ void widen<float>(const uint4& raw, float* to) {
    to[0] = __uint_as_float(raw.x);
    to[1] = __uint_as_float(raw.y);
    to[2] = __uint_as_float(raw.z);
    to[3] = __uint_as_float(raw.w);
}
__device__ __forceinline__ void widen_pair(u32 pair, float* to, bf16) {
    to[0] = __uint_as_float(pair << 16);
    to[1] = __uint_as_float(pair & 0xffff0000u);
}
__device__ __forceinline__ void widen_pair(u32 pair, float* to, f16) {
    asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(to[0]), "=f"(to[1])
        : "r"(pair));
}
template <typename T> __device__ __forceinline__ void widen(const uint4& raw, float* to) {
    widen_pair(raw.x, to, T());
    widen_pair(raw.y, to + 2, T());
    widen_pair(raw.z, to + 4, T());
    widen_pair(raw.w, to + 6, T());
}

template <typename T> __device__ __forceinline__ uint4 narrow(const float* from);
template <> __device__ __forceinline__ uint4 narrow<float>(const float* from) {
    return make_uint4(__float_as_uint(from[0]), __float_as_uint(from[1]), __float_as_uint(from[2]),
                      __float_as_uint(from[3]));
}
__device__ __forceinline__ u32 narrow_pair(float low, float high, bf16) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ u32 narrow_pair(float low, float high, f16) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
template <typename T> __device__ __forceinline__ uint4 narrow(const float* from) {
    return make_uint4(narrow_pair(from[0], from[1], T()), narrow_pair(from[2], from[3], T()),
                      narrow_pair(from[4], from[5], T()), narrow_pair(from[6], from[7], T()));
}

#if REAL != 0
// Four neighbouring halves.
__device__ __forceinline__ void widen_four(uint2 from, float (&to)[4]) {
    widen_pair(from.x, to, real());
    widen_pair(from.y, to + 2, real());
}
__device__ __forceinline__ uint2 narrow_four(const float (&from)[4]) {
    return make_uint2(narrow_pair(from[0], from[1], real()), narrow_pair(from[2], from[3], real()));
}
#endif

// W neighbouring elements: one of them, or as many as whole 16-byte accesses move, where the address must be a multiple
// of 16.
template <int W, typename T> __device__ __forceinline__ void load(const T* from, float (&to)[W]) {
    if constexpr (W == 1) {
        to[0] = to_float(*from);
    } else {
        constexpr int EACH = 16 / sizeof(T);
        static_assert(W % EACH == 0, "whole accesses");
#pragma unroll
        for (int i = 0; i < W / EACH; i++) widen<T>(reinterpret_cast<const uint4*>(from)[i], to + i * EACH);
    }
}
template <int W, typename T> __device__ __forceinline__ void store(T* to, const float (&from)[W]) {
    if constexpr (W == 1) {
        *to = from_float<T>(from[0]);
    } else {
        constexpr int EACH = 16 / sizeof(T);
        static_assert(W % EACH == 0, "whole accesses");
#pragma unroll
        for (int i = 0; i < W / EACH; i++) reinterpret_cast<uint4*>(to)[i] = narrow<T>(from + i * EACH);
    }
}

// W neighbouring elements as they are stored: half the registers of their numbers.
template <int W> struct Kept {
    uint4 raw;
    __device__ __forceinline__ void clear() { raw = make_uint4(0, 0, 0, 0); }
    __device__ __forceinline__ void load(const real* from) { raw = *reinterpret_cast<const uint4*>(from); }
    __device__ __forceinline__ void save(real* to) const { *reinterpret_cast<uint4*>(to) = raw; }
    __device__ __forceinline__ void get(float (&to)[W]) const { widen<real>(raw, to); }
    __device__ __forceinline__ void set(const float (&from)[W]) { raw = narrow<real>(from); }
};
template <> struct Kept<1> {
    real raw;
    __device__ __forceinline__ void clear() { raw = from_float<real>(0.0f); }
    __device__ __forceinline__ void load(const real* from) { raw = *from; }
    __device__ __forceinline__ void save(real* to) const { *to = raw; }
    __device__ __forceinline__ void get(float (&to)[1]) const { to[0] = to_float(raw); }
    __device__ __forceinline__ void set(const float (&from)[1]) { raw = from_float<real>(from[0]); }
};

// Place `index` in rows of `length`: a division in 32 bits where that is enough.
__device__ __forceinline__ void locate(u64 index, u32 length, u64& row, u32& column) {
    if (index >> 32) {
        row = index / length;
        column = (u32)(index % length);
    } else {
        row = (u32)index / length;
        column = (u32)index % length;
    }
}

// Copies of 16 bytes into shared memory that go on while the thread does, in groups; a thread waits for its own alone.
__device__ __forceinline__ void copy_ahead(uint4* to, const real* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int GROUPS> __device__ __forceinline__ void wait_for_all_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

// A kernel that starts early waits here until the one before it has ended; any other goes on at once. What it lets begin then finds
// all but itself ended. Its arguments are never const and restrict: the compiler would read them as if nobody wrote them while it runs.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The first thing that a kernel does which starts early and touches nothing before its turn.
__device__ __forceinline__ void take_turn() {
    wait_for_kernel_before();
    let_next_begin();
}

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// 2 to the power of x and 1/x in one instruction each, to about twenty bits. What is too small to be normal is zero.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// eˣ and a/b as exactly as the stored type can show: in f32 to the last bits, in halves to about twenty.
__device__ __forceinline__ float exp_real(float x) {
#if REAL == 0
    return expf(x);
#else
    return __expf(x);
#endif
}
__device__ __forceinline__ float divide_real(float a, float b) {
#if REAL == 0
    return a / b;
#else
    return __fdividef(a, b);
#endif
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

// The sum over a block, given to every thread; the order is fixed by the block's size. `shared` has a place per warp.
__device__ __forceinline__ float block_sum(float x, float* shared) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f;
    return warp_sum(sum);
}
__device__ __forceinline__ float block_max(float x, float* shared) {
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    float most = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : __int_as_float(0xff800000);
    return warp_max(most);
}

// An id outside its table: the first one found is kept. fault[0] is 1, fault[1] the id, fault[2] the number of rows.
__device__ __forceinline__ void report_fault(u32* fault, u32 id, u32 rows) {
    if (atomicCAS(&fault[0], 0u, 1u) == 0u) {
        fault[1] = id;
        fault[2] = rows;
    }
}

// Philox4x32-10 (Salmon et al., 2011), equal to the host's bit for bit.
__device__ __forceinline__ uint4 philox(u32 key0, u32 key1, uint4 counter) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u64 left = (u64)0xD2511F53u * counter.x, right = (u64)0xCD9E8D57u * counter.z;
        counter = make_uint4((u32)(right >> 32) ^ counter.y ^ key0, (u32)right,
                             (u32)(left >> 32) ^ counter.w ^ key1, (u32)left);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}
