// Inputs of the matrix products of attention: panels of keys and values, and blocks of rows.
//
// A row is one query with one query head. A panel holds keys or values of one key-value head and one batch row.
#pragma once

#include "attention_lanes.h"
#include "vectors.h"

// Rows, and vectors of keys, whose scores are computed together. A tile has at least SCORE_ROWS rows.
constexpr int64_t SCORE_ROWS = 6, SCORE_GROUPS = 2;
constexpr int64_t SCORE_KEYS = SCORE_GROUPS * WIDTH;
// Number of keys of a panel: a multiple of SCORE_KEYS and of STEP_KEYS. The sums of a block of rows are loaded and stored
// once per panel.
constexpr int64_t PANEL_KEYS = 256;

// Size of WIDTH transposed keys: [lanes][WIDTH].
template <class T, int DIM> constexpr int64_t TRANSPOSED = Lanes<T, DIM>::COUNT * WIDTH;

// Values read from where they are stored. A lane holds one key or a pair of keys.
template <class T, int DIM> struct StoredValues {
    const T *even, *odd;
    int64_t stride;

    template <int COUNT> INLINE void read(int64_t lane, int64_t d, Floats (&values)[COUNT]) const {
        if constexpr (Lanes<T, DIM>::PAIRS) {
            const int64_t from = 2 * lane * stride + d;
            for (int v = 0; v < COUNT; v += 2) {
                Lanes<T, DIM>::interleave(even + from + v * WIDTH, odd + from + v * WIDTH, values[v], values[v + 1]);
            }
        } else {
            for (int v = 0; v < COUNT; v++) values[v] = load(even + lane * stride + d + v * WIDTH);
        }
    }
};

// Transposes WIDTH lanes of as many keys, from lane `from` on.
template <class T, int DIM> void transpose_lines(const T* const lines[WIDTH], int64_t from, float* transposed) {
    Floats x[WIDTH];
    for (int64_t i = 0; i < WIDTH; i++) x[i] = Lanes<T, DIM>::read(lines[i], from);
    transpose(x);
    for (int64_t i = 0; i < WIDTH; i++) store(transposed + i * WIDTH, x[i]);
}

// Detects infinity and NaN among bfloat16 numbers. Keeps the largest number passed to `add`, compared by its bits
// without the sign.
#ifdef AMX
class FiniteCheck {
public:
    INLINE void add(Floats pairs) {
        const __m512i sizes = _mm512_and_si512((__m512i)pairs, _mm512_set1_epi16(0x7fff));
        largest_ = (Integers)_mm512_max_epu16((__m512i)largest_, sizes);
    }
    INLINE bool are_finite() const { return _mm512_cmpge_epu16_mask((__m512i)largest_, _mm512_set1_epi16(0x7f80)) == 0; }

private:
    Integers largest_{};
};
#else
struct FiniteCheck {
    INLINE void add(Floats) {}
    INLINE bool are_finite() const { return true; }
};
#endif

// Prefetches the following head of a token while this one is computed.
template <class T, int DIM> INLINE void fetch_next_head(const T* head) {
    for (int64_t d = DIM; d < 2 * DIM; d += 64 / sizeof(T)) __builtin_prefetch(head + d, 0, 2);
}

// Transposes keys first..last-1 in groups of WIDTH, padded to whole multiples of SCORE_KEYS. Keys before
// `lowest` or after the last are replaced by the nearest valid key; their scores are not used.
template <class T, int DIM>
void transpose_keys(const KvView<T>& keys, int64_t lowest, int64_t first, int64_t last, float* transposed) {
    const T* lines[WIDTH];
    for (int64_t key = first; key < last || (key - first) % SCORE_KEYS; key += WIDTH) {
        for (int64_t i = 0; i < WIDTH;) {
            const int64_t from = std::max(lowest, std::min(key + i, last - 1)), run = keys.run(from, last);
            const T* line = keys.at(from);
            // A replacement key is not the start of a run.
            const int64_t count = from == key + i ? run : 1;
            for (int64_t j = 0; j < count && i < WIDTH; i++, j++) lines[i] = line + j * keys.stride;
        }
        for (int64_t i = 0; i < WIDTH; i++) fetch_next_head<T, DIM>(lines[i]);
        for (int64_t lane = 0; lane < Lanes<T, DIM>::COUNT; lane += WIDTH) {
            transpose_lines<T, DIM>(lines, lane, transposed + lane * WIDTH);
        }
        transposed += TRANSPOSED<T, DIM>;
    }
}

// Copies values first..last-1 to contiguous lanes: [lanes][dim]. `first` begins a step. Values before `lowest`, and
// values missing from the last step, are zero. Returns false if a value is infinite or NaN. Vector kernels do not check
// and always return true.
template <class T, int DIM>
INLINE bool gather_values(const KvView<T>& values, int64_t lowest, int64_t first, int64_t last, float* gathered) {
    using L = Lanes<T, DIM>;
    FiniteCheck check;
    int64_t key = first;
    while (key < last) {
        const int64_t run = key < lowest ? 1 : values.run(key, last), count = std::max<int64_t>(1, run / L::KEYS);
        const T *even = key < lowest ? zero_head<T, DIM>() : values.at(key), *odd = zero_head<T, DIM>();
        if constexpr (L::PAIRS) {
            if (key + 1 < last && key + 1 >= lowest) odd = run > 1 ? even + values.stride : values.at(key + 1);
        }
        const StoredValues<T, DIM> stored{even, odd, values.stride};
        for (int64_t lane = 0; lane < count; lane++, gathered += DIM) {
            for (int64_t d = 0; d < DIM; d += 2 * WIDTH) {
                if constexpr (DIM % (2 * WIDTH)) {
                    Floats value[1];
                    for (int64_t i = d; i < std::min<int64_t>(DIM, d + 2 * WIDTH); i += WIDTH) {
                        stored.read(lane, i, value);
                        store(gathered + i, value[0]);
                    }
                } else {
                    Floats value[2];
                    stored.read(lane, d, value);
                    store(gathered + d, value[0]);
                    store(gathered + d + WIDTH, value[1]);
                    check.add(value[0]), check.add(value[1]);
                }
            }
        }
        key += count * L::KEYS;
    }
    for (; (key - first) % L::STEP_KEYS; key += L::KEYS, gathered += DIM) std::fill(gathered, gathered + DIM, 0.0f);
    return check.are_finite();
}

// Rows of one tile that are computed together: for each query, all heads that share the key-value head.
struct RowBlock {
    int64_t before, rows, group;       // rows of the tile before this block; rows in it; query heads per query
    const int32_t *starts, *ends;      // [queries of the tile]: visible keys; neither array decreases
    int64_t lowest, end;               // keys visible to any query of the tile
    int64_t begin;                     // key of the first score: the first of the step with `lowest`
    int64_t pitch;                     // distance, in numbers, of the scores of two rows
    float *queries, *scores, *sums;    // [rows, lanes]; [rows, pitch]; [rows, dim]

    int64_t query(int64_t row) const { return (before + row) / group; }
    int64_t start(int64_t row) const { return starts[query(row)]; }
    int64_t stop(int64_t row) const { return ends[query(row)]; }

    // Calls body(row, query, head of the group) for each row.
    template <class Body> INLINE void each(const Body& body) const {
        int64_t query = before / group, head = before % group;
        for (int64_t row = 0; row < rows; row++) {
            body(row, query, head);
            if (++head == group) head = 0, query++;
        }
    }
};
