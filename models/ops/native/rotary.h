// Rotary positions (Su et al. 2021, arXiv:2104.09864, section 3.4.2).

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
void turn_tokens(const T* x, int64_t stride, const float* cos, const float* sin, T* out, int64_t begin,
                        int64_t end, int64_t heads, int64_t head_dim, int64_t half, bool interleaved) {
    for (int64_t token = begin; token < end; token++) {
        for (int64_t head = 0; head < heads; head++) {
            turn(x + token * stride + head * head_dim, cos + token * half, sin + token * half,
                 out + (token * heads + head) * head_dim, half, head_dim, interleaved);
        }
    }
}

// x: [tokens, heads, head_dim], tokens `stride` numbers apart. cos, sin: [tokens, half]. out: contiguous.
void rotate(DType dtype, const void* x, int64_t stride, const float* cos, const float* sin, void* out, int64_t heads,
            int64_t head_dim, int64_t half, bool interleaved, int64_t begin, int64_t end) {
    if (dtype == FLOAT32) {
        turn_tokens(static_cast<const float*>(x), stride, cos, sin, static_cast<float*>(out), begin, end, heads,
                    head_dim, half, interleaved);
    } else {
        turn_tokens(static_cast<const bfloat16*>(x), stride, cos, sin, static_cast<bfloat16*>(out), begin, end, heads,
                    head_dim, half, interleaved);
    }
}
