// Packing of float weights into panels of 32 output channels: [k][32] for float32, [k / 2][32][2] for bfloat16. Both
// are [units][32] in units of 32 bits. An odd k is padded with zeros.
#pragma once

#include "vectors.h"

// Packs panel number `panel` of a weight [columns, width].
template <class T> void pack_panel(const T* weight, int64_t columns, int64_t width, int64_t panel, T* packed) {
    constexpr int64_t group = sizeof(uint32_t) / sizeof(T);
    const int64_t units = (width + group - 1) / group, count = std::min(PANEL, columns - panel * PANEL);
    const int64_t squares = count == PANEL ? width / group / WIDTH * WIDTH : 0;
    const T* from = weight + panel * PANEL * width;
    for (int64_t unit = 0; unit < squares; unit += WIDTH) {
        for (int64_t column = 0; column < PANEL; column += WIDTH) {
            Words square[WIDTH];
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++) {
                const T* channel = from + (column + i) * width + unit * group;
                __builtin_prefetch(channel + PANEL * width, 0, 2);
                square[i] = load_words(channel);
            }
            transpose(square);
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++) {
                store_words(packed + ((unit + i) * PANEL + column) * group, square[i]);
            }
        }
    }
    std::memset(packed + squares * PANEL * group, 0, (units - squares) * PANEL * sizeof(uint32_t));
    for (int64_t column = 0; column < count; column++) {
        const auto channel = Channel<group, T>::of(packed, width, column);
        for (int64_t k = squares * group; k < width; k++) channel[k] = from[column * width + k];
    }
}

// Packs panels begin..end-1 of a weight [columns, width] one after the other.
void pack_panels(DType dtype, const void* weight, int64_t columns, int64_t width, void* packed, int64_t begin,
                 int64_t end) {
    for (int64_t panel = begin; panel < end; panel++) {
        if (dtype == FLOAT32) {
            pack_panel(static_cast<const float*>(weight), columns, width, panel,
                       static_cast<float*>(packed) + panel * PANEL * width);
        } else {
            pack_panel(static_cast<const bfloat16*>(weight), columns, width, panel,
                       static_cast<bfloat16*>(packed) + panel * PANEL * ((width + 1) / 2 * 2));
        }
    }
}

template <class T> void unpack_floats(const WeightRows& p, int64_t begin, int64_t end) {
    const T* packed = static_cast<const T*>(p.weight);
    T* out = static_cast<T*>(p.out);
    for (int64_t i = begin; i < end; i++) {
        const auto channel = Channel<sizeof(uint32_t) / sizeof(T), const T>::of(packed, p.width, p.index[i]);
        for (int64_t k = 0; k < p.width; k++) out[i * p.width + k] = channel[k];
    }
}

// Copies output channels index[begin..end-1] of a packed weight.
void unpack_rows(DType dtype, const WeightRows& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? unpack_floats<float>(p, begin, end) : unpack_floats<bfloat16>(p, begin, end);
}
