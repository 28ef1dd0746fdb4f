// Linear with int8 weights and one scale per output channel. Activations are rounded to int8 with one scale per row
// (Dettmers et al. 2022, arXiv:2208.07339, section 2, vector-wise). Sums are exact in int32, so a row gives the same
// bits in every batch.
//
// Weights are in panels of 32 output channels: [panels][k / 4][2][16][4], k and channels padded with zeros.
// Activations are stored as unsigned numbers with 128 added, as the VNNI instruction requires. `offsets` subtracts
// the 128 again.
#pragma once

#include "amx.h"
#include "byte_products.h"
#include "epilogue.h"
#include "numbers.h"
#include "tiles.h"
#include "vectors.h"

template <class T> INLINE float quantize_row(const T* x, uint8_t* out, int64_t width, int64_t padded) {
    // Absolute values, compared by their bits: the order is the same, and NaN and infinity come out largest.
    int32_t largest = 0;
    for (int64_t i = 0; i < width; i++) {
        largest = std::max(largest, __builtin_bit_cast(int32_t, widen(x[i])) & 0x7fffffff);
    }
    // A row with NaN or infinity gets the scale NaN, so that its outputs are not finite either.
    if (largest >= 0x7f800000) {
        std::memset(out, 128, padded);
        return __builtin_nanf("");
    }
    // For smaller maxima 1 / scale would be infinite; such rows become zeros. Rounded numbers are at most 127.
    const float size = __builtin_bit_cast(float, largest), scale = size > 1e-36f ? size / 127.0f : 1.0f;
    const float inverse = 1.0f / scale;
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        out[i] = static_cast<uint8_t>(static_cast<int32_t>(std::nearbyint(widen(x[i]) * inverse)) + 128);
    }
    for (int64_t i = width; i < padded; i++) out[i] = 128;
    return scale;
}

template <class T> void quantize_items(const RowQuantization& p, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        const T* x = static_cast<const T*>(p.x) + row * p.stride;
        p.scales[row] = quantize_row(x, p.out + row * p.padded, p.width, p.padded);
    }
}

void quantize_rows(DType dtype, const RowQuantization& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? quantize_items<float>(p, begin, end) : quantize_items<bfloat16>(p, begin, end);
}

// Rows of a tile. Without VNNI, products take registers of their own.
#ifdef VNNI
constexpr int INT8_TILE_ROWS = TILE_ROWS;
#else
constexpr int INT8_TILE_ROWS = TILE_ROWS - 1;
#endif

// Products of ROWS rows and one panel. x: [ROWS, padded]. sums: [ROWS][PANEL], int32.
template <int ROWS>
void multiply_tile(const uint8_t* x, int64_t padded, const int8_t* panel, Prefetch prefetch, int32_t* sums) {
    constexpr int VECTORS = span_of(ROWS);
    for (int64_t first = 0; first < PANEL; first += VECTORS * WIDTH) {
        Integers sum[ROWS][VECTORS] = {};
        RowCursor<ROWS, uint8_t> input(x, padded);
        for (int64_t k = 0; k < padded; k += QUAD, input.advance(QUAD)) {
            Words weights[VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) weights[v] = load_words(panel + k * PANEL + (first + v * WIDTH) * QUAD);
            prefetch.fetch();
#pragma GCC unroll 16
            for (int row = 0; row < ROWS; row++) {
                int32_t quad;
                std::memcpy(&quad, input.row(row), sizeof quad);
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) {
#ifdef VNNI
                    const __m512i numbers = _mm512_set1_epi32(quad);
                    sum[row][v] = (Integers)_mm512_dpbusd_epi32((__m512i)sum[row][v], numbers, (__m512i)weights[v]);
#else
                    const Words numbers = (Words{} + static_cast<uint32_t>(quad)) ^ 0x80808080u;
                    sum[row][v] = add_signed_products(sum[row][v], weights[v], numbers);
#endif
                }
            }
        }
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) store(sums + row * PANEL + first + v * WIDTH, sum[row][v]);
        }
    }
}

// The float32 sums of a tile, for `apply_epilogue`. They are computed from exact int32 sums, [rows][PANEL], when they are
// read: minus the offset of the column, times the scales of row and column.
class ScaledSums {
public:
    // row: first row of the tile. column: first column of the panel. count: number of columns from `column` on; PANEL or
    // more for a whole panel.
    INLINE ScaledSums(const int32_t* exact, const Int8Linear& p, int64_t row, int64_t column, int64_t count)
        : exact_(exact), row_scales_(p.row_scales + row), scales_(p.weight_scales + column), offsets_(p.offsets + column) {
        if (count >= PANEL) return;
        std::fill(std::copy(scales_, scales_ + count, partial_scales_), partial_scales_ + PANEL, 0.0f);
        std::fill(std::copy(offsets_, offsets_ + count, partial_offsets_), partial_offsets_ + PANEL, 0);
        scales_ = partial_scales_, offsets_ = partial_offsets_;
    }

    ScaledSums(const ScaledSums&) = delete;  // it may point into itself

    INLINE Floats at(int64_t row, int64_t column) const {
        Integers sums = load(exact_ + row * PANEL + column);
#ifdef VNNI
        sums -= load(offsets_ + column);
#endif
        return unfused(__builtin_convertvector(sums, Floats) * (load(scales_ + column) * row_scales_[row]));
    }

private:
    const int32_t* exact_;
    const float *row_scales_, *scales_;
    const int32_t* offsets_;
    float partial_scales_[PANEL];     // copies for the last panel if it has fewer than PANEL columns
    int32_t partial_offsets_[PANEL];
};

INLINE int64_t int8_tile_rows() {
#ifdef AMX
    return MAX_TILE_ROWS;
#else
    return std::min<int64_t>(INT8_TILE_ROWS, max_tile_rows);
#endif
}

// Exact products of `rows` rows at x and one panel. exact: [rows][PANEL]. tile, tiles: see `PanelRead`.
INLINE void multiply_rows([[maybe_unused]] MatrixUnit& matrix_unit, const Int8Linear& p, const uint8_t* x,
                          int64_t rows, int64_t panel, int64_t tile, int64_t tiles, int32_t* exact) {
    const int8_t* weights = p.weight + panel * PANEL * p.padded;
    const int64_t units = p.padded / QUAD;
    const PanelRead read{weights, PANEL * p.padded, tile, tiles};
#ifdef AMX
    // Fewer rows are as fast with vector instructions, and the sums are exact in both.
    constexpr int64_t MIN_ROWS = 5;
    if (rows >= MIN_ROWS) {
        return multiply_amx(matrix_unit, x, p.padded, rows, units, weights, read, exact);
    }
#endif
    const auto prefetch = Prefetch::of(read, units * passes_of(rows), rows);
    with_constant_rows<INT8_TILE_ROWS>(rows, [&](auto size) {
        multiply_tile<size.value>(x, p.padded, weights, prefetch, exact);
    });
}

template <class T> void multiply_items(const Int8Linear& p, int64_t begin, int64_t end) {
    alignas(64) int32_t exact[MAX_TILE_ROWS * PANEL];
    MatrixUnit matrix_unit;
    for_panels(p.rows, blocks_of(p.rows, p.padded), p.epilogue.columns, begin, end, [&](int64_t first, int64_t last, int64_t panel) {
        for_tiles(first, last, int8_tile_rows(), [&](int64_t row, int64_t rows, int64_t tile, int64_t tiles) {
            prefetch_epilogue<T>(p.epilogue, row, rows, panel * PANEL);
            multiply_rows(matrix_unit, p, p.x + row * p.padded, rows, panel, tile, tiles, exact);
            const ScaledSums sums(exact, p, row, panel * PANEL, p.epilogue.columns - panel * PANEL);
            apply_epilogue<T>(sums, p.epilogue, row, rows, panel * PANEL);
        });
    });
}

// Work items are the panels of each block of rows, see `for_panels`.
void int8_linear(DType dtype, const Int8Linear& p, int64_t begin, int64_t end) {
    if (dtype == FLOAT32) {
        multiply_items<float>(p, begin, end);
    } else {
        multiply_items<bfloat16>(p, begin, end);
    }
}

// Products of the rows of one expert with panels of its int8 weight, see `FloatPanels`.
template <class T> class Int8Panels {
public:
    Int8Panels(const Int8Linear& p, int64_t width) : linear_(p), width_(width) {}

    template <class RowOf> void read(int64_t rows, const RowOf& row_of) {
        x_.resize(rows * linear_.padded);
        scales_.resize(rows);
        for (int64_t row = 0; row < rows; row++) {
            scales_[row] = quantize_row(row_of(row), &x_[row * linear_.padded], width_, linear_.padded);
        }
        linear_.row_scales = scales_.data();
    }

    static int64_t tile_rows() { return int8_tile_rows(); }

    INLINE void multiply(int64_t first, int64_t rows, int64_t panel, int64_t tile, int64_t tiles, float* sums) {
        alignas(64) int32_t exact[MAX_TILE_ROWS * PANEL];
        multiply_rows(matrix_unit_, linear_, &x_[first * linear_.padded], rows, panel, tile, tiles, exact);
        const ScaledSums scaled_sums(exact, linear_, first, panel * PANEL, PANEL);
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t c = 0; c < PANEL; c += WIDTH) store(sums + i * PANEL + c, scaled_sums.at(i, c));
        }
    }

private:
    Int8Linear linear_;
    int64_t width_;
    std::vector<uint8_t> x_;
    std::vector<float> scales_;
    MatrixUnit matrix_unit_;
};

template <class T> void unpack_int8(const WeightRows& p, int64_t begin, int64_t end) {
    const auto* packed = static_cast<const int8_t*>(p.weight);
    T* out = static_cast<T*>(p.out);
    for (int64_t i = begin; i < end; i++) {
        const auto channel = Channel<QUAD, const int8_t>::of(packed, p.width, p.index[i]);
        for (int64_t k = 0; k < p.width; k++) narrow(channel[k] * p.scales[p.index[i]], out[i * p.width + k]);
    }
}

// Dequantises output channels index[begin..end-1] of a packed weight.
void unpack_int8_rows(DType dtype, const WeightRows& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? unpack_int8<float>(p, begin, end) : unpack_int8<bfloat16>(p, begin, end);
}
