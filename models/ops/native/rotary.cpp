// Rotary positions (Su et al. 2021, arXiv:2104.09864, section 3.4.2), and the write of keys and values to their slots.
#include "common.h"

namespace {

template <class T>
INLINE void turn(const T* x, const float* cos, const float* sin, T* out, int64_t half, int64_t head_dim,
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

template <class T>
INLINE void turn_tokens(const T* x, int64_t stride, const float* cos, const float* sin, T* out, int64_t begin,
                        int64_t end, int64_t heads, int64_t head_dim, int64_t half, bool interleaved) {
    for (int64_t token = begin; token < end; token++) {
        for (int64_t head = 0; head < heads; head++) {
            turn(x + token * stride + head * head_dim, cos + token * half, sin + token * half,
                 out + (token * heads + head) * head_dim, half, head_dim, interleaved);
        }
    }
}

FOR_EACH_CPU void turn_float32(const float* x, int64_t stride, const float* cos, const float* sin, float* out,
                               int64_t begin, int64_t end, int64_t heads, int64_t head_dim, int64_t half,
                               bool interleaved) {
    turn_tokens(x, stride, cos, sin, out, begin, end, heads, head_dim, half, interleaved);
}

FOR_EACH_CPU void turn_bfloat16(const bfloat16* x, int64_t stride, const float* cos, const float* sin, bfloat16* out,
                                int64_t begin, int64_t end, int64_t heads, int64_t head_dim, int64_t half,
                                bool interleaved) {
    turn_tokens(x, stride, cos, sin, out, begin, end, heads, head_dim, half, interleaved);
}

}  // namespace

// x: [tokens, heads, head_dim], tokens `stride` numbers apart. cos, sin: [tokens, half], float32. out: contiguous.
EXPORT void triptych_rotate(int32_t dtype, const void* x, int64_t stride, const float* cos, const float* sin, void* out,
                            int64_t tokens, int64_t heads, int64_t head_dim, int64_t half, int32_t interleaved) {
    parallel(tokens, std::max<int64_t>(1, 32768 / (heads * head_dim)), [&](int64_t begin, int64_t end) {
        if (dtype == FLOAT32) {
            turn_float32(static_cast<const float*>(x), stride, cos, sin, static_cast<float*>(out), begin, end, heads,
                         head_dim, half, interleaved != 0);
        } else {
            turn_bfloat16(static_cast<const bfloat16*>(x), stride, cos, sin, static_cast<bfloat16*>(out), begin, end,
                          heads, head_dim, half, interleaved != 0);
        }
    });
}

// Copy row i of `key` and of `value`, `key_stride` and `value_stride` bytes apart, to row slots[i] of the caches, whose
// rows are `width` bytes.
EXPORT void triptych_write_slots(const char* key, int64_t key_stride, const char* value, int64_t value_stride,
                                 char* key_cache, char* value_cache, const int64_t* slots, int64_t tokens,
                                 int64_t width) {
    for (int64_t i = 0; i < tokens; i++) {
        std::memcpy(key_cache + slots[i] * width, key + i * key_stride, width);
        std::memcpy(value_cache + slots[i] * width, value + i * value_stride, width);
    }
}
