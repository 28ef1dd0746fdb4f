// Vectors of sixteen floats in the vector types of the compiler: one AVX-512 register, two AVX2 registers, four SSE
// or NEON registers.
using Floats = float __attribute__((vector_size(64)));
typedef float UnalignedFloats __attribute__((vector_size(64), aligned(4), may_alias));
using Halves = uint16_t __attribute__((vector_size(32)));
typedef uint16_t UnalignedHalves __attribute__((vector_size(32), aligned(2), may_alias));
using Words = uint32_t __attribute__((vector_size(64)));
using Integers = int32_t __attribute__((vector_size(64)));
typedef int32_t UnalignedIntegers __attribute__((vector_size(64), aligned(4), may_alias));

// clang ignores these attributes in a `using` declaration, hence the typedefs.
static_assert(alignof(UnalignedFloats) == 4 && alignof(UnalignedHalves) == 2 && alignof(UnalignedIntegers) == 4);

constexpr int64_t WIDTH = 16;

// Number of such vectors that the registers hold.
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

INLINE Integers load(const int32_t* x) { return *reinterpret_cast<const UnalignedIntegers*>(x); }

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

// Pieces of 8, 4, 2 and 1 lanes of two vectors: first_N takes the first of each pair of pieces, second_N the second.
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

// One stage of a transposition: vectors STEP apart exchange halves.
#define EXCHANGE(STEP)                                                                                         \
    for (int i = 0; i < 16; i++) {                                                                             \
        if ((i & STEP) == 0) {                                                                                 \
            const Floats first = first_##STEP(x[i], x[i + STEP]), second = second_##STEP(x[i], x[i + STEP]);   \
            x[i] = first;                                                                                      \
            x[i + STEP] = second;                                                                              \
        }                                                                                                      \
    }
// Transposes a 16 x 16 matrix: lane j of vector i becomes lane i of vector j.
INLINE void transpose(Floats x[16]) {
    EXCHANGE(8)
    EXCHANGE(4)
    EXCHANGE(2)
    EXCHANGE(1)
}
#undef EXCHANGE

INLINE Floats max_of(Floats x, Floats y) { return x > y ? x : y; }

// x, rounded to float32. Without this, the compiler may fuse the product that gave x with an addition of its result, and
// round only once.
INLINE Floats unfused(Floats x) {
#ifdef AVX512
    asm("" : "+v"(x));
#else
    asm("" : "+m"(x));
#endif
    return x;
}

INLINE float sum_lanes(Floats x) {
    x = first_8(x, x) + second_8(x, x);
    x = first_4(x, x) + second_4(x, x);
    x = first_2(x, x) + second_2(x, x);
    return x[0] + x[1];
}

INLINE float max_lane(Floats x) {
    x = max_of(first_8(x, x), second_8(x, x));
    x = max_of(first_4(x, x), second_4(x, x));
    x = max_of(first_2(x, x), second_2(x, x));
    return x[0] > x[1] ? x[0] : x[1];
}

constexpr float LOG2_E = 1.44269504088896341f;

// 2^x for x <= 0, and with AVX-512 for every x, by a given polynomial. Zero if too small for a float, infinite if too
// large; NaN stays NaN. The integer part of x goes to the exponent. The rest, at most a half, goes into the polynomial
// (Muller, Elementary Functions, chapter 11), highest power first.
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
