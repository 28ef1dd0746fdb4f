// From scores to shares, for one query and one head.

// cap * tanh(x / cap), sixteen at a time: the tangent by e^-2|x|, within 1e-7 of its value.
INLINE Floats capped(Floats x, float cap) {
    const Floats turned = x / cap, falling = turned > Floats{} ? -2.0f * turned : 2.0f * turned;
    const Floats power = exp_negative(falling), size = cap * ((1.0f - power) / (1.0f + power));
    return turned > Floats{} ? size : -size;
}

// Scores to shares: scale, bias, cap, softmax (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1). Returns one over their
// sum; the shares stay unnormalised. Up to fifteen numbers behind the scores are overwritten.
float soften(float* scores, int64_t count, float scale, const float* bias, float cap) {
    if (cap > 0.0f) {
        for (int64_t i = 0; i < count; i += WIDTH) store(scores + i, capped(load(scores + i) * scale, cap));
        scale = 1.0f;
    }
    if (bias != nullptr) {
        int64_t i = 0;
        for (; i + WIDTH <= count; i += WIDTH) store(scores + i, load(scores + i) * scale + load(bias + i));
        for (; i < count; i++) scores[i] = scores[i] * scale + bias[i];
        scale = 1.0f;
    }
    if (count % WIDTH) {
        for (int64_t i = count; i % WIDTH; i++) scores[i] = -__builtin_inff();
    }
    Floats highest = load(scores);
    for (int64_t i = WIDTH; i < count; i += WIDTH) highest = higher(load(scores + i), highest);
    const Floats top = spread(highest_of(highest));
    Floats sum{};
    for (int64_t i = 0; i < count; i += WIDTH) {
        const Floats share = exp_negative((load(scores + i) - top) * scale);
        store(scores + i, share);
        sum += share;
    }
    return 1.0f / sum_of(sum);
}
