// What all kernels share: number types, one function per processor generation, threads, and an exponential that
// compilers can vectorise. Plain C++17 and OpenMP; no torch, so that building needs nothing but a compiler.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef _OPENMP
#include <omp.h>
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))
#define INLINE inline __attribute__((always_inline))

// The compiler makes one version for each generation; the loader picks the best one that this processor can run.
// A parallel region inside such a function would be compiled for the oldest one: threads start outside (`parallel`).
#if defined(__x86_64__) && defined(__GLIBC__)
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_CPU
#endif

enum DType : int32_t { FLOAT32 = 0, BFLOAT16 = 1 };

struct bfloat16 {
    uint16_t bits;
};

INLINE float widen(float x) { return x; }

INLINE float widen(bfloat16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }

INLINE void narrow(float x, float& out) { out = x; }

// Round to nearest, ties to even; a NaN stays one.
INLINE void narrow(float x, bfloat16& out) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x);
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    out.bits = static_cast<uint16_t>((is_nan ? bits | 0x400000u : rounded) >> 16);
}

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

// body(begin, end) over pieces of 0..count of at least `grain` items, on as many threads as torch has. Threads take
// pieces as they get free, four each where there are enough, so that uneven work ends together.
template <class Body> void parallel(int64_t count, int64_t grain, const Body& body) {
#ifdef _OPENMP
    const int64_t threads = omp_in_parallel() ? 1 : std::min<int64_t>(omp_get_max_threads(), count / std::max<int64_t>(1, grain));
    if (threads > 1) {
        const int64_t pieces = std::min(4 * threads, count / std::max<int64_t>(1, grain));
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast<int>(threads))
        for (int64_t piece = 0; piece < pieces; piece++) body(count * piece / pieces, count * (piece + 1) / pieces);
        return;
    }
#endif
    if (count > 0) body(static_cast<int64_t>(0), count);
}
