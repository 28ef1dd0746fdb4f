// What follows a product, while it is at hand: bias, activation, another factor, a residual. Each step rounds to the
// dtype, so that the result has the bits that the steps have one by one.

template <class T> INLINE void round_panel(float* y) {
    if constexpr (std::is_same<T, bfloat16>::value) {
#pragma omp simd
        for (int64_t i = 0; i < PANEL; i++) y[i] = rounded(y[i]);
    }
}

template <class T> INLINE void finish_columns(float* y, const Finish& f, int64_t row, int64_t column, int64_t count) {
    if (f.bias != nullptr) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) y[i] += f.bias[column + i];
    }
    if (f.activation != NONE) {
        round_panel<T>(y);
        activate_panel(f.activation, y);
    }
    if (f.times != nullptr) {
        round_panel<T>(y);
        const T* times = static_cast<const T*>(f.times) + row * f.times_stride + column;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) y[i] *= widen(times[i]);
        // Not one operation with the sum below.
        asm volatile("" : : "r"(y) : "memory");
    }
    T* out = static_cast<T*>(f.out) + row * f.out_stride + column;
    if (f.residual != nullptr) {
        round_panel<T>(y);
        const T* residual = static_cast<const T*>(f.residual) + row * f.residual_stride + column;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) narrow(y[i] + widen(residual[i]), out[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) narrow(y[i], out[i]);
    }
}

// sums: [rows][PANEL], used up; written to rows `row`... and columns `column`... of the output.
template <class T> INLINE void finish(float* sums, const Finish& f, int64_t row, int64_t rows, int64_t column) {
    const int64_t count = f.columns - column;
    for (int64_t i = 0; i < rows; i++) {
        if (count >= PANEL) {
            finish_columns<T>(sums + i * PANEL, f, row + i, column, PANEL);
        } else {
            finish_columns<T>(sums + i * PANEL, f, row + i, column, count);
        }
    }
}
