// What attention multiplies at once: lanes of 32 bits, a number in float32, or a pair of bfloat16 where the processor
// multiplies and adds such pairs. Pairs of keys are numbered from a row's first one on, so that a query has the same
// pairs whatever is computed with it.

// Keys or values of one row and one key-value head: a cache of blocks, or packed ones as one endless block.
template <class T> struct Side {
    const T* tokens;
    int64_t stride, block_size;
    const int64_t* table;

    INLINE const T* at(int64_t key) const {
        return tokens + (table[key / block_size] * block_size + key % block_size) * stride;
    }
    // Keys from this one on that lie one after the other.
    INLINE int64_t run(int64_t key, int64_t last) const { return std::min(block_size - key % block_size, last - key); }
    // So many of them are taken together where they are few.
    INLINE int64_t step(int64_t key, int64_t last) const { return std::min(WIDTH, run(key, last)); }
    // Tells the memory that such a step will be wanted, `numbers` numbers of each key.
    INLINE void fetch(int64_t key, int64_t last, int64_t numbers) const {
        if (key >= last) return;
        const T* line = at(key);
        for (int64_t i = step(key, last); i > 0; i--, line += stride) {
            const char* bytes = reinterpret_cast<const char*>(line);
            for (int64_t byte = 0; byte < numbers * int64_t{sizeof(T)}; byte += 64) __builtin_prefetch(bytes + byte);
        }
    }
};

template <class T, int DIM> struct Lanes {
#ifdef BF16_PRODUCTS
    static constexpr bool PAIRS = DIM > 0 && sizeof(T) == 2 && DIM % (2 * WIDTH) == 0;
#else
    static constexpr bool PAIRS = false;
#endif
    static constexpr int64_t COUNT = PAIRS ? DIM / 2 : DIM;  // of a head
    // A score is so many sums, each of every so many lanes, added as a tree. Fewer are less for the tiled kernel, above all
    // of heads of few lanes, and more shuffles for the direct one. Where registers are few, longer chains do not stay in them.
    static constexpr int64_t FEWEST = REGISTERS < 32 || DIM == 0 ? WIDTH : COUNT / 4;
    static constexpr int64_t CHAINS = std::min(FEWEST, PAIRS ? WIDTH / 2 : WIDTH);
    // Shares as they are multiplied, and values of one share.
    using Share = std::conditional_t<PAIRS, bfloat16, float>;
    static constexpr int64_t KEYS = PAIRS ? 2 : 1;

    // Sixteen lanes from lane `lane` of a head on.
    static INLINE Floats read(const T* head, int64_t lane) {
        if constexpr (PAIRS) {
            return load(reinterpret_cast<const float*>(head) + lane);
        } else {
            return load(head + lane);
        }
    }
    // One lane sixteen times.
    static INLINE Floats all(const float* lane) {
        if constexpr (PAIRS) {
            uint32_t pair;
            std::memcpy(&pair, lane, sizeof pair);
            return reinterpret_cast<Floats>(Words{} + pair);
        } else {
            return spread(*lane);
        }
    }
    static INLINE Floats add(Floats sum, Floats x, Floats y) {
#ifdef BF16_PRODUCTS
        if constexpr (PAIRS) return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
#endif
        return sum + x * y;
    }
    // Two keys' values, 32 numbers of each, to 32 pairs: numbers 0..3, 8..11, 16..19, 24..27, then the others.
    static INLINE void interleave(const T* even, const T* odd, Floats& first, Floats& second) {
#ifdef BF16_PRODUCTS
        const __m512i x = _mm512_loadu_si512(even), y = _mm512_loadu_si512(odd);
        first = (Floats)_mm512_unpacklo_epi16(x, y);
        second = (Floats)_mm512_unpackhi_epi16(x, y);
#endif
    }
    // Back to the order of numbers.
    static INLINE void sort_sums(float* sums) {
        if constexpr (PAIRS) {
            for (int64_t d = 0; d < DIM; d += 2 * WIDTH) {
                const Floats x = load(sums + d), y = load(sums + d + WIDTH);
                store(sums + d, shuffled<0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23>(x, y));
                store(sums + d + WIDTH,
                      shuffled<8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31>(x, y));
            }
        }
    }
};

// Numbers of a head that stand for a value that is not there.
template <class T, int DIM> INLINE const T* nothing() {
    alignas(64) static const T zeros[DIM] = {};
    return zeros;
}

// Lanes of some heads.
template <class T, int DIM> INLINE void copy_heads(const T* heads, int64_t count, float* lanes) {
    if constexpr (Lanes<T, DIM>::PAIRS) {
        std::memcpy(lanes, heads, count * sizeof(T));
    } else {
        for (int64_t i = 0; i < count; i++) lanes[i] = widen(heads[i]);
    }
}

template <class T, int DIM> INLINE void finish_row(float* sums, float factor, int64_t dim, T* out) {
    Lanes<T, DIM>::sort_sums(sums);
    if constexpr (DIM > 0) {
        for (int64_t d = 0; d < DIM; d += WIDTH) store(out + d, load(sums + d) * factor);
    } else {
        for (int64_t d = 0; d < dim; d++) narrow(sums[d] * factor, out[d]);
    }
}

// The bias of a head and a query from the first key on that it sees, or null.
INLINE const float* bias_from(const Attention& p, int64_t head, int64_t query) {
    if (p.bias == nullptr) return nullptr;
    return p.bias + head * p.bias_stride + p.bias_zero + p.starts[query] - p.origins[query];
}

// Scores of a head and a query, from the first key that it sees on, made ready. Returns the highest.
INLINE float highest_score(const Attention& p, int64_t head, int64_t query, float* scores) {
    return prepare(scores, p.ends[query] - p.starts[query], p.scale, bias_from(p, head, query), p.cap);
}

// Such scores to shares in lanes, which may lie over them. In pairs a key may have a neighbour that the query does not see,
// before the first one where that is `odd`: its share is zero. Returns as `soften`.
template <class T, int DIM>
INLINE float shares_of(const Attention& p, int64_t query, float highest, bool odd, const float* scores,
                       typename Lanes<T, DIM>::Share* shares) {
    const int64_t count = p.ends[query] - p.starts[query];
    const float factor = soften(scores, count, highest, is_plain(p.bias, p.cap) ? p.scale : 1.0f, shares);
    if constexpr (Lanes<T, DIM>::PAIRS) {
        if (odd) std::memset(shares - 1, 0, sizeof *shares);
        std::memset(shares + count, 0, sizeof *shares);
    }
    return factor;
}
