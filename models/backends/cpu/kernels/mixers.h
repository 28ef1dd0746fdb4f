// One step of mixers: parts of a layer that read earlier tokens through a state of constant size, float32. Each row has
// one token and a slot of its own, which is read and updated.
#pragma once

#include "activations.h"
#include "numbers.h"

// log(1 + e^x).
INLINE float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// Convolution of each channel over the token and the taps - 1 tokens before it, the most distant one first.
template <class T> void convolution_step_rows(const ConvolutionStep& p, int64_t begin, int64_t end) {
    const int64_t last = p.taps - 1;
    const float scale = static_cast<float>(p.scale);
    for (int64_t row = begin; row < end; row++) {
        const T* x = static_cast<const T*>(p.x) + row * p.stride;
        const T* gate = p.gate == nullptr ? nullptr : static_cast<const T*>(p.gate) + row * p.stride;
        const T* multiplier = p.multiplier == nullptr ? nullptr : static_cast<const T*>(p.multiplier) + row * p.stride;
        float* window = p.windows + p.slots[row] * last * p.channels + p.first;
        const float* weights = p.weights + p.first;
        for (int64_t block = 0; block < p.width; block += PANEL) {
            const int64_t count = std::min(PANEL, p.width - block);
            alignas(64) float input[PANEL] = {}, sum[PANEL] = {};
            for (int64_t i = 0; i < count; i++) {
                input[i] = widen(x[block + i]) * scale;
                if (gate != nullptr) {
                    // The product has the dtype of its factors.
                    T product;
                    narrow(input[i] * widen(gate[block + i]), product);
                    input[i] = widen(product);
                }
            }
            for (int64_t tap = 0; tap < last; tap++) {
                float* earlier = window + tap * p.channels + block;
                const float* weight = weights + tap * p.channels + block;
                const float* next = tap + 1 < last ? earlier + p.channels : input;
                for (int64_t i = 0; i < count; i++) {
                    sum[i] += earlier[i] * weight[i];
                    earlier[i] = next[i];
                }
            }
            const float* weight = weights + last * p.channels + block;
            for (int64_t i = 0; i < count; i++) {
                sum[i] += input[i] * weight[i];
                if (p.bias != nullptr) sum[i] += p.bias[p.first + block + i];
            }
            if (multiplier == nullptr) {
                activate_panel(SILU, sum);
                float* out = static_cast<float*>(p.out) + row * p.out_stride + block;
                for (int64_t i = 0; i < count; i++) out[i] = sum[i];
                continue;
            }
            T* out = static_cast<T*>(p.out) + row * p.out_stride + block;
            for (int64_t i = 0; i < count; i++) {
                T convolved;
                narrow(sum[i], convolved);
                narrow(widen(convolved) * widen(multiplier[block + i]), out[i]);
            }
        }
    }
}

void convolution_step(DType dtype, const ConvolutionStep& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? convolution_step_rows<float>(p, begin, end) : convolution_step_rows<bfloat16>(p, begin, end);
}

// x divided by its length, times `scale`.
INLINE void unit_length(const float* x, float* out, int64_t width, float scale) {
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; i++) squares += x[i] * x[i];
    const float factor = scale / std::sqrt(squares + 1e-6f);
#pragma omp simd
    for (int64_t i = 0; i < width; i++) out[i] = x[i] * factor;
}

// Gated delta rule (Yang et al. 2024, arXiv:2412.06464, equation 10) of one head and row for each item.
template <class T> void gated_delta_step_heads(const GatedDeltaStep& p, int64_t begin, int64_t end) {
    const int64_t key_width = p.key_heads * p.key_dim, shared = p.heads / p.key_heads;
    for (int64_t item = begin; item < end; item++) {
        const int64_t row = item / p.heads, head = item % p.heads, key_dim = p.key_dim, value_dim = p.value_dim;
        const float* inputs = p.inputs + row * (2 * key_width + p.heads * value_dim);
        alignas(64) float query[MAX_MIXER_DIM], key[MAX_MIXER_DIM], sum[MAX_MIXER_DIM] = {};
        unit_length(inputs + head / shared * key_dim, query, key_dim, 1.0f / std::sqrt(static_cast<float>(key_dim)));
        unit_length(inputs + key_width + head / shared * key_dim, key, key_dim, 1.0f);
        const float* value = inputs + 2 * key_width + head * value_dim;
        const float beta = sigmoid(widen(static_cast<const T*>(p.beta)[row * p.beta_stride + head]));
        const float step = widen(static_cast<const T*>(p.decay)[row * p.decay_stride + head]) + p.decay_bias[head];
        const float decay = std::exp(p.decay_factors[head] * softplus(step));
        float* memory = p.memory + (p.slots[row] * p.heads + head) * key_dim * value_dim;
        for (int64_t i = 0; i < key_dim; i++) {
            const float* line = memory + i * value_dim;
            const float weight = key[i];
#pragma omp simd
            for (int64_t j = 0; j < value_dim; j++) sum[j] += line[j] * weight;
        }
        alignas(64) float correction[MAX_MIXER_DIM], out[MAX_MIXER_DIM] = {};
#pragma omp simd
        for (int64_t j = 0; j < value_dim; j++) correction[j] = (value[j] - sum[j] * decay) * beta;
        for (int64_t i = 0; i < key_dim; i++) {
            float* line = memory + i * value_dim;
            const float strength = key[i], weight = query[i];
#pragma omp simd
            for (int64_t j = 0; j < value_dim; j++) {
                const float number = line[j] * decay + correction[j] * strength;
                line[j] = number;
                out[j] += number * weight;
            }
        }
        T* result = static_cast<T*>(p.out) + (row * p.heads + head) * value_dim;
#pragma omp simd
        for (int64_t j = 0; j < value_dim; j++) narrow(out[j], result[j]);
    }
}

void gated_delta_step(DType dtype, const GatedDeltaStep& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? gated_delta_step_heads<float>(p, begin, end) : gated_delta_step_heads<bfloat16>(p, begin, end);
}

// Selective state space (Dao and Gu 2024, arXiv:2405.21060, section 2.1) of one head and row for each item.
template <class T> void state_space_step_heads(const StateSpaceStep& p, int64_t begin, int64_t end) {
    const int64_t width = p.heads * p.head_dim, key_width = p.groups * p.state_size, shared = p.heads / p.groups;
    for (int64_t item = begin; item < end; item++) {
        const int64_t row = item / p.heads, head = item % p.heads, size = p.state_size;
        const float* inputs = p.inputs + row * (width + 2 * key_width);
        const float* values = inputs + head * p.head_dim;
        const float* key = inputs + width + head / shared * size;
        const float* query = key + key_width;
        const float raw = widen(static_cast<const T*>(p.time_step)[row * p.stride + head]);
        const float time_step = softplus(raw * static_cast<float>(p.time_scale) + p.time_step_bias[head]);
        const float decay = std::exp(p.decay_factors[head] * time_step);
        float* memory = p.memory + (p.slots[row] * p.heads + head) * p.head_dim * size;
        T* out = static_cast<T*>(p.out) + row * width + head * p.head_dim;
        for (int64_t i = 0; i < p.head_dim; i++) {
            float* line = memory + i * size;
            const float strength = values[i] * time_step;
            float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
            for (int64_t j = 0; j < size; j++) {
                const float number = line[j] * decay + strength * key[j];
                line[j] = number;
                sum += number * query[j];
            }
            narrow(sum + values[i] * p.skip[head], out[i]);
        }
    }
}

void state_space_step(DType dtype, const StateSpaceStep& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? state_space_step_heads<float>(p, begin, end) : state_space_step_heads<bfloat16>(p, begin, end);
}

// RMS norm of each group of features, with the gate silu(gate) before or after it, in float32 until the result.
template <class T> void gated_norm_rows(const GatedNorm& p, int64_t begin, int64_t end) {
    const float scale = static_cast<float>(p.gate_scale);
    for (int64_t item = begin; item < end; item++) {
        const int64_t row = item / p.groups, group = item % p.groups;
        const T* x = static_cast<const T*>(p.x) + item * p.width;
        const T* gate = static_cast<const T*>(p.gate) + row * p.stride + group * p.width;
        const T* weight = static_cast<const T*>(p.weight);
        if (weight != nullptr && p.is_shared == 0) weight += group * p.width;
        T* out = static_cast<T*>(p.out) + item * p.width;
        const auto factor_of = [&](int64_t i) { return activate<SILU>(widen(gate[i]) * scale); };
        float factor = 1.0f;
        if (weight != nullptr) {
            float squares = 0.0f;
            if (p.gate_first != 0) {
#pragma omp simd reduction(+ : squares)
                for (int64_t i = 0; i < p.width; i++) {
                    const float y = widen(x[i]) * factor_of(i);
                    squares += y * y;
                }
            } else {
#pragma omp simd reduction(+ : squares)
                for (int64_t i = 0; i < p.width; i++) squares += widen(x[i]) * widen(x[i]);
            }
            factor = 1.0f / std::sqrt(squares / static_cast<float>(p.width) + static_cast<float>(p.eps));
        }
#pragma omp simd
        for (int64_t i = 0; i < p.width; i++) {
            const float y = widen(x[i]) * factor_of(i) * factor;
            narrow(weight == nullptr ? y : y * widen(weight[i]), out[i]);
        }
    }
}

void gated_norm(DType dtype, const GatedNorm& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? gated_norm_rows<float>(p, begin, end) : gated_norm_rows<bfloat16>(p, begin, end);
}
