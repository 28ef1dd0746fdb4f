// Exact sums of products of bytes: four weights of each channel and four signed activations, -127 to 127, per 32-bit lane.
#pragma once

#include "vectors.h"

#ifndef VNNI
// sum + products of signed weights. The processor multiplies unsigned by signed bytes, so the signs of the weights go to
// the activations. Sums of two products are at most 2 * 128 * 127, which fits in 16 bits.
INLINE Integers add_signed_products(Integers sum, Words weights, Words activations) {
#if defined(AVX512)
    const __m512i w = (__m512i)weights, x = (__m512i)activations;
    const __m512i turned = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
    return sum + (Integers)_mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_abs_epi8(w), turned), _mm512_set1_epi16(1));
#elif defined(AVX2)
    const __m256i w = (__m256i)weights, turned = _mm256_sign_epi8((__m256i)activations, w);
    return sum + (Integers)_mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), turned), _mm256_set1_epi16(1));
#else
    for (int i = 0; i < 32; i += 8) {
        const Integers w = reinterpret_cast<Integers>(weights) << (24 - i) >> 24;
        sum += w * (reinterpret_cast<Integers>(activations) << (24 - i) >> 24);
    }
    return sum;
#endif
}
#endif

// How products of codes from 0 to LARGEST are added.
//
// SHIFT: number that `add` subtracts from each code. QUADS: products that `add` may add to one vector before `widened`
// gives its sums in int32; 0 for any number, where `widened` changes nothing.
template <int LARGEST> struct CodeProducts {
#ifdef VNNI
    static constexpr int SHIFT = 0, QUADS = 0;
#elif defined(AVX512) || defined(AVX2)
    static constexpr int SHIFT = LARGEST < 128 ? 0 : 128, QUADS = LARGEST < 128 ? 32767 / (2 * 127 * LARGEST) : 0;
#else
    static constexpr int SHIFT = 128, QUADS = 0;
#endif

    static INLINE Integers add(Integers sum, Words codes, int32_t activations) {
#ifdef VNNI
        return (Integers)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, _mm512_set1_epi32(activations));
#else
        if constexpr (SHIFT != 0) {
            return add_signed_products(sum, codes ^ 0x80808080u, Words{} + static_cast<uint32_t>(activations));
        }
#if defined(AVX512)
        const __m512i products = _mm512_maddubs_epi16((__m512i)codes, _mm512_set1_epi32(activations));
        return (Integers)_mm512_add_epi16((__m512i)sum, products);
#elif defined(AVX2)
        const __m256i products = _mm256_maddubs_epi16((__m256i)codes, _mm256_set1_epi32(activations));
        return (Integers)_mm256_add_epi16((__m256i)sum, products);
#endif
#endif
    }

    static INLINE Integers widened(Integers sum) {
        if constexpr (QUADS == 0) return sum;
#if defined(AVX512)
        return (Integers)_mm512_madd_epi16((__m512i)sum, _mm512_set1_epi16(1));
#elif defined(AVX2)
        return (Integers)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1));
#endif
    }
};
