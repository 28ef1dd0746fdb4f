// Sixteen floats at once, in the compiler's own vector types: one AVX-512 register, two of AVX2, four of SSE or NEON.
using Floats = float __attribute__((vector_size(64)));
typedef float UnalignedFloats __attribute__((vector_size(64), aligned(4), may_alias));
using Halves = uint16_t __attribute__((vector_size(32)));
typedef uint16_t UnalignedHalves __attribute__((vector_size(32), aligned(2), may_alias));
using Words = uint32_t __attribute__((vector_size(64)));
using Integers = int32_t __attribute__((vector_size(64)));

// A `using` declaration with these attributes would keep the full alignment under clang.
static_assert(alignof(UnalignedFloats) == 4 && alignof(UnalignedHalves) == 2);

constexpr int64_t WIDTH = 16;

// How many of them the registers hold.
#ifdef AVX512
constexpr int64_t REGISTERS = 32;
#else
constexpr int64_t REGISTERS = 8;
#endif

INLINE Floats load(const float* x) { return *reinterpret_cast<const UnalignedFloats*>(x); }

INLINE Floats load(const bfloat16* x) {
    const Halves bits = *reinterpret_cast<const UnalignedHalves*>(x);
    return reinterpret_cast<Floats>(__builtin_convertvector(bits, Words) << 16);
}

INLINE void store(float* out, Floats x) { *reinterpret_cast<UnalignedFloats*>(out) = x; }

// The nearest bfloat16 of each, ties to even; the instruction makes zero of subnormal numbers.
INLINE void store(bfloat16* out, Floats x) {
#ifdef BF16_PRODUCTS
    *reinterpret_cast<UnalignedHalves*>(out) = (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
    alignas(64) float numbers[WIDTH];
    store(numbers, x);
#pragma omp simd
    for (int64_t i = 0; i < WIDTH; i++) narrow(numbers[i], out[i]);
#endif
}

INLINE Floats spread(float x) { return x - Floats{}; }

// Some vectors that take each step side by side: the processor looks only so far ahead, so that one chain of steps after
// another would wait.
template <int N> struct Several {
    Floats of[N];
};

// step(vector, others...) of each.
template <int N, class Step, class... Others>
INLINE Several<N> each(const Step& step, const Several<N>& x, const Others&... others) {
    Several<N> y;
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) y.of[i] = step(x.of[i], others.of[i]...);
    return y;
}

// The highest term first (Horner).
template <int N, class... Terms> INLINE Several<N> polynomial(const Several<N>& x, float highest, Terms... terms) {
    Several<N> p = each([&](Floats) { return spread(highest); }, x);
    ((p = each([&](Floats sum, Floats y) { return sum * y + terms; }, p, x)), ...);
    return p;
}

// Lanes of a and b in the order ORDER. Lane i of a has number i; lane i of b has number i plus the lanes of a vector.
template <int... ORDER, class Vector> INLINE Vector shuffled(Vector a, Vector b) {
#if __has_builtin(__builtin_shufflevector)
    return __builtin_shufflevector(a, b, ORDER...);
#else
    // g++ 11 has only this form. The result of a comparison has the type of the indices: int32_t for lanes of 32 bits.
    return __builtin_shuffle(a, b, decltype(a < b){ORDER...});
#endif
}

// Halves of two vectors side by side, in pieces of 8, 4, 2 and 1: the first of each pair of pieces, or the second.
#define HALVES(PIECE, ...)                                                                                     \
    INLINE Floats PIECE(Floats a, Floats b) { return shuffled<__VA_ARGS__>(a, b); }
HALVES(first_8, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
HALVES(second_8, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
HALVES(first_4, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
HALVES(second_4, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
HALVES(first_2, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
HALVES(second_2, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
HALVES(first_1, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
HALVES(second_1, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#undef HALVES

// The sum of each of sixteen vectors, in their order: lane i and i + 8 first, then i + 4, i + 2, i + 1.
INLINE Floats sums_of(Floats x[16]) {
    for (int i = 0; i < 8; i++) x[i] = first_8(x[i], x[i + 8]) + second_8(x[i], x[i + 8]);
    for (int i = 0; i < 4; i++) x[i] = first_4(x[i], x[i + 4]) + second_4(x[i], x[i + 4]);
    for (int i = 0; i < 2; i++) x[i] = first_2(x[i], x[i + 2]) + second_2(x[i], x[i + 2]);
    return first_1(x[0], x[1]) + second_1(x[0], x[1]);
}

// One stage of a transposition: vectors `step` apart exchange halves.
#define EXCHANGE(STEP)                                                                                         \
    for (int i = 0; i < 16; i++) {                                                                             \
        if ((i & STEP) == 0) {                                                                                 \
            const Floats first = first_##STEP(x[i], x[i + STEP]), second = second_##STEP(x[i], x[i + STEP]);   \
            x[i] = first;                                                                                      \
            x[i + STEP] = second;                                                                              \
        }                                                                                                      \
    }
// Sixteen vectors to their lanes: lane j of vector i becomes lane i of vector j.
INLINE void transpose(Floats x[16]) {
    EXCHANGE(8)
    EXCHANGE(4)
    EXCHANGE(2)
    EXCHANGE(1)
}
#undef EXCHANGE

INLINE Floats higher(Floats x, Floats y) { return x > y ? x : y; }

INLINE float sum_of(Floats x) {
    x = first_8(x, x) + second_8(x, x);
    x = first_4(x, x) + second_4(x, x);
    x = first_2(x, x) + second_2(x, x);
    return x[0] + x[1];
}

INLINE float highest_of(Floats x) {
    x = higher(first_8(x, x), second_8(x, x));
    x = higher(first_4(x, x), second_4(x, x));
    x = higher(first_2(x, x), second_2(x, x));
    return x[0] > x[1] ? x[0] : x[1];
}

constexpr float LOG2_E = 1.44269504088896341f;

// 2^x for x <= 0, zero where it is too small for a float; a NaN stays one. The whole part of x goes into the exponent, the
// rest, within a half, into a polynomial (Muller, Elementary Functions, chapter 11), its highest term first.
template <int N, class... Terms> INLINE Several<N> power_of_two(const Several<N>& x, float highest, Terms... terms) {
#ifdef AVX512
    constexpr int NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const auto whole = each([](Floats x) { return (Floats)_mm512_roundscale_ps((__m512)x, NEAREST); }, x);
    const auto rest = each([](Floats x, Floats whole) { return x - whole; }, x, whole);
    // Zero for minus infinity, whose rest is not a number.
    const auto scale = [](Floats p, Floats whole) { return (Floats)_mm512_scalef_ps((__m512)p, (__m512)whole); };
    return each(scale, polynomial(rest, highest, terms...), whole);
#else
    return each([&](Floats x) {
        const Floats clamped = higher(spread(-127.0f), x);
        // Added to a small number, it leaves that number's nearest integer, 127 higher, in the last bits: an exponent, and
        // for -127 the one of zero.
        const Floats rounder = spread(12582912.0f + 127.0f), shifted = clamped + rounder;
        const Floats rest = clamped - (shifted - rounder);
        const Floats p = polynomial(rest, spread(highest), terms...);
        return p * reinterpret_cast<Floats>(reinterpret_cast<Words>(shifted) << 23);
    }, x);
#endif
}

// Within 2e-7 of its value. Terms of least relative error with one at zero, here and below.
INLINE Floats power_of_two(Floats x) {
    return power_of_two(Several<1>{{x}}, 0.001326472731307149f, 0.009671512991189957f, 0.05550733581185341f,
                        0.24022242426872253f, 0.6931470036506653f, 1.0f).of[0];
}

// Within 1.1e-4: for numbers that are rounded to bfloat16.
template <int N> INLINE Several<N> rough_power_of_two(const Several<N>& x) {
    return power_of_two(x, 0.055008933f, 0.24221097f, 0.6932829f, 1.0f);
}

INLINE Floats rough_power_of_two(Floats x) { return rough_power_of_two(Several<1>{{x}}).of[0]; }
