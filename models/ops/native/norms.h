// RMS norm (Zhang and Sennrich 2019, arXiv:1910.07467): statistics in float32, scaled in the dtype of the input.

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

template <class T>
void rms_norm_rows(const T* x, int64_t stride, const T* weight, T* out, int64_t width, float eps, int64_t begin,
                   int64_t end) {
    for (int64_t row = begin; row < end; row++) normalise(x + row * stride, weight, out + row * width, width, eps);
}

// x: [rows, width], rows `stride` numbers apart. weight: [width]. out: [rows, width], contiguous.
void rms_norm(DType dtype, const void* x, int64_t stride, const void* weight, void* out, int64_t width, float eps,
              int64_t begin, int64_t end) {
    if (dtype == FLOAT32) {
        rms_norm_rows(static_cast<const float*>(x), stride, static_cast<const float*>(weight),
                      static_cast<float*>(out), width, eps, begin, end);
    } else {
        rms_norm_rows(static_cast<const bfloat16*>(x), stride, static_cast<const bfloat16*>(weight),
                      static_cast<bfloat16*>(out), width, eps, begin, end);
    }
}
