// Activation functions in float32, without branches or tables, so that compilers can vectorise them. Each is within 1e-6
// of its value (of one, where the value is smaller); what is not a number stays so.

// e^x - 1 = (scale - 1) + scale * part, for x up to 88, and -87 in place of what is below.
struct Exponential {
    float scale, part;
};

// Cody-Waite reduction by ln 2 and a Taylor polynomial on [-ln 2 / 2, ln 2 / 2] (Muller, Elementary Functions, chapters
// 3 and 11). Adding 1.5 * 2^23 rounds to a whole number and leaves it in the lowest bits.
INLINE Exponential exponential(float x) {
    const float clamped = x < -87.0f ? -87.0f : x;
    const float shifted = clamped * 1.44269504088896341f + 12582912.0f, turns = shifted - 12582912.0f;
    float r = clamped - turns * 0.693359375f;
    r = r - turns * -2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r * r + r;
    return {__builtin_bit_cast(float, (__builtin_bit_cast(uint32_t, shifted) << 23) + 0x3f800000u), p};
}

// For both signs by e^-|x|, which needs one bound only: between two, compilers divide twice.
INLINE float sigmoid(float x) {
    const Exponential e = exponential(-std::fabs(x));
    const float grown = e.scale + e.scale * e.part;
    return (x < 0.0f ? grown : 1.0f) / (1.0f + grown);
}

INLINE float tanh_of(float x) {
    const float size = std::fabs(x), twice = size + size;
    const Exponential e = exponential(twice > 20.0f ? 20.0f : twice);
    const float grown = (e.scale - 1.0f) + e.scale * e.part;
    return std::copysign(grown / (grown + 2.0f), x);
}

// The normal distribution's share below x (Abramowitz and Stegun 7.1.26, for the smaller side).
INLINE float normal_share(float x) {
    const float size = std::fabs(x) * 0.70710678118654752f, t = 1.0f / (1.0f + 0.3275911f * size);
    const Exponential e = exponential(-size * size);
    float p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const float beyond = 0.5f * p * t * (e.scale + e.scale * e.part);
    return x < 0.0f ? beyond : 1.0f - beyond;
}

template <int32_t NAME> INLINE float activated(float x) {
    if constexpr (NAME == RELU) return x < 0.0f ? 0.0f : x;
    if constexpr (NAME == GELU) return x * normal_share(x);
    // 0.5 (1 + tanh(u)) is the sigmoid of 2 u.
    if constexpr (NAME == GELU_TANH) return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
    if constexpr (NAME == GELU_QUICK) return x * sigmoid(1.702f * x);
    if constexpr (NAME == SILU) return x * sigmoid(x);
    if constexpr (NAME == TANH) return tanh_of(x);
    return x;
}

template <int32_t NAME> INLINE void activate_panel(float* y) {
#pragma omp simd
    for (int64_t i = 0; i < PANEL; i++) y[i] = activated<NAME>(y[i]);
}

// y: [PANEL], replaced.
INLINE void activate_panel(int32_t name, float* y) {
    switch (name) {
        case RELU: return activate_panel<RELU>(y);
        case GELU: return activate_panel<GELU>(y);
        case GELU_TANH: return activate_panel<GELU_TANH>(y);
        case GELU_QUICK: return activate_panel<GELU_QUICK>(y);
        case SILU: return activate_panel<SILU>(y);
        case TANH: return activate_panel<TANH>(y);
        default: return;
    }
}
