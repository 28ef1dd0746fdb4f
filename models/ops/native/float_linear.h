// Linear with weights of float32 or bfloat16, in panels or as they lie; sums are float32. What lies in rows is put into
// panels on the way, one at a time: so the table of embeddings that an output head is tied to is not kept twice. Turning
// a panel takes as long as multiplying ten rows by it, and less than reading it from memory.

template <class T> struct Lane {
    using Left = float;
};

#ifdef BF16_PRODUCTS
template <> struct Lane<bfloat16> {
    using Left = bfloat16;
};
#endif

// Rows as tiles read them: where they lie, or a copy that is widened, or padded with zeros.
template <class T> class Rows {
public:
    using Left = typename Lane<T>::Left;

    Rows(const void* x, int64_t stride, int64_t width, int64_t padded)
        : x_(static_cast<const T*>(x)), stride_(stride), width_(width), padded_(padded) {}

    int64_t stride() const { return copied() ? padded_ : stride_; }

    // Row `first` of a block, `stride()` numbers before the next one.
    INLINE const Left* block(int64_t first, int64_t last) {
        if constexpr (std::is_same<T, Left>::value) {
            if (!copied()) return x_ + first * stride_;
        }
        if (held_ != first) {
            copy_.assign((last - first) * padded_, Left{});
            for (int64_t row = first; row < last; row++) {
                Left* line = &copy_[(row - first) * padded_];
                for (int64_t k = 0; k < width_; k++) keep(x_[row * stride_ + k], line[k]);
            }
            held_ = first;
        }
        return copy_.data();
    }

private:
    bool copied() const { return !std::is_same<T, Left>::value || width_ != padded_; }
    static INLINE void keep(T x, float& out) { out = widen(x); }
    static INLINE void keep(T x, bfloat16& out) { out = x; }

    const T* x_;
    int64_t stride_, width_, padded_, held_ = -1;
    std::vector<Left> copy_;
};

template <int ROWS>
void multiply_tile(const float* x, int64_t stride, int64_t width, const float* panel, Ahead ahead, float* sums) {
    for (int64_t first = 0; first < PANEL / WIDTH; first += SPAN) {
        Floats sum[ROWS][SPAN] = {};
        for (int64_t k = 0; k < width; k++) {
            Floats weights[SPAN];
            for (int64_t v = 0; v < SPAN; v++) weights[v] = load(panel + k * PANEL + (first + v) * WIDTH);
            ahead.fetch();
#pragma GCC unroll 16
            for (int64_t row = 0; row < ROWS; row++) {
                const float left = x[row * stride + k];
                for (int64_t v = 0; v < SPAN; v++) sum[row][v] += weights[v] * left;
            }
        }
#pragma GCC unroll 16
        for (int64_t row = 0; row < ROWS; row++) {
            for (int64_t v = 0; v < SPAN; v++) store(sums + row * PANEL + (first + v) * WIDTH, sum[row][v]);
        }
    }
}

#ifdef BF16_PRODUCTS
template <int ROWS>
void multiply_tile(const bfloat16* x, int64_t stride, int64_t width, const bfloat16* panel, Ahead ahead, float* sums) {
    __m512 left[ROWS], right[ROWS];
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) left[row] = right[row] = _mm512_setzero_ps();
    for (int64_t k = 0; k < width; k += 2) {
        const __m512bh first = (__m512bh)_mm512_loadu_si512(panel + k * PANEL);
        const __m512bh second = (__m512bh)_mm512_loadu_si512(panel + k * PANEL + PANEL);
        ahead.fetch();
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
            int32_t pair;
            std::memcpy(&pair, x + row * stride + k, sizeof pair);
            const __m512bh spread = (__m512bh)_mm512_set1_epi32(pair);
            left[row] = _mm512_dpbf16_ps(left[row], spread, first);
            right[row] = _mm512_dpbf16_ps(right[row], spread, second);
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) {
        _mm512_storeu_ps(sums + row * PANEL, left[row]);
        _mm512_storeu_ps(sums + row * PANEL + WIDTH, right[row]);
    }
}
#else
template <int ROWS>
void multiply_tile(const float* x, int64_t stride, int64_t width, const bfloat16* panel, Ahead ahead, float* sums) {
    for (int64_t first = 0; first < PANEL / WIDTH; first += SPAN) {
        Floats sum[ROWS][SPAN] = {};
        for (int64_t k = 0; k < width; k += 2) {
            Floats even[SPAN], odd[SPAN];
            for (int64_t v = 0; v < SPAN; v++) {
                const Words pairs = load_words(panel + k * PANEL + 2 * (first + v) * WIDTH);
                even[v] = reinterpret_cast<Floats>(pairs << 16);
                odd[v] = reinterpret_cast<Floats>(pairs & 0xffff0000u);
            }
            ahead.fetch();
#pragma GCC unroll 16
            for (int64_t row = 0; row < ROWS; row++) {
                const float left = x[row * stride + k], right = x[row * stride + k + 1];
                for (int64_t v = 0; v < SPAN; v++) sum[row][v] += even[v] * left;
                for (int64_t v = 0; v < SPAN; v++) sum[row][v] += odd[v] * right;
            }
        }
#pragma GCC unroll 16
        for (int64_t row = 0; row < ROWS; row++) {
            for (int64_t v = 0; v < SPAN; v++) store(sums + row * PANEL + (first + v) * WIDTH, sum[row][v]);
        }
    }
}
#endif

template <class T> void multiply_items(const FloatLinear& p, int64_t begin, int64_t end) {
    constexpr int64_t pair = sizeof(float) / sizeof(T), passes = PANEL / WIDTH / SPAN;
    const int64_t padded = (p.width + pair - 1) / pair * pair, columns = p.finish.columns;
    Rows<T> x(p.x, p.stride, p.width, padded);
    const int64_t stride = x.stride();
    alignas(64) float sums[TILE_ROWS * PANEL];
    std::vector<T> turned(p.packed ? 0 : PANEL * padded);
    int64_t held = -1;
    for_items(p.rows, p.blocks, columns, begin, end, [&](int64_t first, int64_t last, int64_t panel) {
        const auto* rows_of_block = x.block(first, last);
        const T* weights = static_cast<const T*>(p.weight) + panel * PANEL * (p.packed ? padded : p.width);
        const char* next = reinterpret_cast<const char*>(weights + PANEL * (p.packed ? padded : p.width));
        if (!p.packed) {
            if (held != panel) pack_panel(static_cast<const T*>(p.weight), columns, p.width, panel, turned.data());
            held = panel;
            weights = turned.data();
        }
        for_tiles(first, last, TILE_ROWS, [&](int64_t row, int64_t rows, int64_t tile, int64_t tiles) {
            const int64_t step = 128 / passes / tiles;
            const Ahead ahead{next + tile * (padded / pair) * passes * step, step};
            with_rows(rows, [&](auto count) {
                multiply_tile<count.value>(rows_of_block + (row - first) * stride, stride, padded, weights, ahead, sums);
            });
            finish<T>(sums, p.finish, row, rows, panel * PANEL);
        });
    });
}

// Items are panels of blocks of rows, see tiles.h.
void float_linear(DType dtype, const FloatLinear& p, int64_t begin, int64_t end) {
    if (dtype == FLOAT32) {
        multiply_items<float>(p, begin, end);
    } else {
        multiply_items<bfloat16>(p, begin, end);
    }
}
