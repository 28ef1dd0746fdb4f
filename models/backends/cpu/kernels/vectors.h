// Vectors of WIDTH lanes, in the vector types of the compiler. Those of 32-bit numbers fill one register, `Halves` a
// half of one. g++ keeps longer vectors in memory: with vectors of two AVX2 registers, attention ran at a fifteenth of
// the processor's limit.
#pragma once

#include "numbers.h"

// WIDTH: number of 32-bit lanes of a register. REGISTERS: number of vector registers.
#if defined(AVX512)
constexpr int64_t WIDTH = 16, REGISTERS = 32;
#elif defined(AVX2)
constexpr int64_t WIDTH = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int64_t WIDTH = 4, REGISTERS = 32;
#else
constexpr int64_t WIDTH = 4, REGISTERS = 16;
#endif

using Floats = float __attribute__((vector_size(WIDTH * 4)));
typedef float UnalignedFloats __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));
using Halves = uint16_t __attribute__((vector_size(WIDTH * 2)));
typedef uint16_t UnalignedHalves __attribute__((vector_size(WIDTH * 2), aligned(2), may_alias));
using Words = uint32_t __attribute__((vector_size(WIDTH * 4)));
typedef uint32_t UnalignedWords __attribute__((vector_size(WIDTH * 4), aligned(1), may_alias));
using Integers = int32_t __attribute__((vector_size(WIDTH * 4)));
typedef int32_t UnalignedIntegers __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));

// clang ignores these attributes in a `using` declaration, hence the typedefs.
static_assert(alignof(UnalignedFloats) == 4 && alignof(UnalignedHalves) == 2 && alignof(UnalignedIntegers) == 4);
static_assert(alignof(UnalignedWords) == 1);

INLINE Floats load(const float* x) { return *reinterpret_cast<const UnalignedFloats*>(x); }

INLINE Floats load(const bfloat16* x) {
    const Halves bits = *reinterpret_cast<const UnalignedHalves*>(x);
    return reinterpret_cast<Floats>(__builtin_convertvector(bits, Words) << 16);
}

INLINE Integers load(const int32_t* x) { return *reinterpret_cast<const UnalignedIntegers*>(x); }

INLINE Words load_words(const void* from) { return *reinterpret_cast<const UnalignedWords*>(from); }

INLINE void store_words(void* out, Words x) { *reinterpret_cast<UnalignedWords*>(out) = x; }

INLINE void store(int32_t* out, Integers x) { *reinterpret_cast<UnalignedIntegers*>(out) = x; }

INLINE void store(float* out, Floats x) { *reinterpret_cast<UnalignedFloats*>(out) = x; }

// Stores the nearest bfloat16 of each lane, ties to even. The AVX-512 instruction replaces subnormal numbers by zero.
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

INLINE Floats broadcast(float x) { return x - Floats{}; }

// N independent vectors on which the same steps are done side by side. A single chain of dependent steps would stall,
// as the processor reorders over a limited window only.
template <int N> struct Vectors {
    Floats of[N];
};

// Calls step(vector, others...) for each vector.
template <int N, class Step, class... Others>
INLINE Vectors<N> each(const Step& step, const Vectors<N>& x, const Others&... others) {
    Vectors<N> y;
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) y.of[i] = step(x.of[i], others.of[i]...);
    return y;
}

// Polynomial by the scheme of Horner; the first coefficient belongs to the highest power.
template <int N, class... Terms> INLINE Vectors<N> polynomial(const Vectors<N>& x, float highest, Terms... terms) {
    Vectors<N> p = each([&](Floats) { return broadcast(highest); }, x);
    ((p = each([&](Floats sum, Floats y) { return sum * y + terms; }, p, x)), ...);
    return p;
}

// The lanes of a and b in the order ORDER. Lane i of a has index i; lane i of b has index i + number of lanes.
template <int... ORDER, class Vector> INLINE Vector shuffled(Vector a, Vector b) {
#if __has_builtin(__builtin_shufflevector)
    return __builtin_shufflevector(a, b, ORDER...);
#else
    // g++ 11 has this builtin only. Its index vector has the type of a comparison: int32_t lanes for 32-bit
    // lanes.
    return __builtin_shuffle(a, b, decltype(a < b){ORDER...});
#endif
}

// even_pieces and odd_pieces split a and b into pieces of D lanes, numbered from 0. even_pieces returns the even pieces
// of a, each followed by the piece of b with the same number; odd_pieces does the same with the odd pieces.
template <int D, class Vector, int... I>
INLINE Vector even_pieces(Vector a, Vector b, std::integer_sequence<int, I...>) {
    return shuffled<((I & D) != 0 ? WIDTH + I - D : I)...>(a, b);
}

template <int D, class Vector, int... I>
INLINE Vector odd_pieces(Vector a, Vector b, std::integer_sequence<int, I...>) {
    return shuffled<((I & D) != 0 ? WIDTH + I : I + D)...>(a, b);
}

template <int D, class Vector> INLINE Vector even_pieces(Vector a, Vector b) {
    return even_pieces<D>(a, b, std::make_integer_sequence<int, WIDTH>{});
}

template <int D, class Vector> INLINE Vector odd_pieces(Vector a, Vector b) {
    return odd_pieces<D>(a, b, std::make_integer_sequence<int, WIDTH>{});
}

// Transposes a square of WIDTH vectors: lane j of vector i becomes lane i of vector j.
template <int D = WIDTH / 2, class Vector> INLINE void transpose(Vector (&x)[WIDTH]) {
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++) {
        if ((i & D) == 0) {
            const Vector first = even_pieces<D>(x[i], x[i + D]), second = odd_pieces<D>(x[i], x[i + D]);
            x[i] = first, x[i + D] = second;
        }
    }
    if constexpr (D > 1) transpose<D / 2>(x);
}

// The numbers 0, 1, 2...
template <int... I> INLINE Integers lane_numbers(std::integer_sequence<int, I...>) { return Integers{I...}; }

INLINE Integers lane_numbers() { return lane_numbers(std::make_integer_sequence<int, WIDTH>{}); }

INLINE Floats max_of(Floats x, Floats y) { return x > y ? x : y; }

// x, rounded to float32. Without this, the compiler may fuse the product that gave x with an addition of its result, and
// round only once.
INLINE Floats unfused(Floats x) {
#ifdef AVX512
    asm("" : "+v"(x));
#elif defined(__x86_64__)
    asm("" : "+x"(x));
#else
    asm("" : "+m"(x));
#endif
    return x;
}

// Combines all lanes to one number: first the halves of the vector, then the halves of that result, and so on.
template <int D = WIDTH / 2, class Vector, class Combine> INLINE auto over_lanes(Vector x, const Combine& combine) {
    if constexpr (D == 1) {
        return combine(x[0], x[1]);
    } else {
        return over_lanes<D / 2>(combine(even_pieces<D>(x, x), odd_pieces<D>(x, x)), combine);
    }
}

INLINE float sum_lanes(Floats x) {
    return over_lanes(x, [](auto a, auto b) ALWAYS_INLINE { return a + b; });
}

template <class Vector> INLINE auto max_lane(Vector x) {
    return over_lanes(x, [](auto a, auto b) ALWAYS_INLINE { return a > b ? a : b; });
}

constexpr float LOG2_E = 1.44269504088896341f;

// 2^x for x <= 0 by a given polynomial. Zero if too small for a float; NaN stays NaN. With AVX-512, x may have any
// value; the result is infinite if too large. The integer part of x goes to the exponent. The rest, at most a half, goes
// into the polynomial (Muller, Elementary Functions, chapter 11), highest power first.
template <int N, class... Terms> INLINE Vectors<N> power_of_two(const Vectors<N>& x, float highest, Terms... terms) {
#ifdef AVX512
    constexpr int NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const auto whole = each([](Floats x) { return (Floats)_mm512_roundscale_ps((__m512)x, NEAREST); }, x);
    const auto rest = each([](Floats x, Floats whole) { return x - whole; }, x, whole);
    // Gives zero for -inf and infinity for +inf, although their fractional part is NaN.
    const auto scale = [](Floats p, Floats whole) { return (Floats)_mm512_scalef_ps((__m512)p, (__m512)whole); };
    return each(scale, polynomial(rest, highest, terms...), whole);
#else
    return each([&](Floats x) {
        const Floats clamped = max_of(broadcast(-127.0f), x);
        // After this addition the lowest bits hold the nearest integer plus 127, which is the exponent of a
        // float. For -127 that exponent means zero.
        const Floats rounder = broadcast(12582912.0f + 127.0f), shifted = clamped + rounder;
        const Floats rest = clamped - (shifted - rounder);
        const Floats p = polynomial(rest, broadcast(highest), terms...);
        return p * reinterpret_cast<Floats>(reinterpret_cast<Words>(shifted) << 23);
    }, x);
#endif
}

// Relative error below 2e-7. The coefficients minimise the relative error and give exactly 1 at zero, here and below.
INLINE Floats power_of_two(Floats x) {
    return power_of_two(Vectors<1>{{x}}, 0.001326472731307149f, 0.009671512991189957f, 0.05550733581185341f,
                        0.24022242426872253f, 0.6931470036506653f, 1.0f).of[0];
}

// Relative error below 1.1e-4, for results that are rounded to bfloat16.
template <int N> INLINE Vectors<N> approximate_power_of_two(const Vectors<N>& x) {
    return power_of_two(x, 0.055008933f, 0.24221097f, 0.6932829f, 1.0f);
}

INLINE Floats approximate_power_of_two(Floats x) { return approximate_power_of_two(Vectors<1>{{x}}).of[0]; }
