// Layout of weights whose channels have a scale for each group of inputs:
//
//     weight = scale * (code - 2^(bits - 1))     or, with minimums,     weight = scale * code - minimum
//
// Codes are unsigned numbers of 4, 6 or 8 bits. A panel of 32 channels is a sequence of blocks along the inputs. A block
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
#ifdef AVX512
    for (int i = 0; i < PANEL; i += 16) {
        _mm512_store_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
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

// Vectors of units of four codes, and of their exact sums of products.
using Counts = int32_t __attribute__((vector_size(LANES * 4)));

INLINE Sums load_sums(const float* from) { return *reinterpret_cast<const UnalignedSums*>(from); }

INLINE Units load_units(const uint8_t* from) { return *reinterpret_cast<const UnalignedUnits*>(from); }

// Codes of QUADS times four inputs, stored in LINES cache lines. `of` reads those of LANES channels from `offset`
// bytes into each half line: codes[quad][0 or 1], a byte each, for lower and upper channels.
template <int BITS> struct Codes;

template <> struct Codes<4> {
    static constexpr int QUADS = 1, LINES = 1;
    Units codes[QUADS][2];

    static INLINE Codes of(const uint8_t* lines, int64_t offset) {
        const Units both = load_units(lines + offset);
        return {{{both & 0x0f0f0f0fu, both >> 4 & 0x0f0f0f0fu}}};
    }
};

template <> struct Codes<6> {
    static constexpr int QUADS = 2, LINES = 3;
    Units codes[QUADS][2];

    static INLINE Codes of(const uint8_t* lines, int64_t offset) {
        const Units first = load_units(lines + offset), second = load_units(lines + 64 + offset);
        const Units upper = load_units(lines + 128 + offset);
        return {{{(first & 0x0f0f0f0fu) | (upper & 0x03030303u) << 4,
                  (first >> 4 & 0x0f0f0f0fu) | (upper & 0x0c0c0c0cu) << 2},
                 {(second & 0x0f0f0f0fu) | (upper & 0x30303030u),
                  (second >> 4 & 0x0f0f0f0fu) | (upper & 0xc0c0c0c0u) >> 2}}};
    }
};

template <> struct Codes<8> {
    static constexpr int QUADS = 1, LINES = 2;
    Units codes[QUADS][2];

    static INLINE Codes of(const uint8_t* lines, int64_t offset) {
        return {{{load_units(lines + offset), load_units(lines + 64 + offset)}}};
    }
};

// sum + products of four codes of each channel and four signed activations, exact. BITS: bits of a code.
template <int BITS> INLINE Counts add_products(Counts sum, Units codes, int32_t activations) {
#if defined(VNNI)
    return (Counts)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, _mm512_set1_epi32(activations));
#elif defined(AVX512) || defined(AVX2)
    // Sums of two products are exact in 16 bits for codes of up to seven bits.
    const auto products = [&](Units part) {
#ifdef AVX512
        const __m512i pairs = _mm512_maddubs_epi16((__m512i)part, _mm512_set1_epi32(activations));
        return (Counts)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#else
        const __m256i pairs = _mm256_maddubs_epi16((__m256i)part, _mm256_set1_epi32(activations));
        return (Counts)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
    };
    if constexpr (BITS < 8) return sum + products(codes);
    return sum + products(codes & 0x7f7f7f7fu) + products(codes >> 7 & 0x01010101u) * 128;
#else
    for (int i = 0; i < 4; i++) {
        sum += reinterpret_cast<Counts>(codes >> (8 * i) & 0xffu) * static_cast<int8_t>(activations >> (8 * i));
    }
    return sum;
#endif
}
