// RMS norm (Zhang and Sennrich 2019, arXiv:1910.07467): statistics in float32, scaling in the dtype of the input.
// Layer norm (Ba et al. 2016, arXiv:1607.06450): float32 throughout; the mean first, then the variance around it.
#pragma once

#include "epilogue.h"
#include "numbers.h"
#include "vectors.h"

// Sum of term(number) over a row. The vectors of sums are independent. With a single one, each addition could start only
// after the one before.
template <class T, class Term> INLINE float sum_of(const T* x, int64_t width, const Term& term) {
    constexpr int64_t SUMS = 4;
    Floats sums[SUMS] = {};
    int64_t i = 0;
    for (; i + SUMS * WIDTH <= width; i += SUMS * WIDTH) {
        for (int64_t v = 0; v < SUMS; v++) sums[v] += term(load(x + i + v * WIDTH));
    }
    for (; i + WIDTH <= width; i += WIDTH) sums[0] += term(load(x + i));
    float rest = 0.0f;
    for (; i < width; i++) rest += term(widen(x[i]));
    for (int64_t v = 1; v < SUMS; v++) sums[0] += sums[v];
    return sum_lanes(sums[0]) + rest;
}

// Stores scaled(number, weight) + bias for each number of a row. bias: may be null. The bfloat16 instruction of vectors
// stores zero for a subnormal result; the last width % WIDTH numbers keep it.
template <class T, class Scaled>
INLINE void store_scaled(const T* x, const T* weight, const T* bias, T* out, int64_t width, const Scaled& scaled) {
    int64_t i = 0;
    for (; i + WIDTH <= width; i += WIDTH) {
        const Floats y = scaled(load(x + i), load(weight + i));
        store(out + i, bias == nullptr ? y : y + load(bias + i));
    }
    for (; i < width; i++) {
        const float y = scaled(widen(x[i]), widen(weight[i]));
        narrow(bias == nullptr ? y : y + widen(bias[i]), out[i]);
    }
}

// 1 / root mean square.
template <class T> INLINE float inverse_rms(const T* x, int64_t width, float eps) {
    const float squares = sum_of(x, width, [](auto x) ALWAYS_INLINE { return x * x; });
    return 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
}

template <class T> INLINE void rms_norm_row(const T* x, const T* weight, T* out, int64_t width, float eps) {
    const float factor = inverse_rms(x, width, eps);
    const T* no_bias = nullptr;
    store_scaled(x, weight, no_bias, out, width, [&](auto x, auto weight) ALWAYS_INLINE {
        return rounded_to<T>(x * factor) * weight;
    });
}

// RMS norm whose weight is 1 + the stored weight, in float32 until the result (Gemma Team 2024, arXiv:2403.08295).
template <class T> INLINE void rms_norm_from_one_row(const T* x, const T* weight, T* out, int64_t width, float eps) {
    const float factor = inverse_rms(x, width, eps);
    const T* no_bias = nullptr;
    store_scaled(x, weight, no_bias, out, width, [&](auto x, auto weight) ALWAYS_INLINE {
        return x * factor * (1.0f + weight);
    });
}

template <class T>
INLINE void layer_norm_row(const T* x, const T* weight, const T* bias, T* out, int64_t width, float eps) {
    const float mean = sum_of(x, width, [](auto x) ALWAYS_INLINE { return x; }) / static_cast<float>(width);
    const float squares = sum_of(x, width, [&](auto x) ALWAYS_INLINE { return (x - mean) * (x - mean); });
    const float factor = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
    store_scaled(x, weight, bias, out, width, [&](auto x, auto weight) ALWAYS_INLINE {
        return (x - mean) * factor * weight;
    });
}

// Calls norm_row(x, weight, bias, out, width, eps) for every part of rows begin..end-1.
template <class T, class RowNorm>
INLINE void for_parts(const Norm& p, int64_t begin, int64_t end, const RowNorm& norm_row) {
    for (int64_t i = begin * p.parts; i < end * p.parts; i++) {
        norm_row(static_cast<const T*>(p.x) + i / p.parts * p.stride + i % p.parts * p.width,
            static_cast<const T*>(p.weight), static_cast<const T*>(p.bias), static_cast<T*>(p.out) + i * p.width,
            p.width, static_cast<float>(p.eps));
    }
}

template <class T> void rms_norm_rows(const Norm& p, int64_t begin, int64_t end) {
    for_parts<T>(p, begin, end, [](const T* x, const T* weight, const T*, T* out, int64_t width, float eps) {
        rms_norm_row(x, weight, out, width, eps);
    });
}

template <class T> void rms_norm_from_one_rows(const Norm& p, int64_t begin, int64_t end) {
    for_parts<T>(p, begin, end, [](const T* x, const T* weight, const T*, T* out, int64_t width, float eps) {
        rms_norm_from_one_row(x, weight, out, width, eps);
    });
}

template <class T> void layer_norm_rows(const Norm& p, int64_t begin, int64_t end) {
    for_parts<T>(p, begin, end, [](const T* x, const T* weight, const T* bias, T* out, int64_t width, float eps) {
        layer_norm_row(x, weight, bias, out, width, eps);
    });
}

void rms_norm(DType dtype, const Norm& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? rms_norm_rows<float>(p, begin, end) : rms_norm_rows<bfloat16>(p, begin, end);
}

void rms_norm_from_one(DType dtype, const Norm& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? rms_norm_from_one_rows<float>(p, begin, end) : rms_norm_from_one_rows<bfloat16>(p, begin, end);
}

void layer_norm(DType dtype, const Norm& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? layer_norm_rows<float>(p, begin, end) : layer_norm_rows<bfloat16>(p, begin, end);
}
