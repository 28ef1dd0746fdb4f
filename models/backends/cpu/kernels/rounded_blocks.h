// Activations rounded to int8 in blocks with a scale each, for products with group-wise quantized weights.
#pragma once

#include "numbers.h"

// Scale of a block of activations, and the sums of the first and of the second half of its rounded values.
struct RoundedBlock {
    float scale;
    int16_t sums[2];
};

template <int ROUNDED, class T>
INLINE void quantize_block(const T* x, int64_t count, int8_t* out, RoundedBlock& block) {
    alignas(64) float numbers[ROUNDED] = {};
    for (int64_t i = 0; i < count; i++) numbers[i] = widen(x[i]);
    // The same as in `quantize_row` of int8_linear.h.
    int32_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (int i = 0; i < ROUNDED; i++) {
        largest = std::max(largest, __builtin_bit_cast(int32_t, numbers[i]) & 0x7fffffff);
    }
    if (largest >= 0x7f800000) {
        std::memset(out, 0, ROUNDED);
        block = {__builtin_nanf(""), {0, 0}};
        return;
    }
    const float size = __builtin_bit_cast(float, largest), scale = size > 1e-36f ? size / 127.0f : 1.0f;
    const float inverse = 1.0f / scale;
    int32_t rounded[ROUNDED];
#pragma omp simd
    for (int i = 0; i < ROUNDED; i++) rounded[i] = static_cast<int32_t>(std::nearbyint(numbers[i] * inverse));
#pragma omp simd
    for (int i = 0; i < ROUNDED; i++) out[i] = static_cast<int8_t>(rounded[i]);
    int32_t sums[2] = {};
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < ROUNDED / 2; i++) sums[half] += rounded[half * ROUNDED / 2 + i];
    }
    block = {scale, {static_cast<int16_t>(sums[0]), static_cast<int16_t>(sums[1])}};
}

template <int ROUNDED, class T> void quantize_row_blocks(const BlockQuantization& p, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        const T* x = static_cast<const T*>(p.x) + row * p.stride;
        auto* out = reinterpret_cast<int8_t*>(p.out + row * p.row_bytes);
        auto* blocks = reinterpret_cast<RoundedBlock*>(p.out + row * p.row_bytes + p.padded);
        for (int64_t k = 0; k < p.padded; k += ROUNDED) {
            const int64_t count = std::max<int64_t>(0, std::min<int64_t>(ROUNDED, p.width - k));
            if (count == ROUNDED) {
                quantize_block<ROUNDED>(x + k, ROUNDED, out + k, blocks[k / ROUNDED]);
            } else {
                quantize_block<ROUNDED>(x + k, count, out + k, blocks[k / ROUNDED]);
            }
        }
    }
}

template <class T> void quantize_rows_in_blocks(const BlockQuantization& p, int64_t begin, int64_t end) {
    switch (p.rounded) {
    case 128: return quantize_row_blocks<128, T>(p, begin, end);
    case 64: return quantize_row_blocks<64, T>(p, begin, end);
    default: return quantize_row_blocks<MIN_ROUNDED, T>(p, begin, end);
    }
}

void quantize_blocks(DType dtype, const BlockQuantization& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? quantize_rows_in_blocks<float>(p, begin, end) : quantize_rows_in_blocks<bfloat16>(p, begin, end);
}
