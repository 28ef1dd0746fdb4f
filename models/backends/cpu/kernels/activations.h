// Activation functions, computed in float32. NaN stays NaN.
//
// Those of single numbers have no branches and tables, so that compilers can vectorise them. Their error is below 1e-6,
// relative to the result, or absolute for results below 1. Functions named `approximate_...` are for results that are
// rounded to bfloat16.
#pragma once

#include "numbers.h"
#include "vectors.h"

// Uses e^-|x| for both signs. One bound on the exponent suffices then; with two, compilers emit two divisions.
INLINE float sigmoid(float x) {
    const Exponential e = exponential(-std::fabs(x));
    const float exp_x = e.scale + e.scale * e.part;
    return (x < 0.0f ? exp_x : 1.0f) / (1.0f + exp_x);
}

INLINE float tanh(float x) {
    const float size = std::fabs(x), twice = size + size;
    const Exponential e = exponential(twice > 20.0f ? 20.0f : twice);
    const float exp_x = (e.scale - 1.0f) + e.scale * e.part;
    return std::copysign(exp_x / (exp_x + 2.0f), x);
}

// Standard normal distribution function. For x < 0 it is 0.5 - |x| * P(x^2), and 0 below -5.2; for x > 0, 1 minus the
// value at -x.
//
// The polynomial P was fitted by weighted least squares. It is written in t = 2 (x / 5.2)^2 - 1, which runs from -1
// to 1, so that its terms stay small. Terms are added in pairs, then pairs of pairs (Estrin), because a single chain
// of fourteen dependent terms would stall the processor.
INLINE float normal_cdf(float x) {
    const float size = std::fabs(x), t = size * (size * (2.0f / (5.2f * 5.2f))) - 1.0f;
    const float t2 = t * t, t4 = t2 * t2, t8 = t4 * t4;
    const float p0 = 0.135949984f - 0.0677436218f * t, p2 = 0.0500256158f - 0.0399319865f * t;
    const float p4 = 0.031973917f - 0.0246988405f * t, p6 = 0.0180387739f - 0.0126196565f * t;
    const float p8 = 0.00836509373f - 0.00454232097f * t, p10 = 0.00200518291f - 0.00146876578f * t;
    const float p12 = 0.00118868484f - 0.000388237968f * t;
    const float low = (p0 + p2 * t2) + (p4 + p6 * t2) * t4, high = (p8 + p10 * t2) + p12 * t4;
    const float upper_tail = size < 5.2f ? 0.5f - (low + high * t8) * size : 0.0f;
    return x < 0.0f ? upper_tail : 1.0f - upper_tail;
}

// cap * tanh(x / cap) (soft capping). tanh is computed from e^-2|x|, with an error below 1e-7.
INLINE Floats soft_capped(Floats x, float cap) {
    const Floats scaled = x / cap, falling = scaled > Floats{} ? -2.0f * scaled : 2.0f * scaled;
    const Floats power = power_of_two(falling * LOG2_E), size = cap * ((1.0f - power) / (1.0f + power));
    return scaled > Floats{} ? size : -size;
}

template <int32_t ACTIVATION> INLINE float activate(float x) {
    if constexpr (ACTIVATION == RELU) return x < 0.0f ? 0.0f : x;
    if constexpr (ACTIVATION == RELU_SQUARED) return x < 0.0f ? 0.0f : x * x;
    if constexpr (ACTIVATION == GELU) return x * normal_cdf(x);
    // 0.5 (1 + tanh(u)) is the sigmoid of 2 u.
    if constexpr (ACTIVATION == GELU_TANH) return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
    if constexpr (ACTIVATION == GELU_QUICK) return x * sigmoid(1.702f * x);
    if constexpr (ACTIVATION == SILU) return x * sigmoid(x);
    if constexpr (ACTIVATION == TANH) return tanh(x);
    if constexpr (ACTIVATION == SIGMOID) return sigmoid(x);
    return x;
}

template <int32_t ACTIVATION> INLINE void activate_panel(float* y) {
#pragma omp simd
    for (int64_t i = 0; i < PANEL; i++) y[i] = activate<ACTIVATION>(y[i]);
}

// y: [PANEL], float32, replaced in place. Not inlined, so that the compiler rounds it the same way for every caller.
__attribute__((noinline)) void activate_panel(int32_t activation, float* y) {
    switch (activation) {
        case RELU: return activate_panel<RELU>(y);
        case RELU_SQUARED: return activate_panel<RELU_SQUARED>(y);
        case GELU: return activate_panel<GELU>(y);
        case GELU_TANH: return activate_panel<GELU_TANH>(y);
        case GELU_QUICK: return activate_panel<GELU_QUICK>(y);
        case SILU: return activate_panel<SILU>(y);
        case TANH: return activate_panel<TANH>(y);
        case SIGMOID: return activate_panel<SIGMOID>(y);
        default: return;
    }
}

// GELU for results that are rounded to bfloat16, as max(x, 0) - |x| * Q(|x|), where Q is the upper tail of the normal
// distribution.
#ifdef AVX512

// Absolute error below 4e-6; relative error below 7e-4 where the absolute value of the result is above 1e-3. Q is a cubic
// polynomial in each of sixteen cells. They are 0.37 wide, except that the first is half as wide, and that the last, where
// Q is taken as zero, has no end. The centre of cell i is 0.37 i. The sixteen values of one coefficient fill one register;
// one permutation selects the value of each lane's cell. The coefficients minimise the largest ratio of the error to the
// bfloat16 rounding error of the result.
template <int N> INLINE Vectors<N> approximate_gelu(const Vectors<N>& x) {
    constexpr float CELL = 0.37f;
    static const Floats constants = {
        0.50000006f, 0.500209451f, 0.506136239f, 0.530945718f, 0.568244457f, 0.576419055f, 0.515151322f,
        0.389847189f, 0.24649775f, 0.13036254f, 0.0581137687f, 0.0218861308f, 0.00693741255f, 0.0018567153f,
        0.000421994482f, 0.0f};
    static const Floats slopes = {
        -0.398950428f, -0.401381552f, -0.431631923f, -0.511203945f, -0.598425865f, -0.614988625f, -0.526323617f,
        -0.370876104f, -0.216056034f, -0.10508965f, -0.0431863591f, -0.0150450217f, -0.00442669122f,
        -0.00110380061f, -0.000234614636f, 0.0f};
    static const Floats squares = {
        0.00017089193f, 0.00959401764f, 0.0618417077f, 0.147463575f, 0.215668902f, 0.22673431f, 0.183916241f,
        0.119573623f, 0.0637967959f, 0.0284347348f, 0.0107475435f, 0.00345846848f, 0.000943661726f, 0.000219086432f,
        4.35305483e-05f, 0.0f};
    static const Floats cubes = {
        0.0654583126f, 0.0529466681f, 0.0223582461f, -0.00855288375f, -0.0263859425f, -0.0288285781f,
        -0.0219281595f, -0.0130420197f, -0.00633893861f, -0.00258056261f, -0.000895315199f, -0.000265779207f,
        -6.71940361e-05f, -1.45167151e-05f, -2.69518955e-06f, 0.0f};
    const auto size = each([](Floats x) {
        const __m512 size = (__m512)(reinterpret_cast<Words>(x) & 0x7fffffffu);
        // This instruction gives its second operand if that is NaN.
        return (Floats)_mm512_min_ps(_mm512_set1_ps(15 * CELL), size);
    }, x);
    // After this addition the lowest bits hold the nearest integer; the instruction below uses the lowest four.
    const auto cell = each([](Floats size) { return size * (1.0f / CELL) + 12582912.0f; }, size);
    const auto tail = each([](Floats size, Floats cell) {
        const auto of_cell = [&](Floats table) {
            return (Floats)_mm512_permutexvar_ps((__m512i)cell, (__m512)table);
        };
        return ((of_cell(cubes) * size + of_cell(squares)) * size + of_cell(slopes)) * size + of_cell(constants);
    }, size, cell);
    return each([](Floats x, Floats size, Floats tail) { return max_of(x, Floats{}) - size * tail; }, x, size, tail);
}

// x * sigmoid(y) with y = argument(x). Relative error below 2e-4; zero where the sigmoid is below 2^-128 (3e-39). The
// sigmoid is 1 / (1 + e^-y); the reciprocal is an instruction with 14 correct bits.
template <int N, class Argument>
INLINE Vectors<N> approximate_times_sigmoid(const Vectors<N>& x, const Argument& argument) {
    const auto power = approximate_power_of_two(each([&](Floats x) { return argument(x) * -LOG2_E; }, x));
    return each([](Floats x, Floats power) { return x * (Floats)_mm512_rcp14_ps((__m512)(1.0f + power)); }, x, power);
}

#else

// Absolute error below 3e-4. The base-2 logarithm of Q is nearly a parabola; the polynomial was fitted to it by weighted
// least squares.
template <int N> INLINE Vectors<N> approximate_gelu(const Vectors<N>& x) {
    // Above 14 the tail is zero in float32. The comparison keeps NaN.
    const auto size = each([](Floats x) {
        const Floats size = reinterpret_cast<Floats>(reinterpret_cast<Words>(x) & 0x7fffffffu);
        return size > 14.0f ? broadcast(14.0f) : size;
    }, x);
    const auto tail = approximate_power_of_two(polynomial(size, 1.35690643e-5f, -4.55402915e-4f, 6.24659611e-3f,
                                                     -4.85947914e-2f, -0.464274794f, -1.14915192f, -1.0f));
    return each([](Floats x, Floats size, Floats tail) { return max_of(x, Floats{}) - size * tail; }, x, size, tail);
}

#endif

// Activation of whole panels. x: float32 values that will be stored in dtype T.
template <class T, int N> INLINE Vectors<N> activate(int32_t activation, Vectors<N> x) {
    if constexpr (std::is_same<T, bfloat16>::value) {
        if (activation == GELU) return approximate_gelu(x);
#ifdef AVX512
        const auto cubic = [](Floats x) ALWAYS_INLINE { return 1.5957691216057308f * (x + 0.044715f * x * x * x); };
        const auto linear = [](Floats x) ALWAYS_INLINE { return 1.702f * x; };
        const auto same = [](Floats x) ALWAYS_INLINE { return x; };
        if (activation == SILU) return approximate_times_sigmoid(x, same);
        if (activation == GELU_TANH) return approximate_times_sigmoid(x, cubic);
        if (activation == GELU_QUICK) return approximate_times_sigmoid(x, linear);
#endif
    }
    alignas(64) float numbers[N * WIDTH];
    for (int i = 0; i < N; i++) store(numbers + i * WIDTH, x.of[i]);
    for (int64_t i = 0; i < N * WIDTH; i += PANEL) activate_panel(activation, numbers + i);
    for (int i = 0; i < N; i++) x.of[i] = load(numbers + i * WIDTH);
    return x;
}
