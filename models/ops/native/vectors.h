// Sixteen floats at once, in the compiler's own vector types: one AVX-512 register, two of AVX2, four of SSE or NEON.
using Floats = float __attribute__((vector_size(64)));
using LooseFloats = float __attribute__((vector_size(64), aligned(4), may_alias));
using Halves = uint16_t __attribute__((vector_size(32)));
using LooseHalves = uint16_t __attribute__((vector_size(32), aligned(2), may_alias));
using Words = uint32_t __attribute__((vector_size(64)));

constexpr int64_t WIDTH = 16;

INLINE Floats load(const float* x) { return *reinterpret_cast<const LooseFloats*>(x); }

INLINE Floats load(const bfloat16* x) {
    const Halves bits = *reinterpret_cast<const LooseHalves*>(x);
    return reinterpret_cast<Floats>(__builtin_convertvector(bits, Words) << 16);
}

INLINE void store(float* out, Floats x) { *reinterpret_cast<LooseFloats*>(out) = x; }

// The sum of each of sixteen vectors, in their order. Every sum is made in the same order of its terms.
INLINE Floats sums_of(Floats x[16]) {
    for (int i = 0; i < 8; i++) {
        x[i] = __builtin_shufflevector(x[i], x[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
               __builtin_shufflevector(x[i], x[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    for (int i = 0; i < 4; i++) {
        x[i] = __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
               __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    }
    for (int i = 0; i < 2; i++) {
        x[i] = __builtin_shufflevector(x[i], x[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               __builtin_shufflevector(x[i], x[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
    return __builtin_shufflevector(x[0], x[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
           __builtin_shufflevector(x[0], x[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
}
