// Rotary position embedding (Su et al. 2021, arXiv:2104.09864, section 3.4.2). The first 2 * half numbers of a head
// are rotated; the rest is copied.
#pragma once

#include "numbers.h"

template <class T>
INLINE void rotate_head(const T* x, const float* cos, const float* sin, T* out, int64_t half, int64_t head_dim,
                 bool interleaved) {
    if (interleaved) {
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
            const float first = widen(x[2 * i]), second = widen(x[2 * i + 1]);
            narrow(first * cos[i] - second * sin[i], out[2 * i]);
            narrow(second * cos[i] + first * sin[i], out[2 * i + 1]);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
            const float first = widen(x[i]), second = widen(x[half + i]);
            narrow(first * cos[i] - second * sin[i], out[i]);
            narrow(second * cos[i] + first * sin[i], out[half + i]);
        }
    }
    for (int64_t i = 2 * half; i < head_dim; i++) out[i] = x[i];
}

template <class T> void rotate_tokens(const Rotation& p, int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; token++) {
        const int64_t angles = (p.positions ? p.positions[token] : token) * p.half;
        for (int64_t head = 0; head < p.heads; head++) {
            rotate_head(static_cast<const T*>(p.x) + token * p.stride + head * p.head_dim, p.cos + angles,
                        p.sin + angles, static_cast<T*>(p.out) + (token * p.heads + head) * p.head_dim, p.half,
                        p.head_dim, p.is_interleaved != 0);
        }
    }
}

void rotate(DType dtype, const Rotation& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? rotate_tokens<float>(p, begin, end) : rotate_tokens<bfloat16>(p, begin, end);
}
