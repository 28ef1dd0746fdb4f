// Products of `attention_direct.h` by vector instructions: scores of keys and sums of values in their stored order.
#pragma once

#include "amx.h"
#include "attention_lanes.h"
#include "attention_panels.h"
#include "attention_read_ahead.h"
#include "attention_scratch.h"
#include "attention_values.h"
#include "numbers.h"
#include "tiles.h"
#include "vectors.h"

// Scores of ROWS query heads against WIDTH keys. sum<KEY, STEP> computes those of keys KEY, KEY + STEP,
// KEY + 2 * STEP...
template <class T, int DIM, int ROWS> struct DirectScores {
    using L = Lanes<T, DIM>;
    static constexpr int64_t VECTORS = L::COUNT / WIDTH;
    static constexpr int LINES = (DIM * sizeof(T) + 63) / 64;  // cache lines of a key
    Floats of[ROWS];

    template <class Ahead>
    static INLINE DirectScores of_keys(const float* queries, const T* const (&keys)[WIDTH], Ahead& ahead) {
        if constexpr (L::CHAINS == WIDTH) {
            return sum<0, 1>(queries, keys, ahead);
        } else {
            return together(queries, keys, ahead);
        }
    }
    // Regroup two or four vectors: part i holds the i-th group of lanes of each vector. A group has as many lanes
    // as a score has chains.
    static INLINE void cut(const Floats (&x)[2], Floats (&parts)[2]) {
        parts[0] = even_pieces<WIDTH / 2>(x[0], x[1]), parts[1] = odd_pieces<WIDTH / 2>(x[0], x[1]);
    }
    static INLINE void cut(const Floats (&x)[4], Floats (&parts)[4]) {
        constexpr int HALF = WIDTH / 2, QUARTER = WIDTH / 4;
        const Floats low[] = {even_pieces<HALF>(x[0], x[2]), even_pieces<HALF>(x[1], x[3])};
        const Floats high[] = {odd_pieces<HALF>(x[0], x[2]), odd_pieces<HALF>(x[1], x[3])};
        parts[0] = even_pieces<QUARTER>(low[0], low[1]), parts[1] = odd_pieces<QUARTER>(low[0], low[1]);
        parts[2] = even_pieces<QUARTER>(high[0], high[1]), parts[3] = odd_pieces<QUARTER>(high[0], high[1]);
    }
    // Scores for 4 or 8 chains per score: one vector holds the chains of several keys.
    template <class Ahead>
    static INLINE DirectScores together(const float* queries, const T* const (&keys)[WIDTH], Ahead& ahead) {
        constexpr int CHAINS = L::CHAINS, KEYS = WIDTH / CHAINS;
        Floats sums[ROWS][CHAINS] = {}, x[KEYS], key[KEYS], query[KEYS];
        for (int64_t lane = 0; lane < L::COUNT; lane += WIDTH) {
#pragma GCC unroll 8
            for (int i = 0; i < CHAINS; i++) {
                ahead.template fetch<KEYS>();
                for (int k = 0; k < KEYS; k++) x[k] = L::read(keys[i + k * CHAINS], lane);
                cut(x, key);
                for (int row = 0; row < ROWS; row++) {
                    for (int k = 0; k < KEYS; k++) x[k] = load(queries + row * L::COUNT + lane);
                    cut(x, query);
                    for (int k = 0; k < KEYS; k++) sums[row][i] = L::add(sums[row][i], query[k], key[k]);
                }
            }
        }
        DirectScores result;
        for (int row = 0; row < ROWS; row++) {
            Floats* s = sums[row];
            if constexpr (CHAINS == 8) {
                for (int i = 0; i < 4; i++) s[i] = halve<4>(s[i], s[i + 4]);
            }
            for (int i = 0; i < 2; i++) s[i] = halve<2>(s[i], s[i + 2]);
            result.of[row] = halve<1>(s[0], s[1]);
        }
        return result;
    }
    template <int KEY, int STEP, class Ahead>
    static INLINE DirectScores sum(const float* queries, const T* const (&keys)[WIDTH], Ahead& ahead) {
        DirectScores result;
        if constexpr (STEP == WIDTH) {
            for (int row = 0; row < ROWS; row++) result.of[row] = Floats{};
            ahead.template fetch<LINES>();
            for (int64_t v = 0; v < VECTORS; v++) {
                const Floats key = L::read(keys[KEY], v * WIDTH);
                for (int row = 0; row < ROWS; row++) {
                    result.of[row] = L::add(result.of[row], load(queries + row * L::COUNT + v * WIDTH), key);
                }
            }
        } else {
            result = sum<KEY, 2 * STEP>(queries, keys, ahead);
            const DirectScores other = sum<KEY + STEP, 2 * STEP>(queries, keys, ahead);
            for (int row = 0; row < ROWS; row++) result.of[row] = halve<STEP>(result.of[row], other.of[row]);
        }
        return result;
    }
    // One stage of a sum over lanes: adds the two halves of each group of 2 * STEP lanes.
    template <int STEP> static INLINE Floats halve(Floats a, Floats b) {
        return even_pieces<STEP>(a, b) + odd_pieces<STEP>(a, b);
    }
};

// Number of floats that the result of `copy_queries` has for one key-value head.
template <class T, int DIM> INLINE int64_t query_lanes(int64_t group, int64_t dim) {
    return group * (DIM ? Lanes<T, DIM>::COUNT : dim);
}

// Copies the query heads of `width` key-value heads, `group` each, into lanes: [width, query_lanes].
template <class T, int DIM>
INLINE void copy_queries(const T* queries, int64_t width, int64_t group, int64_t dim, float* lanes) {
    copy_heads<T, DIM>(queries, width * group * dim, lanes);
}

// Allows `bytes` to be prefetched, which the kernel reads of one key-value head. Returns whether it has to prefetch them
// between its products. Widening bfloat16 leaves no room for that, so they are prefetched at once.
template <class T, int DIM> INLINE bool begin_head(ReadAhead<T>& ahead, int64_t bytes) {
    if constexpr (Lanes<T, DIM>::WIDENED) {
        ahead.fetch_at_once(bytes);
        return false;
    } else {
        ahead.allow(bytes);
        return ahead.enabled();
    }
}

// Scores of the query heads of one key-value head against up to DIRECT_KEYS keys.
//
// queries: [rows, lanes], from `copy_queries`, float32 or pairs of bfloat16.
// rows: number of query heads.
// keys: [count, head_dim], `stride` numbers apart.
// scores: [rows, count], float32, rows `pitch` numbers apart. Up to WIDTH - 1 numbers after each row are overwritten.
template <class T, int DIM>
INLINE void score_keys(MatrixUnit&, const float* queries, const T* keys, int64_t stride, int64_t count,
                       int64_t head_dim, int64_t rows, float* scores, int64_t pitch, ReadAhead<T>& ahead) {
    const int64_t bytes = count * head_dim * int64_t{sizeof(T)};
    if constexpr (DIM > 0) {
        constexpr int64_t lanes = Lanes<T, DIM>::COUNT;
        const T* lines[WIDTH];
        for (int64_t i = 0; i < WIDTH; i++) lines[i] = keys + std::min(i, count - 1) * stride;
        const auto score_rows = [&](int64_t row, int64_t together, auto&& ahead) {
            with_constant_rows<3>(together, [&](auto size) {
                const auto result = DirectScores<T, DIM, size.value>::of_keys(queries + row * lanes, lines, ahead);
                for (int64_t i = 0; i < size.value; i++) store(scores + (row + i) * pitch, result.of[i]);
            });
        };
        const bool spread = begin_head<T, DIM>(ahead, bytes);
        for (int64_t row = 0; row < rows;) {
            // Four rows are two pairs, because one row alone takes longer than half of a pair. Where keys are widened,
            // that takes the time, and three rows together widen a key less often.
            const int64_t left = rows - row;
            const int64_t together = left == 4 && !Lanes<T, DIM>::WIDENED ? 2 : std::min<int64_t>(left, 3);
            if (row == 0 && spread) {
                score_rows(row, together, ahead);
            } else {
                score_rows(row, together, NoReadAhead{});
            }
            row += together;
        }
    } else {
        ahead.fetch_at_once(bytes);
        for (int64_t row = 0; row < rows; row++) {
            for (int64_t i = 0; i < count; i++) {
                float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
                for (int64_t d = 0; d < head_dim; d++) sum += queries[row * head_dim + d] * widen(keys[i * stride + d]);
                scores[row * pitch + i] = sum;
            }
        }
    }
}

// out += weights * values, for head dimensions without a kernel of their own. Shapes as in `add_values`.
template <class T>
INLINE void add_values_of_any_dim(const float* weights, int64_t pitch, const T* values, int64_t stride, int64_t count,
                                  int64_t dim, int64_t rows, float* out) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < count; i++) {
#pragma omp simd
            for (int64_t d = 0; d < dim; d++) {
                out[row * dim + d] += weights[row * pitch + i] * widen(values[i * stride + d]);
            }
        }
    }
}

// sums += weights * values, for values first..last-1 in their stored order.
//
// width: number of adjacent key-value heads. group: number of query heads, and rows of weights and sums, of each.
// weights: softmax weights, rows `pitch` lanes apart. The first weight of a row belongs to key
// `first - before`.
template <class T, int DIM>
INLINE void add_stored_values(MatrixUnit&, const KvView<T>& values, int64_t first, int64_t last, int64_t before,
                              int64_t width, int64_t group, int64_t dim, const float* weights, int64_t pitch,
                              float* sums, Scratch&, ReadAhead<T>& ahead) {
    using L = Lanes<T, DIM>;
    for (int64_t key = first - before, lane = 0; key < last;) {
        const bool begins = key >= first;
        const int64_t here = begins ? values.step(key, last) : 1, count = std::max<int64_t>(1, here / L::KEYS);
        const T *even = begins ? values.at(key) : nullptr, *odd_one = nullptr;
        if constexpr (L::PAIRS) {
            if (key + 1 < last) odd_one = here > 1 ? even + values.stride : values.at(key + 1);
        }
        const int64_t bytes = here * dim * int64_t{sizeof(T)};
        for (int64_t head = 0; head < width; head++) {
            const float* part = weights + head * group * pitch + lane;
            float* out = sums + head * group * dim;
            const T* one = even == nullptr ? nullptr : even + head * dim;
            if constexpr (DIM > 0) {
                const T* other = odd_one == nullptr ? nullptr : odd_one + head * dim;
                const T* none = zero_head<T, DIM>();
                const StoredValues<T, DIM> stored{one == nullptr ? none : one, other == nullptr ? none : other,
                                                  values.stride};
                if (begin_head<T, DIM>(ahead, bytes)) {
                    add_values<T, DIM>(part, pitch, stored, count, group, out, ahead);
                } else {
                    add_values<T, DIM>(part, pitch, stored, count, group, out);
                }
            } else {
                ahead.fetch_at_once(bytes);
                add_values_of_any_dim<T>(part, pitch, one, values.stride, count, dim, group, out);
            }
        }
        key += count * L::KEYS, lane += count;
    }
}
