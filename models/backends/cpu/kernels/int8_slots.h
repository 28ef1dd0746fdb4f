// Keys and values of an int8 cache: each head of a slot has its own scale. A slot is written once, so its numbers do not
// depend on other slots, on the batch or on the chunk that it came in.
#pragma once

#include "numbers.h"

// Rounds one head to int8. Returns the scale; NaN if a number is not finite, so that scores and outputs are not finite
// either.
template <class T> INLINE bfloat16 quantize_head(const T* x, int64_t dim, int8_t* out) {
    // Absolute values, compared by their bits: the order is the same, and NaN and infinity come out largest.
    int32_t largest = 0;
    for (int64_t i = 0; i < dim; i++) {
        largest = std::max(largest, __builtin_bit_cast(int32_t, widen(x[i])) & 0x7fffffff);
    }
    bfloat16 scale{0x7fc0};
    if (largest >= 0x7f800000) {
        std::memset(out, 0, dim);
        return scale;
    }
    // Smaller heads become zeros: 1 / scale would be infinite.
    const float size = __builtin_bit_cast(float, largest);
    narrow(size > 1e-30f ? size / 127.0f : 0.0f, scale);
    // The scale has a relative error of at most 2^-8, so that no rounded number is above 127.
    const float inverse = scale.bits ? 1.0f / widen(scale) : 0.0f;
#pragma omp simd
    for (int64_t i = 0; i < dim; i++) {
        out[i] = static_cast<int8_t>(static_cast<int32_t>(std::nearbyint(widen(x[i]) * inverse)));
    }
    return scale;
}

template <class T>
void quantize_token(const Int8SlotWrite& p, const T* heads, int64_t slot, int8_t* cache, bfloat16* scales) {
    bfloat16* first = scales + slot / p.block_size * p.kv_heads * p.block_size + slot % p.block_size;
    for (int64_t head = 0; head < p.kv_heads; head++) {
        first[head * p.block_size] =
            quantize_head(heads + head * p.head_dim, p.head_dim, cache + (slot * p.kv_heads + head) * p.head_dim);
    }
}

template <class T> void write_int8_tokens(const Int8SlotWrite& p, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        quantize_token(p, static_cast<const T*>(p.key) + i * p.key_stride, p.slots[i], p.key_cache, p.key_scales);
        quantize_token(p, static_cast<const T*>(p.value) + i * p.value_stride, p.slots[i], p.value_cache,
                       p.value_scales);
    }
}

void write_int8_slots(DType dtype, const Int8SlotWrite& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? write_int8_tokens<float>(p, begin, end) : write_int8_tokens<bfloat16>(p, begin, end);
}
