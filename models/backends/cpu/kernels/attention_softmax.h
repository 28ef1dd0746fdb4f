// Softmax of the scores of one query and one head.
#pragma once

#include "activations.h"
#include "vectors.h"

INLINE Floats exponential_of(Floats power, const float*) { return power_of_two(power); }

INLINE Floats exponential_of(Floats power, const bfloat16*) { return approximate_power_of_two(power); }

// Whether scores are only scaled, without cap and bias. The scale is then applied inside the exponent.
INLINE bool only_scaled(const float* bias, float cap) { return bias == nullptr && !(cap > 0.0f); }

// Applies scale, cap and bias to scores; without cap and bias it leaves them unscaled (see `only_scaled`). Fills the
// last vector with -inf. Returns the maximum.
INLINE float scale_scores(float* scores, int64_t count, float scale, const float* bias, float cap) {
    if (cap > 0.0f) {
        for (int64_t i = 0; i < count; i += WIDTH) store(scores + i, soft_capped(load(scores + i) * scale, cap));
        scale = 1.0f;
    }
    if (bias != nullptr) {
        int64_t i = 0;
        for (; i + WIDTH <= count; i += WIDTH) store(scores + i, load(scores + i) * scale + load(bias + i));
        for (; i < count; i++) scores[i] = scores[i] * scale + bias[i];
    }
    // Read before anything is stored: a vector load right after scalar stores to the same place stalls.
    const int64_t last = (count - 1) / WIDTH * WIDTH;
    Floats maxima = lane_numbers() < static_cast<int32_t>(count - last) ? load(scores + last) : broadcast(-__builtin_inff());
    store(scores + last, maxima);
    for (int64_t i = 0; i < last; i += WIDTH) maxima = max_of(load(scores + i), maxima);
    return max_lane(maxima);
}

// Unnormalised softmax weights of `count` scores (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1).
//
// weights: may overlap `scores`, but must not start after it. Up to WIDTH - 1 numbers after the last are set to zero.
// scale: factor of the scores, applied in the exponent.
// Returns 1 / sum of the weights, taken before they are rounded to the type of `weights`.
template <class Weight>
INLINE float softmax(const float* scores, int64_t count, float max_score, float scale, Weight* weights) {
    const Floats top = broadcast(max_score);
    const float steepness = scale * LOG2_E;
    Floats sum{};
    for (int64_t i = 0; i < count; i += WIDTH) {
        const Floats weight = exponential_of((load(scores + i) - top) * steepness, weights);
        store(weights + i, weight);
        sum += weight;
    }
    return 1.0f / sum_lanes(sum);
}
