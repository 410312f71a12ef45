// Rows of bytes that a block has computed and that leave by columns, through shared memory.
//
// Whoever includes this has included eight_bits.cuh and said how many elements a pack has (W).
#pragma once

constexpr int WORDS = W / 4;

// A pack of numbers as bytes.
struct alignas(W) Bytes { u32 words[WORDS]; };

template <bool E5M2> __device__ __forceinline__ Bytes bytes_of(const float (&x)[W]) {
    Bytes bytes;
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const u32 low = two_bytes<E5M2>(x[4 * i], x[4 * i + 1]), high = two_bytes<E5M2>(x[4 * i + 2], x[4 * i + 3]);
        bytes.words[i] = low | high << 16;
    }
    return bytes;
}

// ROWS rows of `row_words` words, a multiple of 32, in the shared memory of a block of BLOCK threads.
template <u32 BLOCK, u32 ROWS> struct ByteTile {
    // Rows that a thread writes of a column, and the groups of as many that there are.
    static constexpr u32 EACH_ROWS = 16, GROUPS = ROWS / EACH_ROWS;
    u32* words;
    u32 row_words;

    // Where a word of a row is. The groups of rows that threads read side by side lie in different banks.
    __device__ __forceinline__ u32* place(u32 row, u32 word) const {
        return words + row * row_words + (word ^ row / EACH_ROWS * (32 / GROUPS));
    }
    __device__ __forceinline__ void put(u32 row, u32 column, const Bytes& bytes) const {
        *reinterpret_cast<Bytes*>(place(row, column / 4)) = bytes;
    }
    // Writes rows from `first` on, which are columns of the copy, once all of them are there: a thread 16 rows of 4 columns at a time.
    __device__ __forceinline__ void write_columns(unsigned char* __restrict__ transposed, u32 first, u32 rows,
                                                  u32 columns) const {
        __syncthreads();
        for (u32 i = threadIdx.x; i < columns / 4 * GROUPS; i += BLOCK) {
            const u32 group = i % GROUPS, word = i / GROUPS, row = first + group * EACH_ROWS;
            if (row >= rows) continue;
            u32 fours[EACH_ROWS / 4][4];
#pragma unroll
            for (int r = 0; r < EACH_ROWS; r++) fours[r / 4][r % 4] = *place(group * EACH_ROWS + r, word);
#pragma unroll
            for (int four = 0; four < EACH_ROWS / 4; four++) turn(fours[four]);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                *reinterpret_cast<uint4*>(transposed + (u64)(word * 4 + c) * rows + row) =
                    make_uint4(fours[0][c], fours[1][c], fours[2][c], fours[3][c]);
            }
        }
    }
};
