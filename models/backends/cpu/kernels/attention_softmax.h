// From scores to shares, for one query and one head.

// cap * tanh(x / cap), sixteen at a time: the tangent by e^-2|x|, within 1e-7 of its value.
INLINE Floats capped(Floats x, float cap) {
    const Floats turned = x / cap, falling = turned > Floats{} ? -2.0f * turned : 2.0f * turned;
    const Floats power = power_of_two(falling * LOG2_E), size = cap * ((1.0f - power) / (1.0f + power));
    return turned > Floats{} ? size : -size;
}

INLINE Floats share_of(Floats power, const float*) { return power_of_two(power); }

INLINE Floats share_of(Floats power, const bfloat16*) { return rough_power_of_two(power); }

// Whether the scale goes with the exponent, as nothing comes between.
INLINE bool is_plain(const float* bias, float cap) { return bias == nullptr && !(cap > 0.0f); }

// Scores made ready: scale, cap and bias, unless plain, and -inf up to a whole vector. Returns the highest.
INLINE float prepare(float* scores, int64_t count, float scale, const float* bias, float cap) {
    if (cap > 0.0f) {
        for (int64_t i = 0; i < count; i += WIDTH) store(scores + i, capped(load(scores + i) * scale, cap));
        scale = 1.0f;
    }
    if (bias != nullptr) {
        int64_t i = 0;
        for (; i + WIDTH <= count; i += WIDTH) store(scores + i, load(scores + i) * scale + load(bias + i));
        for (; i < count; i++) scores[i] = scores[i] * scale + bias[i];
    }
    // Numbers written one by one could not be read as a vector before they are in the cache.
    const int64_t last = (count - 1) / WIDTH * WIDTH;
    const Integers place = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    Floats highest = place < static_cast<int32_t>(count - last) ? load(scores + last) : spread(-__builtin_inff());
    store(scores + last, highest);
    for (int64_t i = 0; i < last; i += WIDTH) highest = higher(load(scores + i), highest);
    return highest_of(highest);
}

// Softmax (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1) of scores that are ready, times `scale` each. Returns one
// over the sum of the shares, before they are rounded; they stay unnormalised. They may lie over the scores that they are
// made of, not behind. Up to fifteen numbers behind them are overwritten with zeros.
template <class Share> INLINE float soften(const float* scores, int64_t count, float highest, float scale, Share* shares) {
    const Floats top = spread(highest);
    const float steepness = scale * LOG2_E;
    Floats sum{};
    for (int64_t i = 0; i < count; i += WIDTH) {
        const Floats share = share_of((load(scores + i) - top) * steepness, shares);
        store(shares + i, share);
        sum += share;
    }
    return 1.0f / sum_of(sum);
}
