// RMS norm (Zhang and Sennrich 2019, arXiv:1910.07467): statistics in float32, scaling in the dtype of the input.
// Layer norm (Ba et al. 2016, arXiv:1607.06450): float32 throughout; the mean first, then the variance around it.

// 1 / root mean square.
template <class T> INLINE float inverse_rms(const T* x, int64_t width, float eps) {
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; i++) squares += widen(x[i]) * widen(x[i]);
    return 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
}

template <class T> INLINE void rms_norm_row(const T* x, const T* weight, T* out, int64_t width, float eps) {
    const float factor = inverse_rms(x, width, eps);
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        T rounded;
        narrow(widen(x[i]) * factor, rounded);
        narrow(widen(rounded) * widen(weight[i]), out[i]);
    }
}

// RMS norm whose weight is 1 + the stored weight, in float32 until the result (Gemma Team 2024, arXiv:2403.08295).
template <class T> INLINE void rms_norm_from_one_row(const T* x, const T* weight, T* out, int64_t width, float eps) {
    const float factor = inverse_rms(x, width, eps);
#pragma omp simd
    for (int64_t i = 0; i < width; i++) narrow(widen(x[i]) * factor * (1.0f + widen(weight[i])), out[i]);
}

template <class T>
INLINE void layer_norm_row(const T* x, const T* weight, const T* bias, T* out, int64_t width, float eps) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) sum += widen(x[i]);
    const float mean = sum / static_cast<float>(width);
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; i++) squares += (widen(x[i]) - mean) * (widen(x[i]) - mean);
    const float factor = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
    if (bias != nullptr) {
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            narrow((widen(x[i]) - mean) * factor * widen(weight[i]) + widen(bias[i]), out[i]);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < width; i++) narrow((widen(x[i]) - mean) * factor * widen(weight[i]), out[i]);
    }
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
