// Weights of eight bits as they lie in memory: whole numbers, and an f32 that a number of each 64 neighbours of a row is counted in.
//
// A step is 32 numbers of a row. Eight rows are a tile, four steps of them a chunk: 128 bytes of each row, one behind the other, then two
// scales of each. The steps of a row are turned round by its place in the tile, so that lanes of several rows which read the same step meet
// no bank of shared memory twice. So what a block multiplies at a time is one piece of memory, and where a lane finds its own of it depends on
// the step alone. Chunks that are begun are filled with zeroes.
#pragma once

constexpr u32 INT8_STEP = 32, INT8_TILE = 8, INT8_CHUNK = 4, INT8_GROUP = 64;
// Bytes of a row in a chunk, of its scales, and of a chunk.
constexpr u32 INT8_ROW = INT8_CHUNK * INT8_STEP, INT8_ROW_SCALES = 4 * INT8_ROW / INT8_GROUP;
constexpr u32 INT8_CHUNK_BYTES = INT8_TILE * (INT8_ROW + INT8_ROW_SCALES);

// Bytes of so many steps of a tile, of which the first begins a chunk.
__device__ __forceinline__ u32 int8_bytes(u32 steps) { return (steps + INT8_CHUNK - 1) / INT8_CHUNK * INT8_CHUNK_BYTES; }
// Where a row of a tile has a step, and its scale.
__device__ __forceinline__ u32 int8_step(u32 row, u32 step) {
    return step / INT8_CHUNK * INT8_CHUNK_BYTES + row * INT8_ROW + (step + row) % INT8_CHUNK * INT8_STEP;
}
__device__ __forceinline__ u32 int8_scale(u32 row, u32 step) {
    return step / INT8_CHUNK * INT8_CHUNK_BYTES + INT8_TILE * INT8_ROW + row * INT8_ROW_SCALES + step % INT8_CHUNK * INT8_STEP / INT8_GROUP * 4;
}

// Four whole numbers: bytes below the exponent of 2²³, where they are 128 too large.
__device__ __forceinline__ void widen_bytes(u32 four, float* to) {
    four ^= 0x80808080u;
#pragma unroll
    for (u32 i = 0; i < 4; i++) to[i] = __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7440 + i)) - 8388736.0f;
}

// A row of a matrix in global memory.
struct Int8Row {
    const char* tile;
    u32 row;
    __device__ __forceinline__ Int8Row(const void* matrix, u32 columns, u64 row) : row(row % INT8_TILE) {
        tile = static_cast<const char*>(matrix) + row / INT8_TILE * int8_bytes((columns + INT8_STEP - 1) / INT8_STEP);
    }
    // N neighbouring numbers of a step, whose place is a multiple of N.
    template <int N> __device__ __forceinline__ void load(u32 column, float (&to)[N]) const {
        static_assert(N == 4 || N == 8, "words of a step");
        const char* from = tile + int8_step(row, column / INT8_STEP) + column % INT8_STEP;
        const float scale = __ldg(reinterpret_cast<const float*>(tile + int8_scale(row, column / INT8_STEP)));
        if constexpr (N == 8) {
            const uint2 raw = __ldg(reinterpret_cast<const uint2*>(from));
            widen_bytes(raw.x, to);
            widen_bytes(raw.y, to + 4);
        } else {
            widen_bytes(__ldg(reinterpret_cast<const u32*>(from)), to);
        }
#pragma unroll
        for (int i = 0; i < N; i++) to[i] *= scale;
    }
};

#if REAL != 0
// Eight whole numbers of a row as eight halves, which hold them exactly. Under the exponent of 128 a byte of bf16 has seven bits more: without its
// highest bit it is 128 too large, or 256 where that bit makes the number negative. f16 has ten.
__device__ __forceinline__ u32 halves_of_bytes(u32 two) {
    u32 pair;
#if REAL == 1
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(two & 0xff7fff7fu), "r"(two & 0xff80ff80u));
#else
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(two), "r"(0x64806480u));
#endif
    return pair;
}
__device__ __forceinline__ uint4 halves_of_bytes(uint2 eight) {
#if REAL == 1
    constexpr u32 ABOVE = 0x43434343u;
#else
    constexpr u32 ABOVE = 0x64646464u;
    eight.x ^= 0x80808080u;
    eight.y ^= 0x80808080u;
#endif
    return make_uint4(halves_of_bytes(__byte_perm(eight.x, ABOVE, 0x4140)), halves_of_bytes(__byte_perm(eight.x, ABOVE, 0x4342)),
                      halves_of_bytes(__byte_perm(eight.y, ABOVE, 0x4140)), halves_of_bytes(__byte_perm(eight.y, ABOVE, 0x4342)));
}
#endif
