// Products of `attention_tiled.h` by vector instructions.
//
// A vector holds the same lane of WIDTH transposed keys, so that a score needs no sum across lanes. The direct kernel
// adds the lanes of a vector in a tree. Here these lanes are separate sums, which are added in the same order.
#pragma once

#include "amx.h"
#include "attention_lanes.h"
#include "attention_panels.h"
#include "attention_values.h"
#include "tiles.h"
#include "vectors.h"

// Scores of SCORE_ROWS rows against SCORE_KEYS keys.
template <class T, int DIM> struct Scores {
    using L = Lanes<T, DIM>;
    Floats of[SCORE_ROWS][SCORE_GROUPS];

    // Sum over the lanes LANE, LANE + STEP, LANE + 2 * STEP... in the order of the direct kernel.
    template <int LANE, int STEP> static INLINE Scores sum(const float* queries, const float* keys) {
        Scores result;
        if constexpr (STEP == L::CHAINS) {
            for (int row = 0; row < SCORE_ROWS; row++) {
                for (int g = 0; g < SCORE_GROUPS; g++) result.of[row][g] = Floats{};
            }
#pragma GCC unroll 1
            for (int64_t lane = LANE; lane < L::COUNT; lane += STEP) {
                Floats key[SCORE_GROUPS];
                for (int g = 0; g < SCORE_GROUPS; g++) key[g] = load(keys + g * TRANSPOSED<T, DIM> + lane * WIDTH);
                for (int row = 0; row < SCORE_ROWS; row++) {
                    const Floats query = L::all(queries + row * L::COUNT + lane);
                    for (int g = 0; g < SCORE_GROUPS; g++) result.of[row][g] = L::add(result.of[row][g], query, key[g]);
                }
            }
        } else {
            result = sum<LANE, 2 * STEP>(queries, keys);
            const Scores other = sum<LANE + STEP, 2 * STEP>(queries, keys);
            for (int row = 0; row < SCORE_ROWS; row++) {
                for (int g = 0; g < SCORE_GROUPS; g++) result.of[row][g] += other.of[row][g];
            }
        }
        return result;
    }
};

template <class T, int DIM> void score_tile(const float* queries, const float* keys, float* scores, int64_t pitch) {
    const auto result = Scores<T, DIM>::template sum<0, 1>(queries, keys);
    for (int row = 0; row < SCORE_ROWS; row++) {
        for (int g = 0; g < SCORE_GROUPS; g++) store(scores + row * pitch + g * WIDTH, result.of[row][g]);
    }
}

// Scores of all rows against a panel of keys from..to-1.
template <class T, int DIM>
void score_panel(MatrixUnit&, const RowBlock& b, const float* panel, int64_t from, int64_t to) {
    constexpr int64_t lanes = Lanes<T, DIM>::COUNT;
    for (int64_t after = SCORE_ROWS; after < b.rows + SCORE_ROWS; after += SCORE_ROWS) {
        // The last group of rows may overlap the previous group. The scores in the overlap are computed twice.
        const int64_t row = std::min(after, b.rows) - SCORE_ROWS;
        const int64_t low = std::max(from, b.start(row)), high = std::min(to, b.stop(row + SCORE_ROWS - 1));
        for (int64_t key = low - (low - from) % SCORE_KEYS; key < high; key += SCORE_KEYS) {
            score_tile<T, DIM>(b.queries + row * lanes, panel + (key - from) * lanes,
                               b.scores + row * b.pitch + key - b.begin, b.pitch);
        }
    }
}

// Margins of the weights that `add_panel` reads for a row.
template <class T, int DIM> INLINE Margins panel_margins(const RowBlock& b, int64_t, int64_t query) {
    const int64_t start = b.starts[query], stop = b.ends[query];
    return margins<Lanes<T, DIM>::STEP_KEYS>(b.begin, start, start, stop, stop);
}

// sums += weights * values low..high-1, for `count` rows from `row` on. `from` is the first value of the panel. Pairs
// are complete, or the weights of the missing values are zero.
template <class T, int DIM>
void add_shared_range(const RowBlock& b, const float* panel, int64_t row, int64_t count, int64_t from, int64_t low,
                      int64_t high) {
    constexpr int64_t KEYS = Lanes<T, DIM>::KEYS;
    if (low >= high) return;
    const int64_t first = (low - b.begin) / KEYS, last = (high - b.begin + KEYS - 1) / KEYS;
    const GatheredValues<DIM> values{panel + (first - (from - b.begin) / KEYS) * DIM};
    add_values<T, DIM>(b.scores + row * b.pitch + first, b.pitch, values, last - first, count, b.sums + row * DIM);
}

// Like `add_shared_range`, for one row. The other value of a pair may be invisible to this row, and zero times that
// value may be NaN, so it is masked.
template <class T, int DIM>
void add_row_range(const RowBlock& b, const float* panel, int64_t row, int64_t from, int64_t low, int64_t high) {
    if constexpr (Lanes<T, DIM>::PAIRS) {
        const auto add_one = [&](int64_t key, uint32_t mask) {
            const MaskedValues<GatheredValues<DIM>> values{{panel + (key - from) / 2 * DIM}, mask};
            add_rows<T, DIM, 1>(b.scores + row * b.pitch + (key - b.begin) / 2, b.pitch, values, 1, b.sums + row * DIM);
        };
        if (low >= high) return;
        if ((low - from) % 2) add_one(low++, 0xffff0000u);
        const bool rest = low < high && (high - from) % 2;
        add_shared_range<T, DIM>(b, panel, row, 1, from, low, high - rest);
        if (rest) add_one(high - 1, 0x0000ffffu);
    } else {
        add_shared_range<T, DIM>(b, panel, row, 1, from, low, high);
    }
}

// Adds values from..to-1 of the panel to the sums of all rows. Each row adds its values in order. Values that
// all rows of a group see are added for all these rows together; the values before and after them, for each row alone.
template <class T, int DIM>
void add_panel(MatrixUnit&, const RowBlock& b, const float* panel, int64_t from, int64_t to) {
    constexpr int64_t KEYS = Lanes<T, DIM>::KEYS;
    for_tiles(0, b.rows, VALUE_ROWS<T, DIM>, [&](int64_t first, int64_t count, int64_t, int64_t) {
        int64_t low = std::max(from, b.start(first + count - 1)), high = std::min(to, b.stop(first));
        // Complete pairs only, where both keys of the pair exist.
        if (low != b.lowest) low += (low - from) % KEYS;
        if (high != b.end) high -= (high - from) % KEYS;
        if (low >= high) low = high = to;
        for (int64_t row = first; low > from && row < first + count; row++) {
            add_row_range<T, DIM>(b, panel, row, from, std::max(from, b.start(row)), std::min(low, b.stop(row)));
        }
        add_shared_range<T, DIM>(b, panel, first, count, from, low, high);
        for (int64_t row = first; high < to && row < first + count; row++) {
            add_row_range<T, DIM>(b, panel, row, from, std::max(high, b.start(row)), std::min(to, b.stop(row)));
        }
    });
}
