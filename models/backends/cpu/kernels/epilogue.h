// Operations that follow a matrix product, applied before it is stored: bias, activation, elementwise factor,
// residual. Each step rounds to the output dtype, so the bits equal those of separate operations.
#pragma once

#include "activations.h"
#include "numbers.h"
#include "vectors.h"

// Rounds to dtype T.
template <class T> INLINE Floats rounded_to(Floats y) {
    if constexpr (std::is_same<T, float>::value) return y;
    alignas(64) T rounded[WIDTH];
    store(rounded, y);
    return load(rounded);
}

template <class T> INLINE float rounded_to(float y) {
    T rounded;
    narrow(y, rounded);
    return widen(rounded);
}

// Sums of a tile in memory: [rows][PANEL], float32. `apply_epilogue` reads the sums of a tile by the method `at` of this
// or another class.
struct StoredSums {
    const float* sums;

    // A vector of sums of row `row` of the tile, from column `column` of the panel on.
    INLINE Floats at(int64_t row, int64_t column) const { return load(sums + row * PANEL + column); }
};

// Epilogue of ROWS rows of one whole panel, from row `first` of the tile on.
template <class T, int ROWS, class TileSums>
INLINE void epilogue_of_rows(const TileSums& sums, int64_t first, const Epilogue& f, int64_t row, int64_t column) {
    constexpr int LINE = PANEL / WIDTH;
    Vectors<ROWS * LINE> y;
    // Calls body(vector, its row, its first column).
    const auto for_each_vector = [&](const auto& body) {
#pragma GCC unroll 8
        for (int i = 0; i < ROWS * LINE; i++) body(y.of[i], row + i / LINE, column + i % LINE * WIDTH);
    };
    const auto load_operand = [](const void* operand, int64_t stride, int64_t row, int64_t column) {
        return load(static_cast<const T*>(operand) + row * stride + column);
    };
    for (int i = 0; i < ROWS * LINE; i++) y.of[i] = sums.at(first + i / LINE, i % LINE * WIDTH);
    if (f.bias != nullptr) for_each_vector([&](Floats& y, int64_t, int64_t column) { y += load(f.bias + column); });
    if (f.activation != NONE) y = activate<T>(f.activation, each([](Floats x) { return rounded_to<T>(x); }, y));
    if (f.multiplier != nullptr) {
        for_each_vector([&](Floats& y, int64_t row, int64_t column) {
            y = rounded_to<T>(y) * load_operand(f.multiplier, f.multiplier_stride, row, column);
        });
    }
    if (f.residual != nullptr) {
        for_each_vector([&](Floats& y, int64_t row, int64_t column) {
            y = rounded_to<T>(y);
            y = unfused(y) + load_operand(f.residual, f.residual_stride, row, column);
        });
    }
    for_each_vector([&](Floats& y, int64_t row, int64_t column) {
        store(static_cast<T*>(f.out) + row * f.out_stride + column, y);
    });
}

// Epilogue of one row and the first `count` columns of the last panel. Missing columns are zero.
template <class T, class TileSums>
void epilogue_of_partial_panel(const TileSums& sums, int64_t first, const Epilogue& f, int64_t row, int64_t column,
                               int64_t count) {
    float bias[PANEL] = {};
    T multiplier[PANEL] = {}, residual[PANEL] = {}, out[PANEL];
    Epilogue part = f;
    const auto copy = [&](auto& from, const auto* line, auto* to) {
        if (from == nullptr) return;
        std::copy(line, line + count, to);
        from = to;
    };
    copy(part.bias, f.bias + column, bias);
    copy(part.multiplier, static_cast<const T*>(f.multiplier) + row * f.multiplier_stride + column, multiplier);
    copy(part.residual, static_cast<const T*>(f.residual) + row * f.residual_stride + column, residual);
    part.out = out;
    epilogue_of_rows<T, 1>(sums, first, part, 0, 0);
    std::copy(out, out + count, static_cast<T*>(f.out) + row * f.out_stride + column);
}

// Prefetches the memory that `apply_epilogue` reads and writes. Rows are far apart, and another thread may have them
// in its cache.
template <class T> INLINE void prefetch_epilogue(const Epilogue& f, int64_t row, int64_t rows, int64_t column) {
    const auto fetch = [&](const void* operand, int64_t stride, auto write) {
        const char* line = static_cast<const char*>(operand) + (row * stride + column) * int64_t{sizeof(T)};
        for (int64_t i = 0; i < rows; i++, line += stride * int64_t{sizeof(T)}) {
            for (int64_t byte = 0; byte < PANEL * int64_t{sizeof(T)}; byte += 64) {
                __builtin_prefetch(line + byte, write.value);
            }
        }
    };
    if (f.multiplier != nullptr) fetch(f.multiplier, f.multiplier_stride, std::false_type{});
    if (f.residual != nullptr) fetch(f.residual, f.residual_stride, std::false_type{});
    fetch(f.out, f.out_stride, std::true_type{});
}

// Epilogue of a tile of `rows` rows and one panel. sums: `StoredSums` or a class with its methods. The output starts at
// row `row` and column `column`.
template <class T, class TileSums>
INLINE void apply_epilogue(const TileSums& sums, const Epilogue& f, int64_t row, int64_t rows, int64_t column) {
    constexpr int ROWS_AT_ONCE = REGISTERS < 32 ? 1 : 2;
    const int64_t count = f.columns - column;
    int64_t i = 0;
    for (; count >= PANEL && i + ROWS_AT_ONCE <= rows; i += ROWS_AT_ONCE) {
        epilogue_of_rows<T, ROWS_AT_ONCE>(sums, i, f, row + i, column);
    }
    for (; i < rows; i++) {
        if (count >= PANEL) {
            epilogue_of_rows<T, 1>(sums, i, f, row + i, column);
        } else {
            epilogue_of_partial_panel<T>(sums, i, f, row + i, column, count);
        }
    }
}
