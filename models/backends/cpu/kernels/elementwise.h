// Elementwise operations: sums, products with numbers, xIELU, the activation of scaled numbers, and soft capping. All are
// computed in float32.
#pragma once

#include "activations.h"
#include "epilogue.h"
#include "numbers.h"
#include "vectors.h"

template <class T> void add_rows(const Sum& p, int64_t begin, int64_t end) {
    const T *x = static_cast<const T*>(p.x), *y = static_cast<const T*>(p.y);
    T* out = static_cast<T*>(p.out);
#pragma omp simd
    for (int64_t i = begin * p.width; i < end * p.width; i++) narrow(widen(x[i]) + widen(y[i]), out[i]);
}

template <class T> void scale_rows(const Scaling& p, int64_t begin, int64_t end) {
    const T* x = static_cast<const T*>(p.x);
    T* out = static_cast<T*>(p.out);
    const float factor = float(p.factor);
#pragma omp simd
    for (int64_t i = begin * p.width; i < end * p.width; i++) narrow(widen(x[i]) * factor, out[i]);
}

void scale(DType dtype, const Scaling& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? scale_rows<float>(p, begin, end) : scale_rows<bfloat16>(p, begin, end);
}

template <class T> void scale_each_row(const RowScaling& p, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        const T* x = static_cast<const T*>(p.x) + row * p.stride;
        T* out = static_cast<T*>(p.out) + row * p.width;
        const float factor = p.factors[row];
#pragma omp simd
        for (int64_t i = 0; i < p.width; i++) narrow(widen(x[i]) * factor, out[i]);
    }
}

void scale_by_row(DType dtype, const RowScaling& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? scale_each_row<float>(p, begin, end) : scale_each_row<bfloat16>(p, begin, end);
}

void add(DType dtype, const Sum& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? add_rows<float>(p, begin, end) : add_rows<bfloat16>(p, begin, end);
}

// Calls change(y) for panels begin..end-1 of p.x, and stores the result in p.out. y: [PANEL], float32, replaced in
// place; numbers after the end of a row are zero. Item i is panel i % panels_of(p.width) of row i / panels_of(p.width).
template <class T, class Parameters, class Change>
INLINE void for_panels(const Parameters& p, int64_t begin, int64_t end, const Change& change) {
    const int64_t panels = panels_of(p.width);
    for (int64_t item = begin; item < end; item++) {
        const int64_t column = item % panels * PANEL, count = std::min(PANEL, p.width - column);
        const int64_t first = item / panels * p.width + column;
        alignas(64) float y[PANEL] = {};
        for (int64_t i = 0; i < count; i++) y[i] = widen(static_cast<const T*>(p.x)[first + i]);
        change(y);
        for (int64_t i = 0; i < count; i++) narrow(y[i], static_cast<T*>(p.out)[first + i]);
    }
}

// xIELU: alpha_p x^2 above zero, alpha_n (e^min(x, eps) - 1 - x) below, and beta x for both signs. y: [PANEL], float32,
// replaced in place. Not inlined, so that the compiler rounds it the same way for every caller.
__attribute__((noinline)) void xielu_panel(const Xielu& p, float* y) {
    const float alpha_p = float(p.alpha_p), alpha_n = float(p.alpha_n), beta = float(p.beta), eps = float(p.eps);
#pragma omp simd
    for (int64_t i = 0; i < PANEL; i++) {
        const float x = y[i];
        const Exponential e = exponential(x > eps ? eps : x);
        const float below = alpha_n * ((e.scale - 1.0f) + e.scale * e.part - x);
        y[i] = (x > 0.0f ? alpha_p * x * x : below) + beta * x;
    }
}

template <class T> void xielu_panels(const Xielu& p, int64_t begin, int64_t end) {
    for_panels<T>(p, begin, end, [&](float* y) { xielu_panel(p, y); });
}

void xielu(DType dtype, const Xielu& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? xielu_panels<float>(p, begin, end) : xielu_panels<bfloat16>(p, begin, end);
}

template <class T> void scaled_activation_panels(const ScaledActivation& p, int64_t begin, int64_t end) {
    constexpr int LINE = PANEL / WIDTH;
    const float scale = static_cast<float>(p.scale);
    const int32_t activation = static_cast<int32_t>(p.activation);
    for_panels<T>(p, begin, end, [&](float* y) {
        for (int64_t i = 0; i < PANEL; i++) y[i] = rounded_to<T>(y[i] * scale);
        Vectors<LINE> x;
        for (int i = 0; i < LINE; i++) x.of[i] = load(y + i * WIDTH);
        x = activate<T>(activation, x);
        for (int i = 0; i < LINE; i++) store(y + i * WIDTH, x.of[i]);
    });
}

void scaled_activation(DType dtype, const ScaledActivation& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? scaled_activation_panels<float>(p, begin, end)
                     : scaled_activation_panels<bfloat16>(p, begin, end);
}

void soft_cap(DType, const SoftCap& p, int64_t begin, int64_t end) {
    const float cap = static_cast<float>(p.cap);
    for_panels<float>(p, begin, end, [&](float* y) {
        for (int64_t i = 0; i < PANEL; i += WIDTH) store(y + i, soft_capped(load(y + i), cap));
    });
}
