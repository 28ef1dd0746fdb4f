// What follows a product, while it is at hand: bias, activation, another factor, a residual. Each step rounds to the
// dtype that is written, so that the result has the bits that the steps have one by one.

// As numbers of that dtype are.
template <class T> INLINE Floats rounded_to(Floats y) {
    if constexpr (std::is_same<T, float>::value) return y;
    alignas(64) T rounded[WIDTH];
    store(rounded, y);
    return load(rounded);
}

// Whole panels of ROWS rows, from sums: [ROWS][PANEL].
template <class T, int ROWS> INLINE void finish_rows(const float* sums, const Finish& f, int64_t row, int64_t column) {
    constexpr int LINE = PANEL / WIDTH;
    Several<ROWS * LINE> y;
    // body(vector, its row, its columns)
    const auto all = [&](const auto& body) {
#pragma GCC unroll 8
        for (int i = 0; i < ROWS * LINE; i++) body(y.of[i], row + i / LINE, column + i % LINE * WIDTH);
    };
    const auto beside = [](const void* side, int64_t stride, int64_t row, int64_t column) {
        return load(static_cast<const T*>(side) + row * stride + column);
    };
    for (int i = 0; i < ROWS * LINE; i++) y.of[i] = load(sums + i * WIDTH);
    if (f.bias != nullptr) all([&](Floats& y, int64_t, int64_t column) { y += load(f.bias + column); });
    if (f.activation != NONE) y = activated<T>(f.activation, each(rounded_to<T>, y));
    if (f.times != nullptr) {
        all([&](Floats& y, int64_t row, int64_t column) {
            y = rounded_to<T>(y) * beside(f.times, f.times_stride, row, column);
        });
    }
    if (f.residual != nullptr) {
        all([&](Floats& y, int64_t row, int64_t column) {
            y = rounded_to<T>(y);
            // Not one operation with a product before it.
            if constexpr (std::is_same<T, float>::value) asm volatile("" : "+m"(y));
            y += beside(f.residual, f.residual_stride, row, column);
        });
    }
    all([&](Floats& y, int64_t row, int64_t column) { store(static_cast<T*>(f.out) + row * f.out_stride + column, y); });
}

// The first `count` columns of a panel, with zeros for those that are not there.
template <class T> void finish_part(const float* sums, const Finish& f, int64_t row, int64_t column, int64_t count) {
    float bias[PANEL] = {};
    T times[PANEL] = {}, residual[PANEL] = {}, out[PANEL];
    Finish part = f;
    const auto copy = [&](auto& from, const auto* line, auto* to) {
        if (from == nullptr) return;
        std::copy(line, line + count, to);
        from = to;
    };
    copy(part.bias, f.bias + column, bias);
    copy(part.times, static_cast<const T*>(f.times) + row * f.times_stride + column, times);
    copy(part.residual, static_cast<const T*>(f.residual) + row * f.residual_stride + column, residual);
    part.out = out;
    finish_rows<T, 1>(sums, part, 0, 0);
    std::copy(out, out + count, static_cast<T*>(f.out) + row * f.out_stride + column);
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

// sums: [rows][PANEL]; written to rows `row`... and columns `column`... of the output.
template <class T> INLINE void finish(const float* sums, const Finish& f, int64_t row, int64_t rows, int64_t column) {
    constexpr int TOGETHER = REGISTERS < 32 ? 1 : 2;
    const int64_t count = f.columns - column;
    int64_t i = 0;
    for (; count >= PANEL && i + TOGETHER <= rows; i += TOGETHER) {
        finish_rows<T, TOGETHER>(sums + i * PANEL, f, row + i, column);
    }
    for (; i < rows; i++) {
        if (count >= PANEL) {
            finish_rows<T, 1>(sums + i * PANEL, f, row + i, column);
        } else {
            finish_part<T>(sums + i * PANEL, f, row + i, column, count);
        }
    }
}
