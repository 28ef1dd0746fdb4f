// Linear with int8 weights, a scale for each output channel, and activations rounded to int8 with a scale for each row
// (Dettmers et al. 2022, arXiv:2208.07339, section 2, vector-wise). Products are summed exactly, in int32, so that a
// row gives the same bits whatever rows are beside it.
//
// Weights lie in panels of 32 output channels: [panels][k / 4][2][16][4], both sizes padded with zeros. Activations are
// stored as unsigned numbers, 128 higher, which is what the VNNI instruction multiplies; `offsets` takes that back.
#include "common.h"

#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t PANEL = 32, LANES = 16, QUAD = 4, TILE_ROWS = 8;

template <class T> INLINE float quantise(const T* x, uint8_t* out, int64_t width, int64_t padded) {
    float largest = 0.0f;
    int32_t broken = 0;
#pragma omp simd reduction(max : largest) reduction(| : broken)
    for (int64_t i = 0; i < width; i++) {
        const float size = std::fabs(widen(x[i]));
        largest = size > largest ? size : largest;
        broken |= !(size <= 3.4e38f);
    }
    // A row that is not finite must not come out as one that is.
    if (broken) {
        std::memset(out, 128, padded);
        return __builtin_nanf("");
    }
    const float scale = largest > 0.0f ? largest / 127.0f : 1.0f, inverse = 1.0f / scale;
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        const float turned = std::nearbyint(widen(x[i]) * inverse);
        out[i] = static_cast<uint8_t>(static_cast<int32_t>(std::min(std::max(turned, -127.0f), 127.0f)) + 128);
    }
    for (int64_t i = width; i < padded; i++) out[i] = 128;
    return scale;
}

FOR_EACH_CPU void quantise_float32(const float* x, int64_t stride, uint8_t* out, float* scales, int64_t begin,
                                   int64_t end, int64_t width, int64_t padded) {
    for (int64_t row = begin; row < end; row++)
        scales[row] = quantise(x + row * stride, out + row * padded, width, padded);
}

FOR_EACH_CPU void quantise_bfloat16(const bfloat16* x, int64_t stride, uint8_t* out, float* scales, int64_t begin,
                                    int64_t end, int64_t width, int64_t padded) {
    for (int64_t row = begin; row < end; row++)
        scales[row] = quantise(x + row * stride, out + row * padded, width, padded);
}

// sums[row][column] of a panel, for `rows` rows of `padded` numbers.
FOR_EACH_CPU void multiply_any(const uint8_t* x, int64_t padded, const int8_t* panel, int64_t rows, int32_t* sums) {
    std::memset(sums, 0, rows * PANEL * sizeof(int32_t));
    for (int64_t row = 0; row < rows; row++) {
        int32_t* out = sums + row * PANEL;
        for (int64_t k = 0; k < padded; k += QUAD) {
            const uint8_t* quad = x + row * padded + k;
            const int8_t* weights = panel + k * PANEL;
#pragma omp simd
            for (int64_t column = 0; column < PANEL; column++) {
                const int8_t* w = weights + column * QUAD;
                out[column] += quad[0] * w[0] + quad[1] * w[1] + quad[2] * w[2] + quad[3] * w[3];
            }
        }
    }
}

#if defined(__x86_64__)
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

template <int ROWS> VNNI void multiply_tile(const uint8_t* x, int64_t padded, const int8_t* panel, int32_t* sums) {
    __m512i left[ROWS], right[ROWS];
    for (int row = 0; row < ROWS; row++) left[row] = right[row] = _mm512_setzero_si512();
    for (int64_t k = 0; k < padded; k += QUAD) {
        const __m512i first = _mm512_loadu_si512(panel + k * PANEL);
        const __m512i second = _mm512_loadu_si512(panel + k * PANEL + LANES * QUAD);
        _mm_prefetch(reinterpret_cast<const char*>(panel + k * PANEL + 4096), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(panel + k * PANEL + 4160), _MM_HINT_T0);
        for (int row = 0; row < ROWS; row++) {
            int32_t quad;
            std::memcpy(&quad, x + row * padded + k, sizeof quad);
            const __m512i spread = _mm512_set1_epi32(quad);
            left[row] = _mm512_dpbusd_epi32(left[row], spread, first);
            right[row] = _mm512_dpbusd_epi32(right[row], spread, second);
        }
    }
    for (int row = 0; row < ROWS; row++) {
        _mm512_storeu_si512(sums + row * PANEL, left[row]);
        _mm512_storeu_si512(sums + row * PANEL + LANES, right[row]);
    }
}

VNNI void multiply_vnni(const uint8_t* x, int64_t padded, const int8_t* panel, int64_t rows, int32_t* sums) {
    switch (rows) {
        case 1: return multiply_tile<1>(x, padded, panel, sums);
        case 2: return multiply_tile<2>(x, padded, panel, sums);
        case 3: return multiply_tile<3>(x, padded, panel, sums);
        case 4: return multiply_tile<4>(x, padded, panel, sums);
        case 5: return multiply_tile<5>(x, padded, panel, sums);
        case 6: return multiply_tile<6>(x, padded, panel, sums);
        case 7: return multiply_tile<7>(x, padded, panel, sums);
        default: return multiply_tile<8>(x, padded, panel, sums);
    }
}
#endif

using Multiply = void (*)(const uint8_t*, int64_t, const int8_t*, int64_t, int32_t*);

Multiply best_multiply() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return multiply_vnni;
#endif
    return multiply_any;
}

struct Output {
    const float* weight_scales;
    const int32_t* offsets;
    const float* bias;  // or null
    const float* row_scales;
    int64_t columns;
};

template <class T>
INLINE void finish(const int32_t* sums, const Output& o, int64_t row, int64_t rows, int64_t column, T* out) {
    const int64_t count = std::min(PANEL, o.columns - column);
    for (int64_t i = 0; i < rows; i++) {
        const float row_scale = o.row_scales[row + i];
        T* line = out + (row + i) * o.columns + column;
        const int32_t* line_sums = sums + i * PANEL;
        if (o.bias != nullptr) {
#pragma omp simd
            for (int64_t c = 0; c < count; c++) {
                const float exact = static_cast<float>(line_sums[c] - o.offsets[column + c]);
                narrow(exact * (o.weight_scales[column + c] * row_scale) + o.bias[column + c], line[c]);
            }
        } else {
#pragma omp simd
            for (int64_t c = 0; c < count; c++) {
                const float exact = static_cast<float>(line_sums[c] - o.offsets[column + c]);
                narrow(exact * (o.weight_scales[column + c] * row_scale), line[c]);
            }
        }
    }
}

FOR_EACH_CPU void finish_float32(const int32_t* sums, const Output& o, int64_t row, int64_t rows, int64_t column,
                                 float* out) {
    finish(sums, o, row, rows, column, out);
}

FOR_EACH_CPU void finish_bfloat16(const int32_t* sums, const Output& o, int64_t row, int64_t rows, int64_t column,
                                  bfloat16* out) {
    finish(sums, o, row, rows, column, out);
}

}  // namespace

// weight: int8 [columns, width] -> packed, and offsets [columns]: 128 times the sum of each channel's weights.
EXPORT void triptych_int8_pack(const int8_t* weight, int64_t columns, int64_t width, int8_t* packed, int32_t* offsets) {
    const int64_t padded = (width + QUAD - 1) / QUAD * QUAD, panels = (columns + PANEL - 1) / PANEL;
    std::memset(packed, 0, panels * PANEL * padded);
    parallel(panels, 1, [&](int64_t begin, int64_t end) {
        for (int64_t column = begin * PANEL; column < std::min(end * PANEL, columns); column++) {
            int8_t* panel = packed + column / PANEL * PANEL * padded + column % PANEL * QUAD;
            int32_t sum = 0;
            for (int64_t k = 0; k < width; k++) {
                panel[k / QUAD * PANEL * QUAD + k % QUAD] = weight[column * width + k];
                sum += weight[column * width + k];
            }
            offsets[column] = 128 * sum;
        }
    });
}

// x: [rows, width], rows `stride` numbers apart -> out: [rows, columns], contiguous, the dtype of x.
// scratch: rows * (width rounded up to 4) bytes. scales: [rows], float32, written here.
EXPORT void triptych_int8_linear(int32_t dtype, const void* x, int64_t stride, const int8_t* packed,
                                 const float* weight_scales, const int32_t* offsets, const float* bias,
                                 uint8_t* scratch, float* scales, void* out, int64_t rows, int64_t width,
                                 int64_t columns) {
    static const Multiply multiply = best_multiply();
    const int64_t padded = (width + QUAD - 1) / QUAD * QUAD, panels = (columns + PANEL - 1) / PANEL;
    parallel(rows, std::max<int64_t>(1, 65536 / width), [&](int64_t begin, int64_t end) {
        if (dtype == FLOAT32) {
            quantise_float32(static_cast<const float*>(x), stride, scratch, scales, begin, end, width, padded);
        } else {
            quantise_bfloat16(static_cast<const bfloat16*>(x), stride, scratch, scales, begin, end, width, padded);
        }
    });
    const Output output{weight_scales, offsets, bias, scales, columns};
    parallel(panels, std::max<int64_t>(1, 32768 / (padded * PANEL)), [&](int64_t begin, int64_t end) {
        int32_t sums[TILE_ROWS * PANEL];
        for (int64_t panel = begin; panel < end; panel++) {
            for (int64_t row = 0; row < rows; row += TILE_ROWS) {
                const int64_t here = std::min(TILE_ROWS, rows - row);
                multiply(scratch + row * padded, padded, packed + panel * PANEL * padded, here, sums);
                if (dtype == FLOAT32) {
                    finish_float32(sums, output, row, here, panel * PANEL, static_cast<float*>(out));
                } else {
                    finish_bfloat16(sums, output, row, here, panel * PANEL, static_cast<bfloat16*>(out));
                }
            }
        }
    });
}
