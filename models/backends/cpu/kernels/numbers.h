// Conversion between number types, and exponentials that compilers can vectorise.
#pragma once

#include "kernels.h"

INLINE float widen(float x) { return x; }

INLINE float widen(bfloat16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }

INLINE void narrow(float x, float& out) { out = x; }

// The nearest bfloat16 in the upper 16 bits, ties to even. NaN stays NaN.
INLINE uint32_t rounded_bits(float x) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x);
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return is_nan ? bits | 0x400000u : rounded;
}

INLINE float rounded(float x) { return __builtin_bit_cast(float, rounded_bits(x) & 0xffff0000u); }

INLINE void narrow(float x, bfloat16& out) { out.bits = static_cast<uint16_t>(rounded_bits(x) >> 16); }

// Polynomial by the scheme of Horner; the first coefficient belongs to the highest power.
template <class Number, class... Terms> INLINE Number polynomial(Number x, Number highest, Terms... terms) {
    ((highest = highest * x + terms), ...);
    return highest;
}

// e^x = scale + scale * part, and e^x - 1 = (scale - 1) + scale * part. x is at most 88; below -87 it is treated
// as -87.
struct Exponential {
    float scale, part;
};

// Cody-Waite reduction by ln 2 and a Taylor polynomial on [-ln 2 / 2, ln 2 / 2] (Muller, Elementary Functions,
// chapters 3 and 11). Adding 1.5 * 2^23 rounds to an integer and leaves it in the lowest bits.
INLINE Exponential exponential(float x) {
    const float clamped = x < -87.0f ? -87.0f : x;
    const float shifted = clamped * 1.44269504088896341f + 12582912.0f, turns = shifted - 12582912.0f;
    float r = clamped - turns * 0.693359375f;
    r = r - turns * -2.12194440e-4f;
    const float p = polynomial(r, 1.0f / 5040.0f, 1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f);
    return {__builtin_bit_cast(float, (__builtin_bit_cast(uint32_t, shifted) << 23) + 0x3f800000u), p * r * r + r};
}

// e^x for x <= 0 with a relative error below 2e-7. Zero below -87.
INLINE float exp_negative(float x) {
    const Exponential e = exponential(x);
    return x < -87.0f ? 0.0f : e.scale + e.scale * e.part;
}

// e^x for x <= 0 in double, with an error of a few units in the last place. Zero below -700.
INLINE double exp_negative(double x) {
    const double clamped = std::max(x, -700.0);
    const double turns = std::nearbyint(clamped * 1.4426950408889634);
    double r = clamped - turns * 6.93147180369123816490e-01;
    r = r - turns * 1.90821492927058770002e-10;
    const double p = polynomial(r, 1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0,
                                1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0,
                                1.0 / 6.0, 0.5);
    const double scale = __builtin_bit_cast(double, (static_cast<int64_t>(turns) + 1023) << 52);
    return x < -700.0 ? 0.0 : (p * r * r + r + 1.0) * scale;
}
