// Products of int8 numbers in groups of four (quads) and integers of sixteen bits, with exact sums in int32. A lane of
// a panel holds a quad; all lanes of a step share the four factors that multiply it.
#pragma once

#include "tiles.h"
#include "vectors.h"

// Rows and vectors whose sums fill the registers.
constexpr int64_t QUAD_ROWS = 4, QUAD_VECTORS = REGISTERS < 32 ? 2 : 4;

using Shorts = int16_t __attribute__((vector_size(WIDTH * 4)));

// Numbers 0 and 2 of each quad, as pairs of int16.
INLINE Integers even_numbers(Integers quads) {
    return reinterpret_cast<Integers>((reinterpret_cast<Shorts>(quads) << 8) >> 8);
}

// Numbers 1 and 3 of each quad, as pairs of int16.
INLINE Integers odd_numbers(Integers quads) { return reinterpret_cast<Integers>(reinterpret_cast<Shorts>(quads) >> 8); }

// sum + the dot products of pairs of int16.
INLINE Integers add_pairs(Integers sum, Integers x, Integers y) {
#if defined(VNNI)
    return (Integers)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)x, (__m512i)y);
#elif defined(AVX512)
    return sum + (Integers)_mm512_madd_epi16((__m512i)x, (__m512i)y);
#elif defined(AVX2)
    return sum + (Integers)_mm256_madd_epi16((__m256i)x, (__m256i)y);
#else
    return sum + ((x << 16) >> 16) * ((y << 16) >> 16) + (x >> 16) * (y >> 16);
#endif
}

template <int... I> INLINE Integers with_pairs_exchanged(Integers x, std::integer_sequence<int, I...>) {
    return shuffled<(I ^ 2)...>(x, x);
}

// Four factors of each quad of lanes in the form that `multiply_quads` reads: lane 0 has the pair 0, 2 and lane 1 the
// pair 1, 3; lanes 2 and 3 are not read. integers: of at most sixteen bits.
INLINE Integers factor_words(Integers integers) {
    const Integers others = with_pairs_exchanged(integers, std::make_integer_sequence<int, WIDTH>{});
    return (integers & 0xffff) | (others << 16);
}

// Rounds WIDTH * vectors numbers to integers of at most MOST, and stores them as factors: a word each.
//
// read: called as read(v) for a vector of numbers.
// Returns the scale of the integers; NaN if a number is not finite.
template <int32_t MOST, class Read> INLINE float round_factors(int64_t vectors, const Read& read, int32_t* factors) {
    // Compared by their bits, see quantize_head.
    Integers sizes{};
    for (int64_t v = 0; v < vectors; v++) {
        const Integers size = reinterpret_cast<Integers>(read(v)) & 0x7fffffff;
        sizes = size > sizes ? size : sizes;
    }
    const int32_t largest = max_lane(sizes);
    if (largest >= 0x7f800000) return __builtin_nanf("");
    const float size = __builtin_bit_cast(float, largest);
    const float scale = size > 1e-30f ? size / MOST : 0.0f, inverse = size > 1e-30f ? MOST / size : 0.0f;
    for (int64_t v = 0; v < vectors; v++) {
        // After this addition the lowest bits hold the nearest integer, ties to even.
        const Floats shifted = read(v) * inverse + 12582912.0f;
        store(factors + v * WIDTH, factor_words(reinterpret_cast<Integers>(shifted) - 0x4b400000));
    }
    return scale;
}

// Products of ROWS rows of factors and VECTORS vectors of a panel.
//
// factors: [ROWS][steps][QUAD] words, rows `pitch` words apart.
// panel: [steps][VECTORS][WIDTH] quads, steps `stride` quads apart.
// use: called as use(row, vector, sums).
template <int ROWS, int VECTORS, class Use>
INLINE void multiply_quads(const int32_t* factors, int64_t pitch, const int32_t* panel, int64_t stride, int64_t steps,
                           const Use& use) {
    Integers sums[ROWS][VECTORS];
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; row++) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[row][v] = Integers{};
    }
#pragma GCC unroll 1
    for (int64_t step = 0; step < steps; step++) {
        Integers even[VECTORS], odd[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            const Integers quads = load(panel + step * stride + v * WIDTH);
            even[v] = even_numbers(quads), odd[v] = odd_numbers(quads);
        }
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++) {
            const int32_t* pairs = factors + row * pitch + step * QUAD;
            const Integers first = Integers{} + pairs[0], second = Integers{} + pairs[1];
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sums[row][v] = add_pairs(sums[row][v], first, even[v]);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sums[row][v] = add_pairs(sums[row][v], second, odd[v]);
        }
    }
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; row++) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) use(row, v, sums[row][v]);
    }
}

// Like `multiply_quads`, for any number of rows and vectors.
template <class Use>
void multiply_panel(const int32_t* factors, int64_t pitch, int64_t rows, const int32_t* panel, int64_t stride,
                    int64_t vectors, int64_t steps, const Use& use) {
    for (int64_t row = 0; row < rows; row += QUAD_ROWS) {
        for (int64_t v = 0; v < vectors; v += QUAD_VECTORS) {
            with_constant_rows<QUAD_ROWS>(std::min(QUAD_ROWS, rows - row), [&](auto count) {
                with_constant_rows<QUAD_VECTORS>(std::min(QUAD_VECTORS, vectors - v), [&](auto width) {
                    multiply_quads<count.value, width.value>(
                        factors + row * pitch, pitch, panel + v * WIDTH, stride, steps,
                        [&](int64_t i, int64_t j, Integers sums) { use(row + i, v + j, sums); });
                });
            });
        }
    }
}
