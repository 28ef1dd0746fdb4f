// From scores to shares, for one query and one head.

// cap * tanh(x / cap), sixteen at a time: the tangent by e^-2|x|, within 1e-7 of its value.
INLINE Floats capped(Floats x, float cap) {
    const Floats turned = x / cap, falling = turned > Floats{} ? -2.0f * turned : 2.0f * turned;
    const Floats power = power_of_two(falling * LOG2_E), size = cap * ((1.0f - power) / (1.0f + power));
    return turned > Floats{} ? size : -size;
}

INLINE void store_shares(float* out, Floats shares) { store(out, shares); }

#ifdef BF16_PRODUCTS
INLINE void store_shares(bfloat16* out, Floats shares) {
    *reinterpret_cast<LooseHalves*>(out) = (Halves)_mm512_cvtneps_pbh((__m512)shares);
}
#endif

// Scores to shares: scale, bias, cap, softmax (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1). Returns one over their
// sum, before they are rounded; the shares stay unnormalised. They may lie over the scores that they are made of, not
// behind. Up to fifteen numbers behind either are overwritten, shares with zeros.
template <class Share> float soften(float* scores, int64_t count, float scale, const float* bias, float cap, Share* shares) {
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
    const float steepness = scale * LOG2_E;
    Floats sum{};
    for (int64_t i = 0; i < count; i += WIDTH) {
        const Floats share = power_of_two((load(scores + i) - top) * steepness);
        store_shares(shares + i, share);
        sum += share;
    }
    return 1.0f / sum_of(sum);
}
