// Attention over keys and values in the blocks of a paged cache (Kwon et al. 2023, arXiv:2309.06180), or in one
// contiguous ragged tensor.
//
// One work item is one tile and one key-value head: consecutive queries of one batch row, with all query heads that
// share the key-value head. Sums and softmax are float32. A query gives the same bits in every tile, alone or in a
// batch, and for every division of a prompt into chunks.
#pragma once

#include "attention_scratch.h"
#include "attention_softmax.h"
#include "attention_lanes.h"
#include "attention_read_ahead.h"
#include "attention_panels.h"
#include "attention_products.h"
#include "attention_direct.h"
#include "attention_tiled.h"

template <class T> KvView<T> kv_view(const Attention& p, const void* tokens, int64_t stride, int64_t query) {
    return {static_cast<const T*>(tokens), stride, p.block_size, p.tables + p.rows[query] * p.table_width};
}

// Keys that the work items from `item` on read first. `item` is the first item of a tile.
template <class T> TokenRange<T> next_keys(const Attention& p, int64_t item, int64_t end) {
    if (item >= end) return {};
    const int64_t query = p.tiles[item / p.kv_heads * 3];
    return {kv_view<T>(p, p.keys, p.key_stride, query), p.starts[query], p.ends[query],
            std::min(p.kv_heads, end - item) * p.head_dim};
}

template <class T, int DIM> void attend_items(const Attention& p, int64_t begin, int64_t end) {
    static thread_local Scratch scratch;
    MatrixUnit matrix_unit;
    ReadAhead<T> ahead;
    const int64_t group = p.heads / p.kv_heads;
    for (int64_t item = begin; item < end;) {
        const int64_t kv_head = item % p.kv_heads, offset = kv_head * p.head_dim;
        const int32_t* tile = p.tiles + item / p.kv_heads * 3;
        const int64_t first = tile[0], last = first + tile[1], row_first = tile[2];
        const auto keys = kv_view<T>(p, static_cast<const T*>(p.keys) + offset, p.key_stride, first);
        const auto values = kv_view<T>(p, static_cast<const T*>(p.values) + offset, p.value_stride, first);
        if constexpr (DIM > 0) {
            // Query heads of a single query also share the loads of the direct kernel, unless it must
            // widen bfloat16.
            const int64_t min_rows = SCORE_ROWS * (last - first > 1 || Lanes<T, DIM>::WIDENED ? 1 : 2);
            if ((last - first) * group >= min_rows &&
                attend_tile<T, DIM>(p, keys, values, first, last - first, row_first, kv_head, matrix_unit, scratch)) {
                item++;
                continue;
            }
        }
        // Key-value heads are adjacent in memory: all heads of this range are read together.
        const int64_t width = std::min(p.kv_heads - kv_head, end - item);
        const TokenRange<T> none{}, next = next_keys<T>(p, item + width, end);
        for (int64_t query = first; query < last; query++) {
            const int64_t from = p.starts[query], to = p.ends[query], numbers = width * p.head_dim;
            ahead.begin({keys, from, to, numbers}, {values, from, to, numbers}, query + 1 < last ? none : next, group);
            attend_query<T, DIM>(p, keys, values, query, row_first, kv_head, width, ahead, matrix_unit, scratch);
        }
        item += width;
    }
}

#ifdef AMX

// Only bfloat16 with the head dimensions below uses the matrix unit. Everything else runs the vector kernels.
void attend(DType dtype, const Attention& p, int64_t begin, int64_t end) {
    if (dtype == BFLOAT16) {
        switch (p.head_dim) {
            case 32: return attend_items<bfloat16, 32>(p, begin, end);
            case 64: return attend_items<bfloat16, 64>(p, begin, end);
            case 96: return attend_items<bfloat16, 96>(p, begin, end);
            case 128: return attend_items<bfloat16, 128>(p, begin, end);
            case 256: return attend_items<bfloat16, 256>(p, begin, end);
            case 512: return attend_items<bfloat16, 512>(p, begin, end);
            case 576: return attend_items<bfloat16, 576>(p, begin, end);
        }
    }
    VECTOR_KERNELS.attend(dtype, p, begin, end);
}

#else

template <class T> void attend_dtype(const Attention& p, int64_t begin, int64_t end) {
    switch (p.head_dim) {
        case 32: return attend_items<T, 32>(p, begin, end);
        case 64: return attend_items<T, 64>(p, begin, end);
        case 80: return attend_items<T, 80>(p, begin, end);
        case 96: return attend_items<T, 96>(p, begin, end);
        case 128: return attend_items<T, 128>(p, begin, end);
        case 256: return attend_items<T, 256>(p, begin, end);
        case 512: return attend_items<T, 512>(p, begin, end);
        case 576: return attend_items<T, 576>(p, begin, end);
        default: return attend_items<T, 0>(p, begin, end);
    }
}

void attend(DType dtype, const Attention& p, int64_t begin, int64_t end) {
    if (dtype == FLOAT32) {
        attend_dtype<float>(p, begin, end);
    } else {
        attend_dtype<bfloat16>(p, begin, end);
    }
}

#endif
