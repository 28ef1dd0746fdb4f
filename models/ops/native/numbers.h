// Number types, and an exponential that compilers can vectorise.

INLINE float widen(float x) { return x; }

INLINE float widen(bfloat16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }

INLINE void narrow(float x, float& out) { out = x; }

// The nearest bfloat16, ties to even, in the upper half of its bits; a NaN stays one.
INLINE uint32_t rounded_bits(float x) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x);
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return is_nan ? bits | 0x400000u : rounded;
}

INLINE float rounded(float x) { return __builtin_bit_cast(float, rounded_bits(x) & 0xffff0000u); }

INLINE void narrow(float x, bfloat16& out) { out.bits = static_cast<uint16_t>(rounded_bits(x) >> 16); }

// e^x within 2e-7 of its value for x <= 0; below -87 the result is zero. Cody-Waite reduction by ln 2 and a Taylor
// polynomial on [-ln 2 / 2, ln 2 / 2] (Muller, Elementary Functions, chapters 3 and 11). No branch, no table.
INLINE float exp_negative(float x) {
    const float clamped = std::max(x, -87.0f);
    const float turns = std::nearbyint(clamped * 1.44269504088896341f);
    float r = clamped - turns * 0.693359375f;
    r = r - turns * -2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    const float scale = __builtin_bit_cast(float, (static_cast<int32_t>(turns) + 127) << 23);
    return x < -87.0f ? 0.0f : p * scale;
}

// The same in double, within a few units in the last place; below -700 the result is zero.
INLINE double exp_negative(double x) {
    const double clamped = std::max(x, -700.0);
    const double turns = std::nearbyint(clamped * 1.4426950408889634);
    double r = clamped - turns * 6.93147180369123816490e-01;
    r = r - turns * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r * r + r + 1.0;
    const double scale = __builtin_bit_cast(double, (static_cast<int64_t>(turns) + 1023) << 52);
    return x < -700.0 ? 0.0 : p * scale;
}
