// Attention of one query over keys in their stored order. Used for few queries, which read each key only once.
//
// The result of a query and head depends only on the query and on its keys and values in their order.
// `attention_tiled.h` computes the same sums in the same order for many queries at once.
#pragma once

#include "amx.h"
#include "attention_lanes.h"
#include "attention_products.h"
#include "attention_read_ahead.h"
#include "attention_scratch.h"
#include "vectors.h"

// Bytes that are prefetched per row before its maximum is computed, and again before its softmax: these read no keys and
// no values.
constexpr int64_t SOFTMAX_BYTES = 1024;

// Attention of one query with `width` adjacent key-value heads from `kv_head` on, and the query heads that share
// them. ahead: prefetches keys and values, see attention_read_ahead.h.
template <class T, int DIM>
void attend_query(const Attention& p, const KvView<T>& keys, const KvView<T>& values, int64_t query, int64_t row_first,
                  int64_t kv_head, int64_t width, ReadAhead<T>& ahead, MatrixUnit& matrix_unit, Scratch& scratch) {
    const int64_t group = p.heads / p.kv_heads, rows = width * group, dim = DIM ? DIM : p.head_dim;
    const int64_t lanes = query_lanes<T, DIM>(group, dim);
    const int64_t first = p.starts[query], last = p.ends[query], count = last - first;
    const Margins margins = ::margins<Lanes<T, DIM>::STEP_KEYS>(row_first, first, first, last, last);
    const int64_t before = margins.before, head = kv_head * group;
    const int64_t pitch = (before + count + WIDTH - 1) / WIDTH * WIDTH + WIDTH;
    float* queries = scratch.queries.of(width * lanes);
    float* scores = scratch.scores.of(rows * pitch);
    float* sums = scratch.sums.of(rows * dim);
    float* factors = scratch.factors.of(rows);
    const T* heads = static_cast<const T*>(p.query) + query * p.query_stride + head * dim;
    copy_queries<T, DIM>(heads, width, group, dim, queries);
    for (int64_t key = first; key < last;) {
        const int64_t here = keys.step(key, last);
        const T* run = keys.at(key);
        for (int64_t kv = 0; kv < width; kv++) {
            score_keys<T, DIM>(matrix_unit, queries + kv * lanes, run + kv * dim, keys.stride, here, dim, group,
                               scores + kv * group * pitch + before + key - first, pitch, ahead);
        }
        key += here;
    }
    for (int64_t row = 0; row < rows; row++) {
        float* of_row = scores + row * pitch;
        ahead.fetch_at_once(SOFTMAX_BYTES);
        auto* weights = reinterpret_cast<typename Lanes<T, DIM>::Weight*>(of_row) + before;
        const float max_score = scale_query_scores(p, head + row, query, of_row + before);
        ahead.fetch_at_once(SOFTMAX_BYTES);
        factors[row] = softmax_weights<T, DIM>(p, head + row, query, max_score, margins, of_row + before, weights);
    }
    std::fill(sums, sums + rows * dim, 0.0f);
    // These bytes are prefetched already. They do not count again when values are read.
    ahead.allow(-2 * SOFTMAX_BYTES * rows);
    add_stored_values<T, DIM>(matrix_unit, values, first, last, before, width, group, dim, scores, pitch, sums, scratch,
                              ahead);
    T* out = static_cast<T*>(p.out) + (query * p.heads + head) * dim;
    for (int64_t row = 0; row < rows; row++) store_row<T, DIM>(sums + row * dim, factors[row], dim, out + row * dim);
}
