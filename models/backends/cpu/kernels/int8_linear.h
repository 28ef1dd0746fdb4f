// Linear with int8 weights, a scale for each output channel, and activations rounded to int8 with a scale for each row
// (Dettmers et al. 2022, arXiv:2208.07339, section 2, vector-wise). Products are summed exactly, in int32, so that a
// row gives the same bits whatever rows are beside it.
//
// Weights lie in panels of 32 output channels: [panels][k / 4][2][16][4], both sizes padded with zeros. Activations are
// stored as unsigned numbers, 128 higher, which is what the VNNI instruction multiplies; `offsets` takes that back.

template <class T> INLINE float quantise_row(const T* x, uint8_t* out, int64_t width, int64_t padded) {
    // Sizes as integers, which have the same order; those of numbers that are not finite are above all others.
    int32_t largest = 0;
    for (int64_t i = 0; i < width; i++) {
        largest = std::max(largest, __builtin_bit_cast(int32_t, widen(x[i])) & 0x7fffffff);
    }
    // A row that is not finite must not come out as one that is.
    if (largest >= 0x7f800000) {
        std::memset(out, 128, padded);
        return __builtin_nanf("");
    }
    // Of smaller numbers one over the step would not be finite: they come out as zeros. No product exceeds 127.
    const float size = __builtin_bit_cast(float, largest), scale = size > 1e-36f ? size / 127.0f : 1.0f;
    const float inverse = 1.0f / scale;
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        out[i] = static_cast<uint8_t>(static_cast<int32_t>(std::nearbyint(widen(x[i]) * inverse)) + 128);
    }
    for (int64_t i = width; i < padded; i++) out[i] = 128;
    return scale;
}

template <class T> void quantise_rows(const Quantise& p, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        const T* x = static_cast<const T*>(p.x) + row * p.stride;
        p.scales[row] = quantise_row(x, p.out + row * p.padded, p.width, p.padded);
    }
}

void quantise(DType dtype, const Quantise& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? quantise_rows<float>(p, begin, end) : quantise_rows<bfloat16>(p, begin, end);
}

#ifdef VNNI
template <int ROWS>
void multiply_tile(const uint8_t* x, int64_t padded, const int8_t* panel, Ahead ahead, int32_t* sums) {
    __m512i left[ROWS], right[ROWS];
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) left[row] = right[row] = _mm512_setzero_si512();
    for (int64_t k = 0; k < padded; k += QUAD) {
        const __m512i first = _mm512_loadu_si512(panel + k * PANEL);
        const __m512i second = _mm512_loadu_si512(panel + k * PANEL + PANEL / 2 * QUAD);
        ahead.fetch<ROWS>();
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
            int32_t quad;
            std::memcpy(&quad, x + row * padded + k, sizeof quad);
            const __m512i spread = _mm512_set1_epi32(quad);
            left[row] = _mm512_dpbusd_epi32(left[row], spread, first);
            right[row] = _mm512_dpbusd_epi32(right[row], spread, second);
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) {
        _mm512_storeu_si512(sums + row * PANEL, left[row]);
        _mm512_storeu_si512(sums + row * PANEL + PANEL / 2, right[row]);
    }
}
#else
// sums[row][column] of a panel, for rows of `padded` numbers.
template <int ROWS>
void multiply_tile(const uint8_t* x, int64_t padded, const int8_t* panel, Ahead ahead, int32_t* sums) {
    std::memset(sums, 0, ROWS * PANEL * sizeof(int32_t));
    for (int64_t k = 0; k < padded; k += QUAD) {
        const int8_t* weights = panel + k * PANEL;
        ahead.fetch<ROWS>();
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
            const uint8_t* quad = x + row * padded + k;
            int32_t* out = sums + row * PANEL;
#pragma omp simd
            for (int64_t column = 0; column < PANEL; column++) {
                const int8_t* w = weights + column * QUAD;
                out[column] += quad[0] * w[0] + quad[1] * w[1] + quad[2] * w[2] + quad[3] * w[3];
            }
        }
    }
}
#endif

// Exact sums to the numbers that they stand for. count: columns of the panel that there are.
INLINE void scale(const int32_t* exact, const Int8Linear& p, int64_t row, int64_t column, int64_t count, float* sums) {
    const float row_scale = p.row_scales[row];
#pragma omp simd
    for (int64_t c = 0; c < count; c++) {
        const float sum = static_cast<float>(exact[c] - p.offsets[column + c]);
        sums[c] = sum * (p.weight_scales[column + c] * row_scale);
    }
}

template <class T> void multiply_items(const Int8Linear& p, int64_t begin, int64_t end) {
    alignas(64) int32_t exact[TILE_ROWS * PANEL];
    alignas(64) float sums[TILE_ROWS * PANEL] = {};
    for_items(p.rows, p.blocks, p.finish.columns, begin, end, [&](int64_t first, int64_t last, int64_t panel) {
        const int8_t* weights = p.weight + panel * PANEL * p.padded;
        const int64_t count = p.finish.columns - panel * PANEL;
        for_tiles(first, last, TILE_ROWS, [&](int64_t row, int64_t rows, int64_t tile, int64_t tiles) {
            const auto ahead = Ahead::of(weights, PANEL * p.padded, p.padded / QUAD, rows, tile, tiles);
            fetch_finish<T>(p.finish, row, rows, panel * PANEL);
            with_rows(rows, [&](auto size) {
                multiply_tile<size.value>(p.x + row * p.padded, p.padded, weights, ahead, exact);
            });
            for (int64_t i = 0; i < rows; i++) {
                if (count >= PANEL) {
                    scale(exact + i * PANEL, p, row + i, panel * PANEL, PANEL, sums + i * PANEL);
                } else {
                    scale(exact + i * PANEL, p, row + i, panel * PANEL, count, sums + i * PANEL);
                }
            }
            finish<T>(sums, p.finish, row, rows, panel * PANEL);
        });
    });
}

// Items are panels of blocks of rows, see tiles.h.
void int8_linear(DType dtype, const Int8Linear& p, int64_t begin, int64_t end) {
    if (dtype == FLOAT32) {
        multiply_items<float>(p, begin, end);
    } else {
        multiply_items<bfloat16>(p, begin, end);
    }
}

template <class T>
void unpack(const int8_t* packed, const float* scales, int64_t width, const int64_t* index, T* out, int64_t begin,
            int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        const auto channel = Channel<QUAD, const int8_t>::of(packed, width, index[i]);
        for (int64_t k = 0; k < width; k++) narrow(channel[k] * scales[index[i]], out[i * width + k]);
    }
}

// Channels `index` of a packed weight [columns, width] as the numbers that they stand for -> out: [count, width].
void unpack_int8_channels(DType dtype, const int8_t* packed, const float* scales, int64_t width, const int64_t* index,
                          void* out, int64_t begin, int64_t end) {
    if (dtype == FLOAT32) {
        unpack(packed, scales, width, index, static_cast<float*>(out), begin, end);
    } else {
        unpack(packed, scales, width, index, static_cast<bfloat16*>(out), begin, end);
    }
}
