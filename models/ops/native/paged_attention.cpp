// Attention of single queries over keys and values in the blocks of a cache (Kwon et al. 2023, arXiv:2309.06180).
//
// One unit of work is one query and one key-value head with the query heads that share it: its keys are read once, then
// its values. Sums and softmax are float32. What a unit computes depends on nothing but its own query, keys and values,
// so a row gives the same bits alone, in a batch, and in a chunk.
#include "common.h"

#include <vector>

struct PagedAttention {
    const void* query;         // [queries, heads, head_dim], queries `query_stride` numbers apart
    int64_t query_stride;
    const void* key_cache;     // [blocks, block_size, kv_heads, head_dim]
    const void* value_cache;
    const int64_t* tables;     // [rows, table_width]: blocks of each row
    int64_t table_width;
    const int32_t* rows;       // [queries]: whose blocks
    const int32_t* starts;     // [queries]: first key that the query sees
    const int32_t* ends;       // [queries]: end of the keys that it sees
    const int32_t* positions;  // [queries]: where it stands itself
    const float* bias;         // [heads, 2 * length - 1] by distance of key and query, or null
    int64_t bias_length;       // `length`
    void* out;                 // [queries, heads, head_dim], contiguous
    int64_t queries, heads, kv_heads, head_dim, block_size;
    float scale, cap;          // cap: 0 for none
};

namespace {

template <class T, int DIM> INLINE float dot(const float* query, const T* key, int64_t head_dim) {
    const int64_t dim = DIM ? DIM : head_dim;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < dim; i++) sum += query[i] * widen(key[i]);
    return sum;
}

// Scores of one query head against the keys of one block.
template <class T, int DIM>
INLINE void score_block(const float* query, const T* keys, int64_t stride, int64_t count, int64_t head_dim,
                        float* scores) {
    for (int64_t i = 0; i < count; i++) scores[i] = dot<T, DIM>(query, keys + i * stride, head_dim);
}

// out += shares . values, over one block.
template <class T, int DIM>
INLINE void add_block(const float* shares, const T* values, int64_t stride, int64_t count, int64_t head_dim,
                      float* out) {
    if (DIM) {
        float sums[DIM ? DIM : 1];
        for (int64_t d = 0; d < DIM; d++) sums[d] = out[d];
        for (int64_t i = 0; i < count; i++) {
#pragma omp simd
            for (int64_t d = 0; d < DIM; d++) sums[d] += shares[i] * widen(values[i * stride + d]);
        }
        for (int64_t d = 0; d < DIM; d++) out[d] = sums[d];
        return;
    }
    for (int64_t i = 0; i < count; i++) {
#pragma omp simd
        for (int64_t d = 0; d < head_dim; d++) out[d] += shares[i] * widen(values[i * stride + d]);
    }
}

// Scores to shares: bias, cap, softmax. Returns one over their sum; the shares stay unnormalised.
INLINE float soften(float* scores, int64_t count, const float* bias, float cap) {
    if (cap > 0.0f) {
        for (int64_t i = 0; i < count; i++) scores[i] = cap * std::tanh(scores[i] / cap);
    }
    if (bias != nullptr) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) scores[i] += bias[i];
    }
    float highest = scores[0];
#pragma omp simd reduction(max : highest)
    for (int64_t i = 0; i < count; i++) highest = scores[i] > highest ? scores[i] : highest;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        scores[i] = exp_negative(scores[i] - highest);
        sum += scores[i];
    }
    return 1.0f / sum;
}

template <class T, int DIM> INLINE void attend(const PagedAttention& p, int64_t begin, int64_t end) {
    const int64_t group = p.heads / p.kv_heads, dim = DIM ? DIM : p.head_dim, token = p.kv_heads * dim;
    std::vector<float> scores, queries(group * dim), sums(group * dim);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t query = unit / p.kv_heads, kv_head = unit % p.kv_heads;
        const int64_t first = p.starts[query], last = p.ends[query], count = last - first;
        const int64_t* table = p.tables + p.rows[query] * p.table_width;
        const T* heads = static_cast<const T*>(p.query) + query * p.query_stride + kv_head * group * dim;
        const T* key_cache = static_cast<const T*>(p.key_cache) + kv_head * dim;
        const T* value_cache = static_cast<const T*>(p.value_cache) + kv_head * dim;
        for (int64_t i = 0; i < group * dim; i++) queries[i] = widen(heads[i]) * p.scale;
        std::fill(sums.begin(), sums.end(), 0.0f);
        scores.resize(std::max<int64_t>(scores.size(), group * count));
        for (int64_t key = first; key < last;) {
            const int64_t offset = key % p.block_size, here = std::min(p.block_size - offset, last - key);
            const T* keys = key_cache + (table[key / p.block_size] * p.block_size + offset) * token;
            for (int64_t head = 0; head < group; head++) {
                score_block<T, DIM>(&queries[head * dim], keys, token, here, dim, &scores[head * count + key - first]);
            }
            key += here;
        }
        T* out = static_cast<T*>(p.out) + (query * p.heads + kv_head * group) * dim;
        float scale_out[64];
        for (int64_t head = 0; head < group; head++) {
            const float* bias = nullptr;
            if (p.bias != nullptr) {
                // Distance d of a key and the query is found at d + length - 1.
                const int64_t row = (kv_head * group + head) * (2 * p.bias_length - 1);
                bias = p.bias + row + p.bias_length - 1 + first - p.positions[query];
            }
            scale_out[head] = soften(&scores[head * count], count, bias, p.cap);
        }
        for (int64_t key = first; key < last;) {
            const int64_t offset = key % p.block_size, here = std::min(p.block_size - offset, last - key);
            const T* values = value_cache + (table[key / p.block_size] * p.block_size + offset) * token;
            for (int64_t head = 0; head < group; head++) {
                add_block<T, DIM>(&scores[head * count + key - first], values, token, here, dim, &sums[head * dim]);
            }
            key += here;
        }
        for (int64_t head = 0; head < group; head++) {
#pragma omp simd
            for (int64_t d = 0; d < dim; d++) narrow(sums[head * dim + d] * scale_out[head], out[head * dim + d]);
        }
    }
}

#define KERNEL(NAME, T, DIM)                                                                 \
    FOR_EACH_CPU void NAME(const PagedAttention& p, int64_t begin, int64_t end) {            \
        attend<T, DIM>(p, begin, end);                                                       \
    }
KERNEL(float32_32, float, 32)
KERNEL(float32_64, float, 64)
KERNEL(float32_128, float, 128)
KERNEL(float32_any, float, 0)
KERNEL(bfloat16_32, bfloat16, 32)
KERNEL(bfloat16_64, bfloat16, 64)
KERNEL(bfloat16_128, bfloat16, 128)
KERNEL(bfloat16_any, bfloat16, 0)
#undef KERNEL

using Kernel = void (*)(const PagedAttention&, int64_t, int64_t);

Kernel kernel_for(int32_t dtype, int64_t head_dim) {
    const bool wide = dtype == FLOAT32;
    switch (head_dim) {
        case 32: return wide ? float32_32 : bfloat16_32;
        case 64: return wide ? float32_64 : bfloat16_64;
        case 128: return wide ? float32_128 : bfloat16_128;
        default: return wide ? float32_any : bfloat16_any;
    }
}

}  // namespace

// At most 64 query heads may share a key-value head.
EXPORT void triptych_paged_attention(int32_t dtype, const PagedAttention* task) {
    const PagedAttention& p = *task;
    const Kernel kernel = kernel_for(dtype, p.head_dim);
    parallel(p.queries * p.kv_heads, 1, [&](int64_t begin, int64_t end) { kernel(p, begin, end); });
}
