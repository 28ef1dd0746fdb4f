// Linear with weights of float32 or bfloat16, in panels or as they lie; sums are float32. What lies in rows is put into
// panels on the way, one at a time. Turning one takes as long as multiplying ten rows by it. What is written has
// the dtype that is read, or is the sums as they are.

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

// sum + weights * x for a unit of k: one number of float32, two of bfloat16.
template <class T, class Left> INLINE Sums add_unit(Sums sum, Units weights, const Left* x) {
    if constexpr (std::is_same<T, float>::value) {
        return sum + reinterpret_cast<Sums>(weights) * x[0];
#ifdef BF16_PRODUCTS
    } else {
        int32_t pair;
        std::memcpy(&pair, x, sizeof pair);
        return (Sums)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)weights);
    }
#else
    } else {
        sum += reinterpret_cast<Sums>(weights << 16) * x[0];
        return sum + reinterpret_cast<Sums>(weights & 0xffff0000u) * x[1];
    }
#endif
}

// sums[row][column] of a panel, for rows `stride` numbers apart.
template <class T, int ROWS, class Left>
void multiply_tile(const Left* x, int64_t stride, int64_t units, const T* panel, Ahead ahead, float* sums) {
    constexpr int64_t group = sizeof(uint32_t) / sizeof(T);
    for (int64_t first = 0; first < PANEL; first += COLUMNS) {
        Sums sum[ROWS][SPAN] = {};
        for (int64_t unit = 0; unit < units; unit++) {
            Units weights[SPAN];
            for (int v = 0; v < SPAN; v++) {
                const T* from = panel + (unit * PANEL + first + v * LANES) * group;
                weights[v] = *reinterpret_cast<const UnalignedUnits*>(from);
            }
            ahead.fetch<ROWS>();
#pragma GCC unroll 16
            for (int row = 0; row < ROWS; row++) {
                for (int v = 0; v < SPAN; v++) {
                    sum[row][v] = add_unit<T>(sum[row][v], weights[v], x + row * stride + unit * group);
                }
            }
        }
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
            for (int v = 0; v < SPAN; v++) {
                *reinterpret_cast<UnalignedSums*>(sums + row * PANEL + first + v * LANES) = sum[row][v];
            }
        }
    }
}

template <class T, class Out> void multiply_items(const FloatLinear& p, int64_t begin, int64_t end) {
    constexpr int64_t group = sizeof(uint32_t) / sizeof(T), passes = PANEL / COLUMNS;
    const int64_t units = (p.width + group - 1) / group, columns = p.finish.columns;
    const int64_t width = p.packed ? units * group : p.width;
    Rows<T> x(p.x, p.stride, p.width, units * group);
    const int64_t stride = x.stride();
    alignas(64) float sums[TILE_ROWS * PANEL];
    std::vector<T> turned;
    int64_t held = -1;
    for_items(p.rows, p.blocks, columns, begin, end, [&](int64_t first, int64_t last, int64_t panel) {
        const auto* rows_of_block = x.block(first, last);
        const T* weights = static_cast<const T*>(p.weight) + panel * PANEL * width;
        const T* read = weights;
        if (!p.packed) {
            turned.resize(PANEL * units * group);
            if (held != panel) pack_panel(static_cast<const T*>(p.weight), columns, p.width, panel, turned.data());
            held = panel;
            weights = turned.data();
        }
        for_tiles(first, last, TILE_ROWS, [&](int64_t row, int64_t rows, int64_t tile, int64_t tiles) {
            const auto ahead = Ahead::of(read, PANEL * width * sizeof(T), units * passes, rows, tile, tiles);
            fetch_finish<Out>(p.finish, row, rows, panel * PANEL);
            with_rows(rows, [&](auto count) {
                multiply_tile<T, count.value>(rows_of_block + (row - first) * stride, stride, units, weights, ahead,
                                              sums);
            });
            finish<Out>(sums, p.finish, row, rows, panel * PANEL);
        });
    });
}

// Items are panels of blocks of rows, see tiles.h.
void float_linear(DType dtype, const FloatLinear& p, int64_t begin, int64_t end) {
    if (dtype == FLOAT32) {
        multiply_items<float, float>(p, begin, end);
    } else if (p.writes == FLOAT32) {
        multiply_items<bfloat16, float>(p, begin, end);
    } else {
        multiply_items<bfloat16, bfloat16>(p, begin, end);
    }
}
