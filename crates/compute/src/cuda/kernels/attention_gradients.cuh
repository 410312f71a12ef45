// Where the gradients of an attention go, once warpgroups have summed them up.
//
// `store` takes a warpgroup's 64 rows of sums, from `own` of `positions` on, times a factor, to HEAD columns from `column` on,
// by way of a tile of GROUP_ROWS.
#pragma once
#include "attention_warpgroup.cuh"
#include "eight_bits.cuh"

#if REAL != 0 && defined(__CUDA_ARCH_FEAT_SM90_ALL)

// As numbers of 16 bits, `stride` of them from one position to the next.
struct Halves {
    real* to;
    u32 stride;
    __device__ __forceinline__ void store(const float (&sums)[HEAD / 2], float factor, unsigned char* tile, int group,
                                          u32 sample, u32 column, int own, u32 positions) const {
        int warp = threadIdx.x / 32 % GROUP_WARPS;
        float factors[2] = {factor, factor};
        store_sums(sums, factors, shared_address(tile) + warp * 16 * SHEET_ROW_BYTES,
                   to + (u64)sample * positions * stride + column, stride, own + warp * 16, positions);
    }
};

// As bytes of e5m2, as they stand and transposed. Positions come in whole 64s.
//
// In shared memory a row of HEAD bytes takes two words more, and its words are exchanged by the eight rows that it belongs to:
// neither lanes that write pairs of bytes of eight rows meet in a bank, nor those that read a word of every eighth row.
struct Bytes {
    unsigned char *rows, *columns;
    u32 row_stride;
    u64 column_stride;
    float scale;
    static constexpr int WORDS = HEAD / 4, PITCH = WORDS + 2;
    static_assert(GROUP_ROWS * PITCH * 4 <= TILE_BYTES<GROUP_ROWS>, "a tile has room for the rows");
    static __device__ __forceinline__ int place(int row, int word) { return row * PITCH + (word ^ row / 16 * 4); }

    __device__ __forceinline__ void store(const float (&sums)[HEAD / 2], float factor, unsigned char* tile, int group,
                                          u32 sample, u32 column, int own, u32 positions) const {
        if (own >= (int)positions) return;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS, thread = threadIdx.x % GROUP_THREADS;
        const float by = factor * scale;
        u32* words = reinterpret_cast<u32*>(tile);
        u16* pairs = reinterpret_cast<u16*>(tile);
#pragma unroll
        for (int n = 0; n < HEAD / 8; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = warp * 16 + lane / 4 + 8 * half;
                pairs[place(row, 2 * n + lane % 4 / 2) * 2 + lane % 2] =
                    two_bytes<true>(sums[4 * n + 2 * half] * by, sums[4 * n + 2 * half + 1] * by);
            }
        }
        group_wait(group);
        const u64 first = (u64)sample * positions + own;
#pragma unroll
        for (int i = 0; i < GROUP_ROWS * WORDS / 2; i += GROUP_THREADS) {
            const int row = (i + thread) / (WORDS / 2), word = (i + thread) % (WORDS / 2) * 2;
            *reinterpret_cast<uint2*>(rows + (first + row) * row_stride + column + word * 4) =
                *reinterpret_cast<const uint2*>(words + place(row, word));
        }
        // Of every eight rows four columns.
#pragma unroll
        for (int i = 0; i < GROUP_ROWS / 8 * WORDS; i += GROUP_THREADS) {
            const int row = (i + thread) % 8 * 8, word = (i + thread) / 8;
            u32 upper[4], lower[4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                upper[r] = words[place(row + r, word)];
                lower[r] = words[place(row + 4 + r, word)];
            }
            turn(upper);
            turn(lower);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                *reinterpret_cast<uint2*>(columns + (column + word * 4 + c) * column_stride + first + row) =
                    make_uint2(upper[c], lower[c]);
            }
        }
    }
};

#endif
