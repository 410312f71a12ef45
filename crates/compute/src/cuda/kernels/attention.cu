// Attention and its gradient in bf16 and f16, with the matrix units of every card since Ampere.
//
// Scores never exist whole: a block keeps the rows it owns (queries in the forward pass and for d_q, keys for d_k and
// d_v) and walks over tiles of the others, two tiles in shared memory at a time, one in use and one on its way. The
// backward pass calculates scores again from the log-sum-exp. It runs twice over the scores, once by queries and once
// by keys, so that every gradient has one owner, and the results of one product are in registers just as the next one
// takes them.
#include "attention.cuh"

#if REAL != 0
#include "matrix.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int ROW_BYTES = 2 * HEAD;
// Pieces of 16 bytes in a row, and sixteens of elements.
constexpr int PIECES = HEAD / 8, SIXTEENS = HEAD / 16;

// ---- Tiles in shared memory --------------------------------------------------------------------------------------
//
// A tile has rows of HEAD elements. Piece p of row r lies at place p ^ (r % 8), so that the same piece of eight rows,
// which is what a matrix load touches, is in eight different groups of banks.

__device__ __forceinline__ u32 piece_at(u32 tile, int row, int piece) {
    return tile + row * ROW_BYTES + ((piece ^ (row & 7)) << 4);
}

// Where a lane looks in a 16×16 part of a tile for a matrix load. Of the four 8×8 matrices, `Rows` takes the second
// from the next eight rows and the third from the next eight columns; `Columns` the other way round.
struct Lane {
    u32 offset, flip;
    __device__ __forceinline__ Lane(int row, int piece) : offset(row * ROW_BYTES), flip((piece ^ (row & 7)) << 4) {}
    // `row` is a multiple of 8 and `piece` of 2.
    __device__ __forceinline__ u32 at(u32 tile, int row, int piece) const {
        return tile + row * ROW_BYTES + offset + ((piece << 4) ^ flip);
    }
};
struct Rows : Lane {
    __device__ __forceinline__ Rows(int lane) : Lane(lane & 15, lane >> 4) {}
};
struct Columns : Lane {
    __device__ __forceinline__ Columns(int lane) : Lane((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1) {}
};

// Rows `first`.. of a head into a tile of ROWS; zeroes past the last row of the tensor and past the head's own size.
template <int ROWS>
__device__ __forceinline__ void load_tile(u32 tile, const real* head, u64 stride, int first, int rows, int size) {
    // Rows that the block loads at a time, a multiple of 8: a thread has the same piece, at the same place, in all of
    // them.
    constexpr int SWEEP = THREADS / PIECES;
    int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    u32 to = piece_at(tile, row, piece);
    const real* from = head + (u64)(first + row) * stride + piece * 8;
    // Rows of this thread that are there.
    int left = piece * 8 < size ? rows - first - row : 0;
#pragma unroll
    for (int sweep = 0; sweep < ROWS; sweep += SWEEP) {
        bool there = sweep < left;
#if WIDE
        copy_async(to + sweep * ROW_BYTES, from, there);
#else
        union { uint4 raw; real at[8]; } both;
        both.raw = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (there && piece * 8 + i < size) both.at[i] = from[i];
        }
        store_shared(to + sweep * ROW_BYTES, both.raw);
#endif
        from += SWEEP * stride;
    }
}

// A warp writes 16·M rows of sums to global memory, by way of the tile's rows from `row` on, which are the warp's own.
template <int M>
__device__ __forceinline__ void store_rows(const float (&sums)[M][PIECES][4], u32 tile, int row, real* head, u64 stride,
                                           int first, int rows, int size) {
    int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            int upper = row + m * 16 + lane / 4;
            store_shared(piece_at(tile, upper, n) + lane % 4 * 4, pack(sums[m][n][0], sums[m][n][1]));
            store_shared(piece_at(tile, upper + 8, n) + lane % 4 * 4, pack(sums[m][n][2], sums[m][n][3]));
        }
    }
    __syncwarp();
#pragma unroll
    for (int index = 0; index < M * 16 * PIECES / 32; index++) {
        int place = index * 32 + lane;
        int own = place / PIECES, piece = place % PIECES;
        if (first + row + own >= rows || piece * 8 >= size) continue;
        union { uint4 raw; real at[8]; } both;
        both.raw = load_shared(piece_at(tile, row + own, piece));
        real* to = head + (u64)(first + row + own) * stride + piece * 8;
#if WIDE
        *reinterpret_cast<uint4*>(to) = both.raw;
#else
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (piece * 8 + i < size) to[i] = both.at[i];
        }
#endif
    }
}

// ---- Products ----------------------------------------------------------------------------------------------------

// The left sides of products, 16·M rows of a tile: held in registers from the beginning, or read again every time where
// registers are short.
template <int M, bool HELD> struct Left;
template <int M> struct Left<M, true> {
    u32 held[M][SIXTEENS][4];
    __device__ __forceinline__ Left(u32, int) {}
    __device__ __forceinline__ void load(u32 tile, int row, const Rows& rows) {
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int k = 0; k < SIXTEENS; k++) load_matrices(held[m][k], rows.at(tile, row + m * 16, k * 2));
        }
    }
    __device__ __forceinline__ void get(u32 (&a)[4], int m, int k, const Rows&) const {
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = held[m][k][i];
    }
};
template <int M> struct Left<M, false> {
    u32 tile;
    int row;
    __device__ __forceinline__ Left(u32 tile, int row) : tile(tile), row(row) {}
    __device__ __forceinline__ void load(u32, int, const Rows&) {}
    __device__ __forceinline__ void get(u32 (&a)[4], int m, int k, const Rows& rows) const {
        load_matrices(a, rows.at(tile, row + m * 16, k * 2));
    }
};

// scores [16·M, N·8] = left [16·M, HEAD] · (rows `row`.. of the tile)ᵀ.
template <int M, int N, bool HELD>
__device__ __forceinline__ void multiply_rows(float (&scores)[M][N][4], const Left<M, HELD>& left, u32 tile, int row,
                                              const Rows& rows, const Columns& columns) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) scores[m][n][i] = 0.0f;
        }
    }
#pragma unroll
    for (int k = 0; k < SIXTEENS; k++) {
        u32 a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) left.get(a[m], m, k, rows);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 b[4];
            load_matrices(b, columns.at(tile, row + n * 8, k * 2));
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply(scores[m][n], a[m], b[0], b[1]);
                multiply(scores[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// A result of 16·M rows, rounded to the element type, as the left side of the next product: columns of the one are the
// terms of the other.
template <int M, int N>
__device__ __forceinline__ void round_left(u32 (&left)[M][N / 2][4], const float (&scores)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int k = 0; k < N / 2; k++) {
            left[m][k][0] = pack(scores[m][2 * k][0], scores[m][2 * k][1]);
            left[m][k][1] = pack(scores[m][2 * k][2], scores[m][2 * k][3]);
            left[m][k][2] = pack(scores[m][2 * k + 1][0], scores[m][2 * k + 1][1]);
            left[m][k][3] = pack(scores[m][2 * k + 1][2], scores[m][2 * k + 1][3]);
        }
    }
}

// sums [16·M, HEAD] += left [16·M, K·16] · (rows `row`.. of the tile).
template <int M, int K>
__device__ __forceinline__ void multiply_columns(float (&sums)[M][PIECES][4], const u32 (&left)[M][K][4], u32 tile,
                                                 int row, const Rows& rows) {
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int n = 0; n < PIECES; n += 2) {
            u32 b[4];
            load_matrices_transposed(b, rows.at(tile, row + k * 16, n));
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply(sums[m][n], left[m][k], b[0], b[1]);
                multiply(sums[m][n + 1], left[m][k], b[2], b[3]);
            }
        }
    }
}

template <int M> __device__ __forceinline__ void clear(float (&sums)[M][PIECES][4]) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) sums[m][n][i] = 0.0f;
        }
    }
}

// Puts a score that makes a probability of zero where a query does not see a key. Rows are queries: query 16·m + l/4 (+
// 8) of the lane sees `seen`; columns are keys from `key` on.
template <int M, int N>
__device__ __forceinline__ void hide_keys(float (&scores)[M][N][4], const Range (&seen)[M][2], int key) {
    int column = key + threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = column + n * 8 + i % 2;
                const Range& range = seen[m][i / 2];
                if (at < range.first || at >= range.end) scores[m][n][i] = MINUS_INFINITY;
            }
        }
    }
}

// ---- Forward -----------------------------------------------------------------------------------------------------
//
// A block per (128 queries, head, sample). Shared memory: queries; keys and values twice.

constexpr int FORWARD_M = 2, FORWARD_QUERIES = WARPS * 16 * FORWARD_M;
constexpr int FORWARD_KEYS = HEAD <= 64 ? 64 : 32;
constexpr bool FORWARD_HELD = HEAD <= 64;

extern "C" __global__ void __launch_bounds__(THREADS, 2)
attention_forward(const real* q, const real* k, const real* v, real* out, float* log_sum_exp, const u32* places,
                  u32 rows_of_keys, const int2* ranges, const int4* spreads, u32 queries, u32 keys, u32 heads, u32 group, u32 size,
                  u32 q_stride, u32 kv_stride, u32 causal, u32 window, float scale) {
    constexpr int M = FORWARD_M, N = FORWARD_KEYS / 8, TILE = FORWARD_KEYS * ROW_BYTES;
    extern __shared__ uint4 memory[];
    u32 q_tile = shared_address(memory), kv_tiles = q_tile + FORWARD_QUERIES * ROW_BYTES;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 b = blockIdx.z, h = blockIdx.y;
    // The last queries see the most keys: they begin first.
    int first_query = (int)(gridDim.x - 1 - blockIdx.x) * FORWARD_QUERIES;
    int last = (int)queries - 1, row = warp * 16 * M;
    const Rows rows(lane);
    const Columns columns(lane);

    Sight sight = sight_of(b, queries, keys, window, causal, places, ranges, spreads);
    Spread all = seen_by_all(sight, first_query, least(first_query + FORWARD_QUERIES, (int)queries));
    int own_query = least(first_query + row, last);
    Spread own = seen_by_all(sight, own_query, least(own_query + 16 * M, (int)queries));
    Range seen[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            seen[m][half] = seen_by(sight, least(first_query + row + m * 16 + half * 8 + lane / 4, last));
        }
    }

    q += (u64)b * queries * q_stride + h * size;
    const u64 key_place = key_row(b, places, rows_of_keys) * keys * kv_stride + h / group * size;
    k += key_place;
    v += key_place;
    int tile = all.least_first / FORWARD_KEYS, tiles = (all.most_end + FORWARD_KEYS - 1) / FORWARD_KEYS;
    auto load_keys = [&](int tile) {
        u32 to = kv_tiles + (tile & 1) * 2 * TILE;
        load_tile<FORWARD_KEYS>(to, k, kv_stride, tile * FORWARD_KEYS, keys, size);
        load_tile<FORWARD_KEYS>(to + TILE, v, kv_stride, tile * FORWARD_KEYS, keys, size);
        copies_commit();
    };
    load_tile<FORWARD_QUERIES>(q_tile, q, q_stride, first_query, queries, size);
    copies_commit();
    load_keys(tile);
    copies_wait<1>();
    __syncthreads();
    Left<M, FORWARD_HELD> left(q_tile, row);
    left.load(q_tile, row, rows);

    float sums[M][PIECES][4], max[M][2], total[M][2];
    clear(sums);
#pragma unroll
    for (int m = 0; m < M; m++) {
        max[m][0] = max[m][1] = MINUS_INFINITY;
        total[m][0] = total[m][1] = 0.0f;
    }
    float log2_scale = scale * LOG2_E;

    for (; tile < tiles; tile++) {
        copies_wait<0>();
        __syncthreads();
        if (tile + 1 < tiles) load_keys(tile + 1);
        int key = tile * FORWARD_KEYS;
        if (key >= own.most_end || key + FORWARD_KEYS <= own.least_first) continue;
        u32 k_tile = kv_tiles + (tile & 1) * 2 * TILE;

        float scores[M][N][4];
        multiply_rows(scores, left, k_tile, 0, rows, columns);
        if (key < own.most_first || key + FORWARD_KEYS > own.least_end) hide_keys(scores, seen, key);

#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float before = max[m][half], now = before;
#pragma unroll
                for (int n = 0; n < N; n++) {
                    now = fmaxf(now, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
                }
                now = four_lanes_max(now);
                max[m][half] = now;
                // A query that has seen no key yet.
                float offset = now == MINUS_INFINITY ? 0.0f : now * log2_scale;
                float shrink = power_of_two(before * log2_scale - offset);
                float sum = 0.0f;
#pragma unroll
                for (int n = 0; n < N; n++) {
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; i++) {
                        scores[m][n][i] = power_of_two(scores[m][n][i] * log2_scale - offset);
                        sum += scores[m][n][i];
                    }
                }
                total[m][half] = total[m][half] * shrink + sum;
#pragma unroll
                for (int n = 0; n < PIECES; n++) {
                    sums[m][n][2 * half] *= shrink;
                    sums[m][n][2 * half + 1] *= shrink;
                }
            }
        }

        u32 probabilities[M][N / 2][4];
        round_left(probabilities, scores);
        multiply_columns(sums, probabilities, k_tile + TILE, 0, rows);
    }

#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = four_lanes_sum(total[m][half]), inverse = 1.0f / sum;
#pragma unroll
            for (int n = 0; n < PIECES; n++) {
                sums[m][n][2 * half] *= inverse;
                sums[m][n][2 * half + 1] *= inverse;
            }
            int query = first_query + row + m * 16 + half * 8 + lane / 4;
            if (lane % 4 == 0 && query < (int)queries) {
                log_sum_exp[((u64)b * heads + h) * queries + query] = max[m][half] * scale + logf(sum);
            }
        }
    }
    u64 out_stride = (u64)heads * size;
    out += (u64)b * queries * out_stride + h * size;
    store_rows(sums, q_tile, row, out, out_stride, first_query, queries, size);
}

// ---- Backward ----------------------------------------------------------------------------------------------------

// d_q: a block per (queries, head, sample). Shared memory: queries, gradients of outputs; keys and values twice.

constexpr int BY_QUERY_M = HEAD <= 64 ? 2 : 1, BY_QUERY_QUERIES = WARPS * 16 * BY_QUERY_M, BY_QUERY_KEYS = 64;
// Keys whose scores are in registers at a time.
constexpr int BY_QUERY_STEP = 32;
constexpr bool BY_QUERY_HELD = HEAD <= 64;

extern "C" __global__ void __launch_bounds__(THREADS, 2)
attention_d_q(const real* d_out, const real* q, const real* k, const real* v, const float* log_sum_exp,
              const float* delta, real* d_q, const int2* ranges, const int4* spreads, u32 queries, u32 keys, u32 heads,
              u32 group, u32 size, u32 q_stride, u32 kv_stride, u32 causal, u32 window, float scale) {
    constexpr int M = BY_QUERY_M, N = BY_QUERY_STEP / 8, TILE = BY_QUERY_KEYS * ROW_BYTES;
    extern __shared__ uint4 memory[];
    u32 q_tile = shared_address(memory), d_out_tile = q_tile + BY_QUERY_QUERIES * ROW_BYTES;
    u32 kv_tiles = d_out_tile + BY_QUERY_QUERIES * ROW_BYTES;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 b = blockIdx.z, h = blockIdx.y;
    int first_query = (int)(gridDim.x - 1 - blockIdx.x) * BY_QUERY_QUERIES;
    int last = (int)queries - 1, row = warp * 16 * M;
    const Rows rows(lane);
    const Columns columns(lane);

    Sight sight = sight_of(b, queries, keys, window, causal, nullptr, ranges, spreads);
    Spread all = seen_by_all(sight, first_query, least(first_query + BY_QUERY_QUERIES, (int)queries));
    int own_query = least(first_query + row, last);
    Spread own = seen_by_all(sight, own_query, least(own_query + 16 * M, (int)queries));
    Range seen[M][2];
    float log2_sum[M][2], subtract[M][2];
    u64 statistics = ((u64)b * heads + h) * queries;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int query = least(first_query + row + m * 16 + half * 8 + lane / 4, last);
            seen[m][half] = seen_by(sight, query);
            log2_sum[m][half] = log_sum_exp[statistics + query] * LOG2_E;
            subtract[m][half] = delta[statistics + query] * scale;
        }
    }

    u64 out_stride = (u64)heads * size;
    d_out += (u64)b * queries * out_stride + h * size;
    q += (u64)b * queries * q_stride + h * size;
    d_q += (u64)b * queries * q_stride + h * size;
    k += (u64)b * keys * kv_stride + h / group * size;
    v += (u64)b * keys * kv_stride + h / group * size;
    int tile = all.least_first / BY_QUERY_KEYS, tiles = (all.most_end + BY_QUERY_KEYS - 1) / BY_QUERY_KEYS;
    auto load_keys = [&](int tile) {
        u32 to = kv_tiles + (tile & 1) * 2 * TILE;
        load_tile<BY_QUERY_KEYS>(to, k, kv_stride, tile * BY_QUERY_KEYS, keys, size);
        load_tile<BY_QUERY_KEYS>(to + TILE, v, kv_stride, tile * BY_QUERY_KEYS, keys, size);
        copies_commit();
    };
    load_tile<BY_QUERY_QUERIES>(q_tile, q, q_stride, first_query, queries, size);
    load_tile<BY_QUERY_QUERIES>(d_out_tile, d_out, out_stride, first_query, queries, size);
    copies_commit();
    load_keys(tile);
    copies_wait<1>();
    __syncthreads();
    Left<M, BY_QUERY_HELD> left(q_tile, row), d_left(d_out_tile, row);
    left.load(q_tile, row, rows);
    d_left.load(d_out_tile, row, rows);

    float sums[M][PIECES][4];
    clear(sums);
    float log2_scale = scale * LOG2_E;

    for (; tile < tiles; tile++) {
        copies_wait<0>();
        __syncthreads();
        if (tile + 1 < tiles) load_keys(tile + 1);
        u32 k_tile = kv_tiles + (tile & 1) * 2 * TILE;
#pragma unroll
        for (int step = 0; step < BY_QUERY_KEYS; step += BY_QUERY_STEP) {
            int key = tile * BY_QUERY_KEYS + step;
            if (key >= own.most_end || key + BY_QUERY_STEP <= own.least_first) continue;
            float scores[M][N][4], d_scores[M][N][4];
            multiply_rows(scores, left, k_tile, step, rows, columns);
            multiply_rows(d_scores, d_left, k_tile + TILE, step, rows, columns);
            if (key < own.most_first || key + BY_QUERY_STEP > own.least_end) hide_keys(scores, seen, key);
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int n = 0; n < N; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float probability = power_of_two(scores[m][n][i] * log2_scale - log2_sum[m][i / 2]);
                        d_scores[m][n][i] = probability * (d_scores[m][n][i] * scale - subtract[m][i / 2]);
                    }
                }
            }
            u32 rounded[M][N / 2][4];
            round_left(rounded, d_scores);
            multiply_columns(sums, rounded, k_tile, step, rows);
        }
    }
    store_rows(sums, q_tile, row, d_q, q_stride, first_query, queries, size);
}

// d_k and d_v: a block per (keys, key head, sample), which goes over the query heads of its group in order. Scores are
// transposed: rows are keys, columns queries. Shared memory: keys, values; queries, gradients of outputs, log-sum-exp
// and delta twice.

constexpr int BY_KEY_M = 1, BY_KEY_KEYS = WARPS * 16 * BY_KEY_M, BY_KEY_QUERIES = HEAD <= 64 ? 64 : 32;
// Queries whose scores are in registers at a time.
constexpr int BY_KEY_STEP = 32;
constexpr bool BY_KEY_HELD = HEAD <= 64;

extern "C" __global__ void __launch_bounds__(THREADS, HEAD <= 64 ? 3 : 2)
attention_d_kv(const real* d_out, const real* q, const real* k, const real* v, const float* log_sum_exp,
               const float* delta, real* d_k, real* d_v, const int2* ranges, const int4* spreads, u32 queries, u32 keys,
               u32 heads, u32 group, u32 size, u32 q_stride, u32 kv_stride, u32 causal, u32 window, float scale) {
    constexpr int M = BY_KEY_M, N = BY_KEY_STEP / 8, QUERIES = BY_KEY_QUERIES, TILE = QUERIES * ROW_BYTES;
    constexpr int STAGE = 2 * TILE + 2 * QUERIES * (int)sizeof(float);
    extern __shared__ uint4 memory[];
    __shared__ int bounds[2];
    u32 k_tile = shared_address(memory), v_tile = k_tile + BY_KEY_KEYS * ROW_BYTES;
    u32 stages = v_tile + BY_KEY_KEYS * ROW_BYTES;
    const char* stages_at = reinterpret_cast<const char*>(memory) + 2 * BY_KEY_KEYS * ROW_BYTES;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 b = blockIdx.z, kv_head = blockIdx.y;
    int first_key = (int)blockIdx.x * BY_KEY_KEYS, end_key = least(first_key + BY_KEY_KEYS, (int)keys);
    int row = warp * 16 * M, own_key = first_key + row, own_end = own_key + 16 * M;
    const Rows rows(lane);
    const Columns columns(lane);
    Sight sight = sight_of(b, queries, keys, window, causal, nullptr, ranges, spreads);

    // The tiles of queries that see any of these keys.
    int first_tile, tiles;
    if (sight.ranges) {
        constexpr int TILES = RANGE_BLOCK / QUERIES;
        if (threadIdx.x == 0) {
            bounds[0] = (int)queries;
            bounds[1] = 0;
        }
        __syncthreads();
        for (int block = threadIdx.x; block * RANGE_BLOCK < (int)queries; block += THREADS) {
            int4 spread = sight.spreads[block];
            if (spread.x < end_key && spread.w > first_key) {
                atomicMin(&bounds[0], block);
                atomicMax(&bounds[1], block + 1);
            }
        }
        __syncthreads();
        first_tile = bounds[0] * TILES;
        tiles = least(bounds[1] * TILES, ((int)queries + QUERIES - 1) / QUERIES) - first_tile;
    } else {
        int first = causal ? first_key : most(first_key + 1 - sight.window, 0);
        int end = least(end_key - 1 + sight.window, (int)queries);
        first_tile = first / QUERIES;
        tiles = (end + QUERIES - 1) / QUERIES - first_tile;
    }

    u64 out_stride = (u64)heads * size;
    u32 first_head = kv_head * group;
    d_out += (u64)b * queries * out_stride + first_head * size;
    q += (u64)b * queries * q_stride + first_head * size;
    u64 kv_at = (u64)b * keys * kv_stride + kv_head * size;
    u64 statistics = ((u64)b * heads + first_head) * queries;
    int count = tiles > 0 ? tiles * (int)group : 0;
    // Query heads one after the other, each over the same tiles.
    int next_head = 0, next_tile = first_tile;
    auto load_queries = [&](int stage) {
        u32 to = stages + stage * STAGE;
        int first = next_tile * QUERIES;
        load_tile<QUERIES>(to, q + next_head * size, q_stride, first, queries, size);
        load_tile<QUERIES>(to + TILE, d_out + next_head * size, out_stride, first, queries, size);
        if (threadIdx.x < 2 * QUERIES) {
            bool is_delta = threadIdx.x >= QUERIES;
            int place = threadIdx.x % QUERIES;
            bool there = first + place < (int)queries;
            const float* from = is_delta ? delta : log_sum_exp;
            u64 at = there ? statistics + (u64)next_head * queries + first + place : 0;
            copy_async_word(to + 2 * TILE + threadIdx.x * sizeof(float), from + at, there);
        }
        copies_commit();
        if (++next_tile == first_tile + tiles) {
            next_tile = first_tile;
            next_head++;
        }
    };

    load_tile<BY_KEY_KEYS>(k_tile, k + kv_at, kv_stride, first_key, keys, size);
    load_tile<BY_KEY_KEYS>(v_tile, v + kv_at, kv_stride, first_key, keys, size);
    copies_commit();
    if (count > 0) {
        load_queries(0);
        copies_wait<1>();
    } else {
        copies_wait<0>();
    }
    __syncthreads();
    Left<M, BY_KEY_HELD> left(k_tile, row), v_left(v_tile, row);
    left.load(k_tile, row, rows);
    v_left.load(v_tile, row, rows);

    float k_sums[M][PIECES][4], v_sums[M][PIECES][4];
    clear(k_sums);
    clear(v_sums);
    float log2_scale = scale * LOG2_E;

    int tile = first_tile;
    for (int index = 0; index < count; index++) {
        copies_wait<0>();
        __syncthreads();
        if (index + 1 < count) load_queries((index + 1) & 1);
        u32 q_tile = stages + (index & 1) * STAGE, d_out_tile = q_tile + TILE;
        const float* log_sums = reinterpret_cast<const float*>(stages_at + (index & 1) * STAGE + 2 * TILE);
        int tile_query = tile * QUERIES;
        if (++tile == first_tile + tiles) tile = first_tile;
#pragma unroll
        for (int step = 0; step < QUERIES; step += BY_KEY_STEP) {
            int query = tile_query + step;
            if (query >= (int)queries) continue;
            Spread seen = seen_by_all(sight, query, least(query + BY_KEY_STEP, (int)queries));
            if (seen.most_end <= own_key || seen.least_first >= own_end) continue;
            float scores[M][N][4], d_scores[M][N][4];
            multiply_rows(scores, left, q_tile, step, rows, columns);
            multiply_rows(d_scores, v_left, d_out_tile, step, rows, columns);
            if (seen.most_first > own_key || seen.least_end < own_end) {
                int key = own_key + lane / 4;
#pragma unroll
                for (int n = 0; n < N; n++) {
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        Range range = seen_by(sight, least(query + n * 8 + lane % 4 * 2 + i, (int)queries - 1));
#pragma unroll
                        for (int m = 0; m < M; m++) {
                            int upper = key + m * 16, lower = upper + 8;
                            if (upper < range.first || upper >= range.end) scores[m][n][i] = MINUS_INFINITY;
                            if (lower < range.first || lower >= range.end) scores[m][n][i + 2] = MINUS_INFINITY;
                        }
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float* at = log_sums + step + n * 8 + lane % 4 * 2;
                float2 log_sum = *reinterpret_cast<const float2*>(at);
                float2 subtract = *reinterpret_cast<const float2*>(at + QUERIES);
#pragma unroll
                for (int m = 0; m < M; m++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float log2_sum = (i % 2 ? log_sum.y : log_sum.x) * LOG2_E;
                        float probability = power_of_two(scores[m][n][i] * log2_scale - log2_sum);
                        scores[m][n][i] = probability;
                        float less = (i % 2 ? subtract.y : subtract.x) * scale;
                        d_scores[m][n][i] = probability * (d_scores[m][n][i] * scale - less);
                    }
                }
            }
            u32 rounded[M][N / 2][4];
            round_left(rounded, scores);
            multiply_columns(v_sums, rounded, d_out_tile, step, rows);
            round_left(rounded, d_scores);
            multiply_columns(k_sums, rounded, q_tile, step, rows);
        }
    }
    store_rows(k_sums, k_tile, row, d_k + kv_at, kv_stride, first_key, keys, size);
    store_rows(v_sums, v_tile, row, d_v + kv_at, kv_stride, first_key, keys, size);
}
#endif
