// Activation functions in float32, without branches or tables, so that compilers can vectorise them. Each is within 1e-6
// of its value (of one, where the value is smaller); what is not a number stays so.

// For both signs by e^-|x|, which needs one bound only: between two, compilers divide twice.
INLINE float sigmoid(float x) {
    const Exponential e = exponential(-std::fabs(x));
    const float grown = e.scale + e.scale * e.part;
    return (x < 0.0f ? grown : 1.0f) / (1.0f + grown);
}

INLINE float tanh_of(float x) {
    const float size = std::fabs(x), twice = size + size;
    const Exponential e = exponential(twice > 20.0f ? 20.0f : twice);
    const float grown = (e.scale - 1.0f) + e.scale * e.part;
    return std::copysign(grown / (grown + 2.0f), x);
}

// The normal distribution's share below x: half, less |x| times a polynomial in x^2, for the smaller side, and nothing
// beyond 5.2. The polynomial was fitted to the share between 0 and |x| by weighted least squares; it stands in
// t = 2 (x / 5.2)^2 - 1, which runs from -1 to 1, so that its terms stay small. Pairs, then pairs of pairs (Estrin), as
// one chain of fourteen terms would have the processor wait.
INLINE float normal_share(float x) {
    const float size = std::fabs(x), t = size * (size * (2.0f / (5.2f * 5.2f))) - 1.0f;
    const float t2 = t * t, t4 = t2 * t2, t8 = t4 * t4;
    const float p0 = 0.135949984f - 0.0677436218f * t, p2 = 0.0500256158f - 0.0399319865f * t;
    const float p4 = 0.031973917f - 0.0246988405f * t, p6 = 0.0180387739f - 0.0126196565f * t;
    const float p8 = 0.00836509373f - 0.00454232097f * t, p10 = 0.00200518291f - 0.00146876578f * t;
    const float p12 = 0.00118868484f - 0.000388237968f * t;
    const float low = (p0 + p2 * t2) + (p4 + p6 * t2) * t4, high = (p8 + p10 * t2) + p12 * t4;
    const float beyond = size < 5.2f ? 0.5f - (low + high * t8) * size : 0.0f;
    return x < 0.0f ? beyond : 1.0f - beyond;
}

template <int32_t NAME> INLINE float activated(float x) {
    if constexpr (NAME == RELU) return x < 0.0f ? 0.0f : x;
    if constexpr (NAME == GELU) return x * normal_share(x);
    // 0.5 (1 + tanh(u)) is the sigmoid of 2 u.
    if constexpr (NAME == GELU_TANH) return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
    if constexpr (NAME == GELU_QUICK) return x * sigmoid(1.702f * x);
    if constexpr (NAME == SILU) return x * sigmoid(x);
    if constexpr (NAME == TANH) return tanh_of(x);
    return x;
}

template <int32_t NAME> INLINE void activate_panel(float* y) {
#pragma omp simd
    for (int64_t i = 0; i < PANEL; i++) y[i] = activated<NAME>(y[i]);
}

// y: [PANEL], replaced. One function, so that it has one rounding wherever it is called from.
__attribute__((noinline)) void activate_panel(int32_t name, float* y) {
    switch (name) {
        case RELU: return activate_panel<RELU>(y);
        case GELU: return activate_panel<GELU>(y);
        case GELU_TANH: return activate_panel<GELU_TANH>(y);
        case GELU_QUICK: return activate_panel<GELU_QUICK>(y);
        case SILU: return activate_panel<SILU>(y);
        case TANH: return activate_panel<TANH>(y);
        default: return;
    }
}

// GELU within 3e-4 of its value, on both sides of zero: for numbers that are rounded to bfloat16. The binary logarithm of
// the normal distribution's share above |x| is nearly a parabola; this was fitted to it by weighted least squares.
template <int N> INLINE Several<N> rough_gelu(const Several<N>& x) {
    // Beyond 14 there is nothing; a NaN stays one.
    const auto size = each([](Floats x) {
        const Floats size = reinterpret_cast<Floats>(reinterpret_cast<Words>(x) & 0x7fffffffu);
        return size > 14.0f ? spread(14.0f) : size;
    }, x);
    const auto share = rough_power_of_two(polynomial(size, 1.35690643e-5f, -4.55402915e-4f, 6.24659611e-3f,
                                                     -4.85947914e-2f, -0.464274794f, -1.14915192f, -1.0f));
    return each([](Floats x, Floats size, Floats share) { return higher(x, Floats{}) - size * share; }, x, size, share);
}

// x: vectors of whole panels, as they are written in T.
template <class T, int N> INLINE Several<N> activated(int32_t name, Several<N> x) {
    if (std::is_same<T, bfloat16>::value && name == GELU) return rough_gelu(x);
    alignas(64) float numbers[N * WIDTH];
    for (int i = 0; i < N; i++) store(numbers + i * WIDTH, x.of[i]);
    for (int64_t i = 0; i < N * WIDTH; i += PANEL) activate_panel(name, numbers + i);
    for (int i = 0; i < N; i++) x.of[i] = load(numbers + i * WIDTH);
    return x;
}
