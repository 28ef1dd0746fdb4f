// RMS norm (Zhang and Sennrich 2019, arXiv:1910.07467): statistics in float32, scaled in the dtype of the input.
#include "common.h"

namespace {

template <class T> INLINE void normalise(const T* x, const T* weight, T* out, int64_t width, float eps) {
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; i++) squares += widen(x[i]) * widen(x[i]);
    const float factor = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        T rounded;
        narrow(widen(x[i]) * factor, rounded);
        narrow(widen(rounded) * widen(weight[i]), out[i]);
    }
}

FOR_EACH_CPU void rows_float32(const float* x, int64_t stride, const float* weight, float* out, int64_t begin,
                               int64_t end, int64_t width, float eps) {
    for (int64_t row = begin; row < end; row++) normalise(x + row * stride, weight, out + row * width, width, eps);
}

FOR_EACH_CPU void rows_bfloat16(const bfloat16* x, int64_t stride, const bfloat16* weight, bfloat16* out,
                                int64_t begin, int64_t end, int64_t width, float eps) {
    for (int64_t row = begin; row < end; row++) normalise(x + row * stride, weight, out + row * width, width, eps);
}

}  // namespace

// x: [rows, width], rows `stride` numbers apart. weight: [width]. out: [rows, width], contiguous.
EXPORT void triptych_rms_norm(int32_t dtype, const void* x, int64_t stride, const void* weight, void* out,
                              int64_t rows, int64_t width, float eps) {
    parallel(rows, std::max<int64_t>(1, 32768 / width), [&](int64_t begin, int64_t end) {
        if (dtype == FLOAT32) {
            rows_float32(static_cast<const float*>(x), stride, static_cast<const float*>(weight),
                         static_cast<float*>(out), begin, end, width, eps);
        } else {
            rows_bfloat16(static_cast<const bfloat16*>(x), stride, static_cast<const bfloat16*>(weight),
                          static_cast<bfloat16*>(out), begin, end, width, eps);
        }
    });
}
