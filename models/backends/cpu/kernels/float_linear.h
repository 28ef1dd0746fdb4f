// Linear with float32 or bfloat16 weights and float32 sums. The output has the dtype of the input, or float32.
//
// Weights are in panels (see panels.h), or in their original layout. In the original layout each panel is repacked
// before it is multiplied, which takes as long as multiplying ten rows by it with vector instructions.
#pragma once

#include "amx.h"
#include "epilogue.h"
#include "numbers.h"
#include "panels.h"
#include "tiles.h"
#include "vectors.h"

// Type of an input number in the products: float32, or bfloat16 if the processor has an instruction for it.
template <class T> struct LeftOperand {
    using Type = float;
};

#ifdef BF16_PRODUCTS
template <> struct LeftOperand<bfloat16> {
    using Type = bfloat16;
};
#endif

// Input rows for the tile kernels: in place, or copied if they must be widened or padded with zeros.
template <class T> class InputRows {
public:
    using Type = typename LeftOperand<T>::Type;

    InputRows(const void* x, int64_t stride, int64_t width, int64_t padded)
        : x_(static_cast<const T*>(x)), stride_(stride), width_(width), padded_(padded) {}

    int64_t stride() const { return copied() ? padded_ : stride_; }

    // Address of row `first` of a block of rows. Rows are stride() numbers apart.
    INLINE const Type* block(int64_t first, int64_t last) {
        if constexpr (std::is_same<T, Type>::value) {
            if (!copied()) return x_ + first * stride_;
        }
        if (copied_block_ != first) {
            copy_.assign((last - first) * padded_, Type{});
            for (int64_t row = first; row < last; row++) {
                Type* line = &copy_[(row - first) * padded_];
                for (int64_t k = 0; k < width_; k++) keep(x_[row * stride_ + k], line[k]);
            }
            copied_block_ = first;
        }
        return copy_.data();
    }

private:
    bool copied() const { return !std::is_same<T, Type>::value || width_ != padded_; }
    static INLINE void keep(T x, float& out) { out = widen(x); }
    static INLINE void keep(T x, bfloat16& out) { out = x; }

    const T* x_;
    int64_t stride_, width_, padded_, copied_block_ = -1;
    std::vector<Type> copy_;
};

// sums += weights * number of each row. number: offset from the addresses of `x`.
template <int ROWS, int VECTORS>
INLINE void add_products(Floats (&sums)[ROWS][VECTORS], const Floats (&weights)[VECTORS],
                         const RowCursor<ROWS, float>& x, int64_t number) {
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[row][v] += weights[v] * x.row(row)[number];
    }
}

// sums += weights * x for one unit of k: one float32 number, or two bfloat16 numbers.
template <class T, int ROWS, int VECTORS, class Type>
INLINE void add_unit(Floats (&sums)[ROWS][VECTORS], const Words (&weights)[VECTORS], const RowCursor<ROWS, Type>& x) {
    Floats numbers[VECTORS];
    if constexpr (std::is_same<T, float>::value) {
        for (int v = 0; v < VECTORS; v++) numbers[v] = reinterpret_cast<Floats>(weights[v]);
        add_products(sums, numbers, x, 0);
    } else {
#ifdef BF16_PRODUCTS
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
            int32_t pair;
            std::memcpy(&pair, x.row(row), sizeof pair);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                sums[row][v] = (Floats)_mm512_dpbf16_ps((__m512)sums[row][v], (__m512bh)_mm512_set1_epi32(pair),
                                                      (__m512bh)weights[v]);
            }
        }
#else
        // The first number of all rows, then the second: fewer vectors of weights are in use at a time.
        for (int v = 0; v < VECTORS; v++) numbers[v] = reinterpret_cast<Floats>(weights[v] << 16);
        add_products(sums, numbers, x, 0);
        for (int v = 0; v < VECTORS; v++) numbers[v] = reinterpret_cast<Floats>(weights[v] & 0xffff0000u);
        add_products(sums, numbers, x, 1);
#endif
    }
}

// Products of ROWS rows and one panel. x: rows `stride` numbers apart. sums: [ROWS][PANEL], float32.
template <class T, int ROWS, class Type>
void multiply_tile(const Type* x, int64_t stride, int64_t units, const T* panel, Prefetch prefetch, float* sums) {
    constexpr int64_t group = sizeof(uint32_t) / sizeof(T);
    constexpr int VECTORS = span_of(ROWS);
    for (int64_t first = 0; first < PANEL; first += VECTORS * WIDTH) {
        Floats sum[ROWS][VECTORS] = {};
        RowCursor<ROWS, Type> numbers(x, stride);
        for (int64_t unit = 0; unit < units; unit++, numbers.advance(group)) {
            Words weights[VECTORS];
            for (int v = 0; v < VECTORS; v++) {
                const T* from = panel + (unit * PANEL + first + v * WIDTH) * group;
                weights[v] = load_words(from);
            }
            prefetch.fetch();
            add_unit<T>(sum, weights, numbers);
        }
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
            for (int v = 0; v < VECTORS; v++) store(sums + row * PANEL + first + v * WIDTH, sum[row][v]);
        }
    }
}

// Largest number of rows of a tile of a product with weights of dtype T.
template <class T> INLINE int64_t float_tile_rows() {
#ifdef AMX
    if (std::is_same<T, bfloat16>::value) return MAX_TILE_ROWS;
#endif
    return vector_tile_rows();
}

// Products of one tile and one panel, for any number of rows up to float_tile_rows(). weights: the panel, or its
// repacked copy. read: the panel in memory, to prefetch it. sums: [rows][PANEL], float32.
template <class T, class Type>
INLINE void multiply_rows([[maybe_unused]] MatrixUnit& matrix_unit, const Type* x, int64_t stride, int64_t rows,
                          int64_t units, const T* weights, const PanelRead& read, float* sums) {
#ifdef AMX
    if constexpr (std::is_same<T, bfloat16>::value) {
        return multiply_amx(matrix_unit, x, stride, rows, units, weights, read, sums);
    }
#endif
    const auto prefetch = Prefetch::of(read, units * passes_of(rows), rows);
    with_constant_rows(rows, [&](auto count) {
        multiply_tile<T, count.value>(x, stride, units, weights, prefetch, sums);
    });
}

// Products of the rows of one expert with panels of its weight, see experts.h.
template <class T> class FloatPanels {
public:
    using Type = typename LeftOperand<T>::Type;

    explicit FloatPanels(const FloatLinear& p)
        : weight_(static_cast<const T*>(p.weight)), width_(p.width), units_((p.width + GROUP - 1) / GROUP) {}

    // Prepares `rows` rows for `multiply`. row_of(i): address of row i.
    template <class RowOf> void read(int64_t rows, const RowOf& row_of) {
        const int64_t padded = units_ * GROUP;
        if constexpr (std::is_same<T, Type>::value) {
            // A single row, the usual case of a decode step, is read where it is.
            if (rows == 1 && width_ == padded) {
                x_ = row_of(0);
                return;
            }
        }
        copy_.assign(rows * padded, Type{});
        for (int64_t row = 0; row < rows; row++) {
            const T* from = row_of(row);
            Type* line = &copy_[row * padded];
            if constexpr (std::is_same<T, Type>::value) {
                std::copy(from, from + width_, line);
            } else {
                for (int64_t k = 0; k < width_; k++) line[k] = widen(from[k]);
            }
        }
        x_ = copy_.data();
    }

    static int64_t tile_rows() { return float_tile_rows<T>(); }

    // sums: [rows][PANEL], rows first..first+rows-1 of those read times panel number `panel` of the whole weight.
    // tile, tiles: number of this tile, and number of tiles that are multiplied by the panel.
    INLINE void multiply(int64_t first, int64_t rows, int64_t panel, int64_t tile, int64_t tiles, float* sums) {
        const int64_t stride = units_ * GROUP;
        const T* weights = weight_ + panel * PANEL * stride;
        const PanelRead read{weights, PANEL * stride * int64_t{sizeof(T)}, tile, tiles};
        multiply_rows<T>(matrix_unit_, x_ + first * stride, stride, rows, units_, weights, read, sums);
    }

private:
    static constexpr int64_t GROUP = sizeof(uint32_t) / sizeof(T);

    const T* weight_;
    int64_t width_, units_;
    const Type* x_ = nullptr;
    std::vector<Type> copy_;
    MatrixUnit matrix_unit_;
};

template <class T, class Out> void multiply_items(const FloatLinear& p, int64_t begin, int64_t end) {
    constexpr int64_t group = sizeof(uint32_t) / sizeof(T);
    const int64_t units = (p.width + group - 1) / group, columns = p.epilogue.columns;
    const int64_t width = p.is_packed ? units * group : p.width;
    InputRows<T> x(p.x, p.stride, p.width, units * group);
    const int64_t stride = x.stride();
    alignas(64) float sums[MAX_TILE_ROWS * PANEL];
    MatrixUnit matrix_unit;
    std::vector<T> repacked;
    int64_t repacked_panel = -1;
    for_panels(p.rows, blocks_of(p.rows, p.row_bytes), columns, begin, end, [&](int64_t first, int64_t last, int64_t panel) {
        const auto* rows_of_block = x.block(first, last);
        const T* weights = static_cast<const T*>(p.weight) + panel * PANEL * width;
        const T* in_memory = weights;
        if (!p.is_packed) {
            repacked.resize(PANEL * units * group);
            if (repacked_panel != panel) {
                pack_panel(static_cast<const T*>(p.weight), columns, p.width, panel, repacked.data());
            }
            repacked_panel = panel;
            weights = repacked.data();
        }
        for_tiles(first, last, float_tile_rows<T>(), [&](int64_t row, int64_t rows, int64_t tile, int64_t tiles) {
            prefetch_epilogue<Out>(p.epilogue, row, rows, panel * PANEL);
            const PanelRead read{in_memory, PANEL * width * int64_t{sizeof(T)}, tile, tiles};
            const auto* x_of_tile = rows_of_block + (row - first) * stride;
            multiply_rows<T>(matrix_unit, x_of_tile, stride, rows, units, weights, read, sums);
            apply_epilogue<Out>(StoredSums{sums}, p.epilogue, row, rows, panel * PANEL);
        });
    });
}

// Work items are the panels of each block of rows, see `for_panels`.
void float_linear(DType dtype, const FloatLinear& p, int64_t begin, int64_t end) {
    if (dtype == FLOAT32) {
        multiply_items<float, float>(p, begin, end);
    } else if (p.out_dtype == FLOAT32) {
        multiply_items<bfloat16, float>(p, begin, end);
    } else {
        multiply_items<bfloat16, bfloat16>(p, begin, end);
    }
}
