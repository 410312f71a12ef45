// Attention and its gradient with sums in f32, without the matrix units: of f32, where accuracy comes first, and of heads
// that are too wide for the matrix units' kernels.
//
// A warp owns eight rows (queries in the forward pass and for d_q, keys for d_k and d_v); the others come 32 at a time,
// one to a lane for scores. For the sums that follow, lanes share the columns of a head. Operands of products are rounded
// to the stored type; where that is f32, PRODUCTS says to what: 0 f32, 1 bf16, 2 f16.
#include "attention.cuh"

#ifndef PRODUCTS
#define PRODUCTS 0
#endif

constexpr int WARPS = 4, THREADS = 32 * WARPS, OWN = 8, BLOCK = WARPS * OWN, OTHERS = 32;
// Columns of a lane. Rows of others are longer by 16 bytes, so that lanes that each read a row do not meet in the
// banks.
constexpr int COLUMNS = HEAD / 32, STRIDE = HEAD + 4;
constexpr int OWN_FLOATS = BLOCK * HEAD, OTHER_FLOATS = OTHERS * STRIDE;

__device__ __forceinline__ float factor(float x) {
#if REAL != 0
    return to_float(from_float<real>(x));
#elif PRODUCTS == 1
    return to_float(from_float<bf16>(x));
#elif PRODUCTS == 2
    return to_float(from_float<f16>(x));
#else
    return x;
#endif
}

// Rows `first`.. of a head as factors, zeroes where there are none.
template <int ROWS, int LENGTH>
__device__ __forceinline__ void load_rows(float* to, const real* head, u64 stride, int first, int rows, int size) {
    for (int place = threadIdx.x; place < ROWS * HEAD; place += THREADS) {
        int row = place / HEAD, column = place % HEAD;
        bool there = first + row < rows && column < size;
        to[row * LENGTH + column] = there ? factor(to_float(head[(u64)(first + row) * stride + column])) : 0.0f;
    }
}

// The products of the warp's rows with the lane's row of the others.
__device__ __forceinline__ void multiply_rows(float (&scores)[OWN], const float* own, const float* others, int size) {
    const float* other = others + threadIdx.x % 32 * STRIDE;
    own += threadIdx.x / 32 * OWN * HEAD;
#pragma unroll
    for (int row = 0; row < OWN; row++) scores[row] = 0.0f;
    for (int column = 0; column < size; column += 4) {
        float4 b = *reinterpret_cast<const float4*>(other + column);
#pragma unroll
        for (int row = 0; row < OWN; row++) {
            float4 a = *reinterpret_cast<const float4*>(own + row * HEAD + column);
            scores[row] = fmaf(a.x, b.x, scores[row]);
            scores[row] = fmaf(a.y, b.y, scores[row]);
            scores[row] = fmaf(a.z, b.z, scores[row]);
            scores[row] = fmaf(a.w, b.w, scores[row]);
        }
    }
}

// sums += factors [OWN, OTHERS] · others [OTHERS, HEAD]; every lane gives the factors of its row of the others.
__device__ __forceinline__ void multiply_columns(float (&sums)[OWN][COLUMNS], const float (&factors)[OWN],
                                                 float* shared, const float* others) {
    int lane = threadIdx.x % 32;
    shared += threadIdx.x / 32 * OTHERS * OWN;
    __syncwarp();
#pragma unroll
    for (int row = 0; row < OWN; row++) shared[lane * OWN + row] = factor(factors[row]);
    __syncwarp();
    for (int other = 0; other < OTHERS; other++) {
        float at[COLUMNS];
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) at[column] = others[other * STRIDE + lane + column * 32];
#pragma unroll
        for (int row = 0; row < OWN; row++) {
            float by = shared[other * OWN + row];
#pragma unroll
            for (int column = 0; column < COLUMNS; column++) {
                sums[row][column] = fmaf(by, at[column], sums[row][column]);
            }
        }
    }
}

__device__ __forceinline__ void store_rows(const float (&sums)[OWN][COLUMNS], real* head, u64 stride, int first,
                                           int rows, int size) {
#pragma unroll
    for (int row = 0; row < OWN; row++) {
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            int at = threadIdx.x % 32 + column * 32;
            if (first + row < rows && at < size) {
                head[(u64)(first + row) * stride + at] = from_float<real>(sums[row][column]);
            }
        }
    }
}

__device__ __forceinline__ void clear(float (&sums)[OWN][COLUMNS]) {
#pragma unroll
    for (int row = 0; row < OWN; row++) {
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) sums[row][column] = 0.0f;
    }
}

// A block per (32 queries, head, sample). Shared memory: queries, keys, values, probabilities.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_forward(const real* q, const real* k, const real* v, real* out, float* log_sum_exp, const u32* places,
                  u32 rows_of_keys, const int2* ranges, const int4* spreads, u32 queries, u32 keys, u32 heads, u32 group, u32 size,
                  u32 q_stride, u32 kv_stride, u32 causal, u32 window, float scale) {
    extern __shared__ float4 memory[];
    float* q_rows = reinterpret_cast<float*>(memory);
    float *k_rows = q_rows + OWN_FLOATS, *v_rows = k_rows + OTHER_FLOATS, *factors = v_rows + OTHER_FLOATS;
    int lane = threadIdx.x % 32;
    u32 b = blockIdx.z, h = blockIdx.y;
    int first_query = (int)(gridDim.x - 1 - blockIdx.x) * BLOCK, own_query = first_query + threadIdx.x / 32 * OWN;
    Sight sight = sight_of(b, queries, keys, window, causal, places, ranges, spreads);
    Spread all = seen_by_all(sight, first_query, least(first_query + BLOCK, (int)queries));
    Range seen[OWN];
#pragma unroll
    for (int row = 0; row < OWN; row++) seen[row] = seen_by(sight, least(own_query + row, (int)queries - 1));

    u64 out_stride = (u64)heads * size;
    const u64 key_place = key_row(b, places, rows_of_keys) * keys * kv_stride + h / group * size;
    k += key_place;
    v += key_place;
    load_rows<BLOCK, HEAD>(q_rows, q + (u64)b * queries * q_stride + h * size, q_stride, first_query, queries, size);
    float sums[OWN][COLUMNS], max[OWN], total[OWN];
    clear(sums);
#pragma unroll
    for (int row = 0; row < OWN; row++) {
        max[row] = MINUS_INFINITY;
        total[row] = 0.0f;
    }
    for (int key = all.least_first / OTHERS * OTHERS; key < all.most_end; key += OTHERS) {
        __syncthreads();
        load_rows<OTHERS, STRIDE>(k_rows, k, kv_stride, key, keys, size);
        load_rows<OTHERS, STRIDE>(v_rows, v, kv_stride, key, keys, size);
        __syncthreads();
        float scores[OWN];
        multiply_rows(scores, q_rows, k_rows, size);
#pragma unroll
        for (int row = 0; row < OWN; row++) {
            bool is_seen = key + lane >= seen[row].first && key + lane < seen[row].end;
            float score = is_seen ? scores[row] * scale : MINUS_INFINITY;
            float before = max[row], now = fmaxf(before, warp_max(score));
            max[row] = now;
            // A query that has seen no key yet.
            float offset = now == MINUS_INFINITY ? 0.0f : now;
            float shrink = expf(before - offset);
            scores[row] = expf(score - offset);
            // Lanes add their own keys; all of them have the same maximum.
            total[row] = total[row] * shrink + scores[row];
#pragma unroll
            for (int column = 0; column < COLUMNS; column++) sums[row][column] *= shrink;
        }
        multiply_columns(sums, scores, factors, v_rows);
    }
#pragma unroll
    for (int row = 0; row < OWN; row++) {
        float sum = warp_sum(total[row]);
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) sums[row][column] /= sum;
        if (lane == 0 && own_query + row < (int)queries) {
            log_sum_exp[((u64)b * heads + h) * queries + own_query + row] = max[row] + logf(sum);
        }
    }
    store_rows(sums, out + (u64)b * queries * out_stride + h * size, out_stride, own_query, queries, size);
}

// A block per (32 queries, head, sample). Shared memory: queries, gradients of outputs, keys, values, gradients of
// scores.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_d_q(const real* d_out, const real* q, const real* k, const real* v, const float* log_sum_exp,
              const float* delta, real* d_q, const int2* ranges, const int4* spreads, u32 queries, u32 keys, u32 heads,
              u32 group, u32 size, u32 q_stride, u32 kv_stride, u32 causal, u32 window, float scale) {
    extern __shared__ float4 memory[];
    float* q_rows = reinterpret_cast<float*>(memory);
    float *d_out_rows = q_rows + OWN_FLOATS, *k_rows = d_out_rows + OWN_FLOATS, *v_rows = k_rows + OTHER_FLOATS;
    float* factors = v_rows + OTHER_FLOATS;
    int lane = threadIdx.x % 32;
    u32 b = blockIdx.z, h = blockIdx.y;
    int first_query = (int)(gridDim.x - 1 - blockIdx.x) * BLOCK, own_query = first_query + threadIdx.x / 32 * OWN;
    Sight sight = sight_of(b, queries, keys, window, causal, nullptr, ranges, spreads);
    Spread all = seen_by_all(sight, first_query, least(first_query + BLOCK, (int)queries));
    Range seen[OWN];
    float log_sum[OWN], subtract[OWN];
    u64 statistics = ((u64)b * heads + h) * queries;
#pragma unroll
    for (int row = 0; row < OWN; row++) {
        int query = least(own_query + row, (int)queries - 1);
        seen[row] = seen_by(sight, query);
        log_sum[row] = log_sum_exp[statistics + query];
        subtract[row] = delta[statistics + query];
    }

    u64 out_stride = (u64)heads * size, q_at = (u64)b * queries * q_stride + h * size;
    k += (u64)b * keys * kv_stride + h / group * size;
    v += (u64)b * keys * kv_stride + h / group * size;
    d_out += (u64)b * queries * out_stride + h * size;
    load_rows<BLOCK, HEAD>(q_rows, q + q_at, q_stride, first_query, queries, size);
    load_rows<BLOCK, HEAD>(d_out_rows, d_out, out_stride, first_query, queries, size);
    float sums[OWN][COLUMNS];
    clear(sums);
    for (int key = all.least_first / OTHERS * OTHERS; key < all.most_end; key += OTHERS) {
        __syncthreads();
        load_rows<OTHERS, STRIDE>(k_rows, k, kv_stride, key, keys, size);
        load_rows<OTHERS, STRIDE>(v_rows, v, kv_stride, key, keys, size);
        __syncthreads();
        float scores[OWN], d_scores[OWN];
        multiply_rows(scores, q_rows, k_rows, size);
        multiply_rows(d_scores, d_out_rows, v_rows, size);
#pragma unroll
        for (int row = 0; row < OWN; row++) {
            bool is_seen = key + lane >= seen[row].first && key + lane < seen[row].end;
            float probability = is_seen ? expf(scores[row] * scale - log_sum[row]) : 0.0f;
            d_scores[row] = probability * (d_scores[row] - subtract[row]) * scale;
        }
        multiply_columns(sums, d_scores, factors, k_rows);
    }
    store_rows(sums, d_q + q_at, q_stride, own_query, queries, size);
}

// A block per (32 keys, key head, sample), which goes over the query heads of its group in order. Shared memory: keys,
// values, queries, gradients of outputs, probabilities or gradients of scores.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_d_kv(const real* d_out, const real* q, const real* k, const real* v, const float* log_sum_exp,
               const float* delta, real* d_k, real* d_v, const int2* ranges, const int4* spreads, u32 queries,
               u32 keys, u32 heads, u32 group, u32 size, u32 q_stride, u32 kv_stride, u32 causal, u32 window,
               float scale) {
    extern __shared__ float4 memory[];
    float* k_rows = reinterpret_cast<float*>(memory);
    float *v_rows = k_rows + OWN_FLOATS, *q_rows = v_rows + OWN_FLOATS, *d_out_rows = q_rows + OTHER_FLOATS;
    float* factors = d_out_rows + OTHER_FLOATS;
    int lane = threadIdx.x % 32;
    u32 b = blockIdx.z, kv_head = blockIdx.y;
    int first_key = (int)blockIdx.x * BLOCK, own_key = first_key + threadIdx.x / 32 * OWN;
    Sight sight = sight_of(b, queries, keys, window, causal, nullptr, ranges, spreads);

    u64 out_stride = (u64)heads * size, kv_at = (u64)b * keys * kv_stride + kv_head * size;
    load_rows<BLOCK, HEAD>(k_rows, k + kv_at, kv_stride, first_key, keys, size);
    load_rows<BLOCK, HEAD>(v_rows, v + kv_at, kv_stride, first_key, keys, size);
    float k_sums[OWN][COLUMNS], v_sums[OWN][COLUMNS];
    clear(k_sums);
    clear(v_sums);
    for (u32 h = kv_head * group; h < (kv_head + 1) * group; h++) {
        const real* q_head = q + (u64)b * queries * q_stride + h * size;
        const real* d_out_head = d_out + (u64)b * queries * out_stride + h * size;
        u64 statistics = ((u64)b * heads + h) * queries;
        for (int first = 0; first < (int)queries; first += OTHERS) {
            Spread some = seen_by_all(sight, first, least(first + OTHERS, (int)queries));
            if (some.most_end <= first_key || some.least_first >= first_key + BLOCK) continue;
            __syncthreads();
            load_rows<OTHERS, STRIDE>(q_rows, q_head, q_stride, first, queries, size);
            load_rows<OTHERS, STRIDE>(d_out_rows, d_out_head, out_stride, first, queries, size);
            __syncthreads();
            int query = least(first + lane, (int)queries - 1);
            Range seen = seen_by(sight, query);
            float log_sum = log_sum_exp[statistics + query], subtract = delta[statistics + query];
            float scores[OWN], d_scores[OWN];
            multiply_rows(scores, k_rows, q_rows, size);
            multiply_rows(d_scores, v_rows, d_out_rows, size);
#pragma unroll
            for (int row = 0; row < OWN; row++) {
                int key = own_key + row;
                bool is_seen = first + lane < (int)queries && key >= seen.first && key < seen.end;
                scores[row] = is_seen ? expf(scores[row] * scale - log_sum) : 0.0f;
                d_scores[row] = scores[row] * (d_scores[row] - subtract) * scale;
            }
            multiply_columns(v_sums, scores, factors, d_out_rows);
            multiply_columns(k_sums, d_scores, factors, q_rows);
        }
    }
    store_rows(k_sums, d_k + kv_at, kv_stride, own_key, keys, size);
    store_rows(v_sums, d_v + kv_at, kv_stride, own_key, keys, size);
}
