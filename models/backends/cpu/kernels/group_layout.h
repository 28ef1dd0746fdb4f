// Layout of weights whose channels have a scale for each group of inputs:
//
//     weight = scale * (code - 2^(bits - 1))     or, with minimums,     weight = scale * code - minimum
//
// or, with a table of 16 values and no minimums, weight = scale * table[code]. Codes are unsigned numbers of 4, 6 or 8
// bits, with a table of 4 bits. A panel of 32 channels is a sequence of blocks along the inputs. A block
// is a header with the scales of its groups, padded to cache lines, and then the codes. The codes of four inputs are
// 16 units of four bytes per line: channels 0 to 15 and 16 to 31 have
//     4 bits: the lower and the upper half of each byte of one line,
//     6 bits: the same for the lower four bits; a third line after two such lines has the upper two bits of both,
//     8 bits: two lines.
// A header, by ScaleStorage ([32]: a number per channel; G: groups of the block):
//     HALF            float16 scales[32]                      HALF_MINIMUM    then float16 minimums[32]
//     HALF_ZERO       float16 scales[32], uint8 zeros[32]; minimum = scale * zero
//     SINGLE          float scales[32]                        SINGLE_MINIMUM  then float minimums[32]
//     UNIT            float units[32], int8 scales[G][32]; scale = unit * int8
//     UNIT_MINIMUM    float units[32], float minimum_units[32], int8 scales[G][32], int8 minimums[G][32]
#pragma once

#include "vectors.h"

constexpr int64_t MAX_GROUPS = 16;

// Scales and minimums of the groups of a block.
struct BlockScales {
    alignas(64) float scales[MAX_GROUPS][PANEL];
    alignas(64) float minimums[MAX_GROUPS][PANEL];
};

INLINE bool has_minimums(const GroupWeight& w) {
    return w.scale_storage == HALF_MINIMUM || w.scale_storage == HALF_ZERO || w.scale_storage == SINGLE_MINIMUM ||
           w.scale_storage == UNIT_MINIMUM;
}

INLINE int64_t block_bytes(const GroupWeight& w) { return w.header_bytes + w.block * PANEL / 8 * w.bits; }

INLINE int64_t panel_bytes(const GroupWeight& w) { return w.padded / w.block * block_bytes(w); }

// The float16 number with these bits.
INLINE float widen_half(uint16_t bits) {
    const uint32_t size = bits & 0x7fffu, sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    // The exponent of a float32 is larger by 112.
    const float number = __builtin_bit_cast(float, size << 13) * 0x1p112f;
    const uint32_t magnitude = size >= 0x7c00u ? (size << 13) | 0x7f800000u : __builtin_bit_cast(uint32_t, number);
    return __builtin_bit_cast(float, magnitude | sign);
}

INLINE void widen_halves(const uint16_t* from, float* out) {
#if defined(AVX512)
    for (int i = 0; i < PANEL; i += 16) {
        _mm512_store_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
    }
#elif defined(AVX2)
    for (int i = 0; i < PANEL; i += 8) {
        _mm256_store_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    }
#else
#pragma omp simd
    for (int i = 0; i < PANEL; i++) out[i] = widen_half(from[i]);
#endif
}

template <class T> INLINE void multiply_line(const float* factors, const T* numbers, float* out) {
#pragma omp simd
    for (int i = 0; i < PANEL; i++) out[i] = factors[i] * static_cast<float>(numbers[i]);
}

// Reads the header of a block.
INLINE void read_scales(const GroupWeight& w, const uint8_t* header, BlockScales& out) {
    const auto* halves = reinterpret_cast<const uint16_t*>(header);
    const auto* singles = reinterpret_cast<const float*>(header);
    const int64_t groups = w.block / w.group;
    switch (w.scale_storage) {
    case HALF:
        widen_halves(halves, out.scales[0]);
        break;
    case HALF_MINIMUM:
        widen_halves(halves, out.scales[0]);
        widen_halves(halves + PANEL, out.minimums[0]);
        break;
    case HALF_ZERO:
        widen_halves(halves, out.scales[0]);
        multiply_line(out.scales[0], header + PANEL * sizeof(uint16_t), out.minimums[0]);
        break;
    case SINGLE:
        std::memcpy(out.scales[0], singles, sizeof out.scales[0]);
        break;
    case SINGLE_MINIMUM:
        std::memcpy(out.scales[0], singles, sizeof out.scales[0]);
        std::memcpy(out.minimums[0], singles + PANEL, sizeof out.minimums[0]);
        break;
    case UNIT: {
        const auto* numbers = reinterpret_cast<const int8_t*>(singles + PANEL);
        for (int64_t g = 0; g < groups; g++) multiply_line(singles, numbers + g * PANEL, out.scales[g]);
        break;
    }
    case UNIT_MINIMUM: {
        const auto* numbers = reinterpret_cast<const int8_t*>(singles + 2 * PANEL);
        for (int64_t g = 0; g < groups; g++) {
            multiply_line(singles, numbers + g * PANEL, out.scales[g]);
            multiply_line(singles + PANEL, numbers + (groups + g) * PANEL, out.minimums[g]);
        }
    }
    }
}

// Codes of QUADS times four inputs of WIDTH channels: codes[quad][0 or 1], a byte each, for lower and upper channels.
template <int QUADS> struct CodeUnits {
    Words codes[QUADS][2];
};

// How codes are stored. QUADS: quads of inputs that are read together, from LINES cache lines. MIDDLE: subtracted from a
// code without minimums. LARGEST: largest code. `read` reads the codes of WIDTH channels from `offset` bytes into each
// half line.
// ARE_BYTES: whether the lines in memory are what `read` returns, in the same order.
// UPPER: 1, or the factor of the upper channels' codes that `read` adds to those of the lower channels in place of
// separating them. The difference of both sums is then UPPER times the sum of the upper channels.

// Largest UPPER whose products do not overflow before they are summed in int32. It saves two of three instructions, and
// costs two per row and group, so it pays for groups of 64 and more.
#ifdef VNNI
constexpr int MAX_UPPER = 16;
#else
constexpr int MAX_UPPER = 1;
#endif

template <int FACTOR> struct FourBits {
    static constexpr int QUADS = 1, LINES = 1, MIDDLE = 8, LARGEST = 15, UPPER = FACTOR;
    static constexpr bool ARE_BYTES = false;
    static_assert(UPPER == 1 || UPPER == 16);

    explicit FourBits(const GroupWeight&) {}

    INLINE CodeUnits<QUADS> read(const uint8_t* lines, int64_t offset) const {
        const Words both = load_words(lines + offset);
        return {{{both & 0x0f0f0f0fu, UPPER == 1 ? both >> 4 & 0x0f0f0f0fu : both}}};
    }
};

// Codes of four bits that stand for the values of a table, plus 128.
struct TableCodes {
    static constexpr int QUADS = 1, LINES = 1, MIDDLE = 128, LARGEST = 255, UPPER = 1;
    static constexpr bool ARE_BYTES = false;

    explicit TableCodes(const GroupWeight& w) {
        for (size_t i = 0; i < sizeof values_; i += 16) std::memcpy(values_ + i, w.table, 16);
        for (uint8_t& value : values_) value ^= 0x80;
    }

    INLINE CodeUnits<QUADS> read(const uint8_t* lines, int64_t offset) const {
        const Words both = load_words(lines + offset);
        return {{{values_of(both & 0x0f0f0f0fu), values_of(both >> 4 & 0x0f0f0f0fu)}}};
    }

private:
    INLINE Words values_of(Words codes) const {
#if defined(AVX512)
        return (Words)_mm512_shuffle_epi8(_mm512_load_si512(values_), (__m512i)codes);
#elif defined(AVX2)
        return (Words)_mm256_shuffle_epi8(*reinterpret_cast<const __m256i*>(values_), (__m256i)codes);
#else
        Words values;
        for (int i = 0; i < WIDTH; i++) {
            values[i] = 0;
            for (int bits = 0; bits < 32; bits += 8) values[i] |= uint32_t{values_[codes[i] >> bits & 15u]} << bits;
        }
        return values;
#endif
    }

    alignas(64) uint8_t values_[64];
};

struct SixBits {
    static constexpr int QUADS = 2, LINES = 3, MIDDLE = 32, LARGEST = 63, UPPER = 1;
    static constexpr bool ARE_BYTES = false;

    explicit SixBits(const GroupWeight&) {}

    INLINE CodeUnits<QUADS> read(const uint8_t* lines, int64_t offset) const {
        const Words first = load_words(lines + offset), second = load_words(lines + 64 + offset);
        const Words upper = load_words(lines + 128 + offset);
        return {{{(first & 0x0f0f0f0fu) | (upper & 0x03030303u) << 4,
                  (first >> 4 & 0x0f0f0f0fu) | (upper & 0x0c0c0c0cu) << 2},
                 {(second & 0x0f0f0f0fu) | (upper & 0x30303030u),
                  (second >> 4 & 0x0f0f0f0fu) | (upper & 0xc0c0c0c0u) >> 2}}};
    }
};

struct EightBits {
    static constexpr int QUADS = 1, LINES = 2, MIDDLE = 128, LARGEST = 255, UPPER = 1;
    static constexpr bool ARE_BYTES = true;

    explicit EightBits(const GroupWeight&) {}

    INLINE CodeUnits<QUADS> read(const uint8_t* lines, int64_t offset) const {
        return {{{load_words(lines + offset), load_words(lines + 64 + offset)}}};
    }
};
