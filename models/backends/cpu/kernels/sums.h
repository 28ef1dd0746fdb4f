// Elementwise sum of two tensors, and product of a tensor and a number, or of each row and its number, in float32.
#pragma once

#include "numbers.h"

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
