// The unit of arithmetic in attention: a lane of 32 bits, which is one float32 number, or a pair of bfloat16 numbers
// if the processor has an instruction for the dot product of pairs.
//
// Keys are paired from the first key of the batch row on. A query therefore has the same pairs in every batch. The matrix
// unit multiplies values in steps of 32 keys, which also begin at that key.
#pragma once

#include "amx.h"
#include "attention_softmax.h"
#include "numbers.h"
#include "vectors.h"

// Keys that the direct kernel processes together.
#ifdef AMX
constexpr int64_t DIRECT_KEYS = 2 * AMX_LINES;
#else
constexpr int64_t DIRECT_KEYS = WIDTH;
#endif

// Keys or values of one batch row and one key-value head. Contiguous tensors are a cache with one block.
template <class T> struct KvView {
    const T* tokens;
    int64_t stride, block_size;
    const int64_t* table;

    INLINE const T* at(int64_t key) const {
        return tokens + (table[key / block_size] * block_size + key % block_size) * stride;
    }
    // The same tokens for the key-value head that is `head` places after this one.
    INLINE KvView of_head(int64_t head, int64_t dim) const { return {tokens + head * dim, stride, block_size, table}; }
    // Number of keys from `key` on that are adjacent in memory.
    INLINE int64_t run(int64_t key, int64_t last) const { return std::min(block_size - key % block_size, last - key); }
    // Number of keys from `key` on that the direct kernel processes together.
    INLINE int64_t step(int64_t key, int64_t last) const { return std::min(DIRECT_KEYS, run(key, last)); }
};

template <class T, int DIM> struct Lanes {
#ifdef BF16_PRODUCTS
    static constexpr bool PAIRS = DIM > 0 && sizeof(T) == 2 && DIM % (2 * WIDTH) == 0;
#else
    static constexpr bool PAIRS = false;
#endif
    // Whether numbers are converted to float32 before they are multiplied.
    static constexpr bool WIDENED = sizeof(T) == 2 && !PAIRS;
    static constexpr int64_t COUNT = PAIRS ? DIM / 2 : DIM;  // lanes of a head
    // A score is the sum of CHAINS partial sums, added as a tree. Each partial sum runs over every CHAINS-th lane.
    // Fewer chains are less work in the tiled kernel, especially for heads of few lanes, but more shuffles in the
    // direct one.
    static constexpr int64_t MIN_CHAINS = DIM == 0 ? WIDTH : COUNT / 4;
    static constexpr int64_t CHAINS = std::min(MIN_CHAINS, PAIRS ? WIDTH / 2 : WIDTH);
    // Type of a softmax weight in the product with values, and number of keys per lane.
    using Weight = std::conditional_t<PAIRS, bfloat16, float>;
    static constexpr int64_t KEYS = PAIRS ? 2 : 1;
    // Number of keys whose weighted values are added up from zero before the result is added to the sum of a row.
#ifdef AMX
    static constexpr int64_t STEP_KEYS = 2 * AMX_LINES;
#else
    static constexpr int64_t STEP_KEYS = KEYS;
#endif

    // Loads a vector of lanes of a head, from lane `lane` on.
    static INLINE Floats read(const T* head, int64_t lane) {
        if constexpr (PAIRS) {
            return load(reinterpret_cast<const float*>(head) + lane);
        } else {
            return load(head + lane);
        }
    }
    // Broadcasts one lane to a vector.
    static INLINE Floats all(const float* lane) {
        if constexpr (PAIRS) {
            uint32_t pair;
            std::memcpy(&pair, lane, sizeof pair);
            return reinterpret_cast<Floats>(Words{} + pair);
        } else {
            return broadcast(*lane);
        }
    }
    static INLINE Floats add(Floats sum, Floats x, Floats y) {
#ifdef BF16_PRODUCTS
        if constexpr (PAIRS) return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
#endif
        return sum + x * y;
    }
    // Interleaves 32 values of two keys to 32 pairs. The order is values 0..3, 8..11, 16..19, 24..27, then the
    // rest.
    static INLINE void interleave(const T* even, const T* odd, Floats& first, Floats& second) {
#ifdef BF16_PRODUCTS
        const __m512i x = _mm512_loadu_si512(even), y = _mm512_loadu_si512(odd);
        first = (Floats)_mm512_unpacklo_epi16(x, y);
        second = (Floats)_mm512_unpackhi_epi16(x, y);
#endif
    }
    // Undoes the order of `interleave` in the sums of a row.
    static INLINE void restore_order(float* sums) {
#ifdef BF16_PRODUCTS
        if constexpr (PAIRS) {
            for (int64_t d = 0; d < DIM; d += 2 * WIDTH) {
                const Floats x = load(sums + d), y = load(sums + d + WIDTH);
                store(sums + d, shuffled<0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23>(x, y));
                store(sums + d + WIDTH,
                      shuffled<8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31>(x, y));
            }
        }
#endif
    }
};

// Numbers of keys that a kernel multiplies before the first and after the last key that a query sees. Their weights are
// zero.
struct Margins {
    int64_t before, after;
};

// Margins of a query that sees keys start..stop-1, if the kernel multiplies all steps that contain keys low..high-1.
// Steps have STEP_KEYS keys and are counted from key `begin`.
template <int64_t STEP_KEYS>
INLINE Margins margins(int64_t begin, int64_t low, int64_t start, int64_t stop, int64_t high) {
    return {start - low + (low - begin) % STEP_KEYS, high - stop + (STEP_KEYS - (high - begin) % STEP_KEYS) % STEP_KEYS};
}

// A head of zeros, used for values that are missing from the first or last step.
template <class T, int DIM> INLINE const T* zero_head() {
    alignas(64) static const T zeros[DIM] = {};
    return zeros;
}

// Copies the first `count` elements of query heads into lanes.
template <class T, int DIM> INLINE void copy_heads(const T* heads, int64_t count, float* lanes) {
    if constexpr (Lanes<T, DIM>::PAIRS) {
        std::memcpy(lanes, heads, count * sizeof(T));
    } else {
        for (int64_t i = 0; i < count; i++) lanes[i] = widen(heads[i]);
    }
}

template <class T, int DIM> INLINE void store_row(float* sums, float factor, int64_t dim, T* out) {
    Lanes<T, DIM>::restore_order(sums);
    if constexpr (DIM > 0) {
        for (int64_t d = 0; d < DIM; d += WIDTH) store(out + d, load(sums + d) * factor);
    } else {
        for (int64_t d = 0; d < dim; d++) narrow(sums[d] * factor, out[d]);
    }
}

// Bias of a head and query, from the first visible key on, or null.
INLINE const float* bias_from(const Attention& p, int64_t head, int64_t query) {
    if (p.bias == nullptr) return nullptr;
    return p.bias + head * p.bias_stride + p.bias_zero + p.starts[query] - p.origins[query];
}

// Applies scale, cap and bias to the scores of a head and query. scores: starts at the first visible key. Returns the
// maximum.
INLINE float scale_query_scores(const Attention& p, int64_t head, int64_t query, float* scores) {
    return scale_scores(scores, p.ends[query] - p.starts[query], p.scale, bias_from(p, head, query), p.cap);
}

// Normalisation factor of a softmax in which the sink of a head takes part. If the sink exceeds all scores by so much
// that its weight is infinite, the factor is 0.
//
// factor: factor without the sink. top: largest scaled score. Not inlined, so that the compiler rounds it the same way
// for every caller.
__attribute__((noinline)) float factor_with_sink(float factor, float top, float sink) {
    return 1.0f / (1.0f / factor + std::exp(sink - top));
}

// Softmax weights of a head and query, from the scores of `scale_query_scores`.
//
// weights: may overlap `scores`. Weights in the margins become zero.
// Returns the normalisation factor, see `softmax`.
template <class T, int DIM>
INLINE float softmax_weights(const Attention& p, int64_t head, int64_t query, float max_score, Margins margins,
                             const float* scores, typename Lanes<T, DIM>::Weight* weights) {
    const int64_t count = p.ends[query] - p.starts[query];
    const float scale = only_scaled(p.bias, p.cap) ? p.scale : 1.0f;
    float factor = softmax(scores, count, max_score, scale, weights);
    if (p.sinks != nullptr) factor = factor_with_sink(factor, max_score * scale, p.sinks[head]);
    std::memset(weights - margins.before, 0, margins.before * sizeof *weights);
    std::memset(weights + count, 0, margins.after * sizeof *weights);
    return factor;
}
