// Sums of embedding rows, and means of spans of rows (pooling).
#pragma once

#include "numbers.h"

template <class T> const T* row_of(const TableLookup& part, int64_t row, int64_t width) {
    return static_cast<const T*>(part.table) + (part.index == nullptr ? 0 : part.index[row]) * width;
}

// Sums of table rows for output rows begin..end-1. Each addition rounds to the dtype, as separate operations would.
// Rows of a large table are scattered in memory, so they are prefetched a few rows ahead.
template <class T> void sum_rows(const RowSum& p, int64_t begin, int64_t end) {
    constexpr int64_t ROWS_AHEAD = 8;
    for (int64_t row = begin; row < end; row++) {
        T* out = static_cast<T*>(p.out) + row * p.width;
        for (int64_t n = 0; n < p.count; n++) {
            const TableLookup& part = p.lookups[n];
            const T* from = row_of<T>(part, row, p.width);
            if (part.index != nullptr && row + ROWS_AHEAD < end) {
                const auto* next = reinterpret_cast<const char*>(row_of<T>(part, row + ROWS_AHEAD, p.width));
                for (int64_t byte = 0; byte < p.width * int64_t{sizeof(T)}; byte += 64) __builtin_prefetch(next + byte);
            }
            if (n > 0 || p.onto != nullptr) {
                const T* before = n > 0 ? out : static_cast<const T*>(p.onto) + row * p.width;
#pragma omp simd
                for (int64_t i = 0; i < p.width; i++) narrow(widen(before[i]) + widen(from[i]), out[i]);
            } else {
                const float scale = static_cast<float>(p.scale);
#pragma omp simd
                for (int64_t i = 0; i < p.width; i++) narrow(widen(from[i]) * scale, out[i]);
            }
        }
    }
}

void sum_of_rows(DType dtype, const RowSum& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? sum_rows<float>(p, begin, end) : sum_rows<bfloat16>(p, begin, end);
}

// Means of spans begin..end-1, each summed in float64 from its first row to its last.
template <class T> void mean_spans(const SpanMean& p, int64_t begin, int64_t end) {
    constexpr int64_t COLUMNS_AT_ONCE = 64;
    for (int64_t span = begin; span < end; span++) {
        const int64_t first = p.spans[2 * span], last = p.spans[2 * span + 1];
        for (int64_t column = 0; column < p.width; column += COLUMNS_AT_ONCE) {
            const int64_t count = std::min(COLUMNS_AT_ONCE, p.width - column);
            double sums[COLUMNS_AT_ONCE] = {};
            for (int64_t row = first; row < last; row++) {
                const T* x = static_cast<const T*>(p.x) + row * p.width + column;
#pragma omp simd
                for (int64_t i = 0; i < count; i++) sums[i] += widen(x[i]);
            }
            float* out = p.out + span * p.width + column;
            const auto rows = static_cast<double>(last - first);
            for (int64_t i = 0; i < count; i++) out[i] = static_cast<float>(sums[i] / rows);
        }
    }
}

void means_of_spans(DType dtype, const SpanMean& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? mean_spans<float>(p, begin, end) : mean_spans<bfloat16>(p, begin, end);
}

// Copies the keys and values of tokens begin..end-1 into their cache slots.
void write_slots(DType, const SlotWrite& p, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        std::memcpy(p.key_cache + p.slots[i] * p.width, p.key + i * p.key_stride, p.width);
        std::memcpy(p.value_cache + p.slots[i] * p.width, p.value + i * p.value_stride, p.width);
    }
}

// Gathers rows index[begin..end-1] of x.
void take_rows(DType, const RowGather& p, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) std::memcpy(p.out + i * p.width, p.x + p.index[i] * p.stride, p.width);
}
