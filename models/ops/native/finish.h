// What follows a product, while it is at hand: bias, activation, another factor, a residual. Each step rounds to the
// dtype that is written, so that the result has the bits that the steps have one by one.

template <class T> INLINE void round_panel(float* y) {
    if constexpr (std::is_same<T, bfloat16>::value) {
        alignas(64) bfloat16 rounded[PANEL];
        for (int64_t i = 0; i < PANEL; i += WIDTH) {
            store(rounded + i, load(y + i));
            store(y + i, load(rounded + i));
        }
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
    if (f.residual != nullptr) {
        round_panel<T>(y);
        const T* residual = static_cast<const T*>(f.residual) + row * f.residual_stride + column;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) y[i] += widen(residual[i]);
    }
    T* out = static_cast<T*>(f.out) + row * f.out_stride + column;
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) store(out + i, load(y + i));
    for (; i < count; i++) narrow(y[i], out[i]);
}

// Tells the memory what `finish` will read and write: another thread may have it, and rows are far apart.
template <class T> INLINE void fetch_finish(const Finish& f, int64_t row, int64_t rows, int64_t column) {
    const auto fetch = [&](const void* side, int64_t stride, auto write) {
        const char* line = static_cast<const char*>(side) + (row * stride + column) * int64_t{sizeof(T)};
        for (int64_t i = 0; i < rows; i++, line += stride * int64_t{sizeof(T)}) {
            for (int64_t byte = 0; byte < PANEL * int64_t{sizeof(T)}; byte += 64) __builtin_prefetch(line + byte, write.value);
        }
    };
    if (f.times != nullptr) fetch(f.times, f.times_stride, std::false_type{});
    if (f.residual != nullptr) fetch(f.residual, f.residual_stride, std::false_type{});
    fetch(f.out, f.out_stride, std::true_type{});
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
