// Attention of many queries of one batch row. Gives the same bits as `attention_direct.h` gives for each query.
//
// In this file a row is one query with one query head; all rows share a key-value head. Keys are transposed and values
// gathered in panels, which all rows of a block share. The products are in `attention_tiled_products.h` and, for the
// matrix unit, in `attention_amx.h`.
#pragma once

#include "amx.h"
#include "attention_lanes.h"
#include "attention_panels.h"
#include "attention_products.h"
#include "attention_scratch.h"
#include "tiles.h"
#include "vectors.h"

// The maximum number of rows of a block is a multiple of this. `for_tiles` makes the blocks of a tile nearly equal.
#ifdef AMX
constexpr int64_t BLOCK_ROWS = MAX_TILE_ROWS;
#else
constexpr int64_t BLOCK_ROWS = 12;
#endif
// If a tile has at most MAX_KEPT_NUMBERS numbers, its keys and values are transposed and gathered once, and a block has
// about MIN_BLOCK_SCORES scores.
constexpr int64_t MAX_KEPT_NUMBERS = 65536, MIN_BLOCK_SCORES = 16384;
// In larger tiles, keys are transposed and values gathered again for every block of rows. The scores of a block then
// fill half of a usual second-level cache, and a block has up to MIN_UNKEPT_ROWS rows or more, so that it repays that
// work.
constexpr int64_t MAX_BLOCK_SCORES = 131072, MIN_UNKEPT_ROWS = 3 * BLOCK_ROWS;

INLINE int64_t block_rows(int64_t seen, bool kept) {
    const int64_t scores = kept ? MIN_BLOCK_SCORES : MAX_BLOCK_SCORES, min_rows = kept ? BLOCK_ROWS : MIN_UNKEPT_ROWS;
    return std::max(min_rows, scores / std::max<int64_t>(1, seen) / BLOCK_ROWS * BLOCK_ROWS);
}

// Attention of `count` queries from `first` on, with one key-value head. row_first: first key of their batch row.
//
// Returns false if the results are not valid, which happens with the matrix unit only. It multiplies values that a query
// does not see by the weight zero, and zero times infinity or NaN is NaN.
template <class T, int DIM>
bool attend_tile(const Attention& p, const KvView<T>& keys, const KvView<T>& values, int64_t first, int64_t count,
                 int64_t row_first, int64_t kv_head, MatrixUnit& matrix_unit, Scratch& scratch) {
    using L = Lanes<T, DIM>;
    RowBlock b;
    b.group = p.heads / p.kv_heads, b.before = 0, b.rows = count * b.group;
    b.starts = p.starts + first, b.ends = p.ends + first;
    b.lowest = b.start(0), b.end = b.stop(b.rows - 1);
    b.begin = b.lowest - (b.lowest - row_first) % L::STEP_KEYS;
    const int64_t seen = b.end - b.begin, padded = (seen + PANEL_KEYS - 1) / PANEL_KEYS * PANEL_KEYS;
    const bool kept = padded * DIM <= MAX_KEPT_NUMBERS;
    // Softmax processes whole vectors from any start.
    b.pitch = (seen + SCORE_KEYS - 1) / SCORE_KEYS * SCORE_KEYS + WIDTH;
    const int64_t first_head = kv_head * b.group, rows = b.rows, together = std::min(rows, block_rows(seen, kept));
    const int64_t panel_numbers = (kept ? padded : PANEL_KEYS) * DIM / L::KEYS;
    float *transposed = scratch.keys.of(panel_numbers), *gathered = scratch.values.of(panel_numbers);
    b.queries = scratch.queries.of(together * L::COUNT);
    b.scores = scratch.scores.of(together * b.pitch);
    b.sums = scratch.sums.of(together * DIM);
    float* factors = scratch.factors.of(together);
    int64_t keys_end = b.begin, values_end = b.begin;  // ends of the keys and values kept so far
    bool finite = true;                                // whether all gathered values are finite
    for_tiles(0, rows, together, [&](int64_t block, int64_t block_rows, int64_t, int64_t) {
        b.before = block, b.rows = block_rows;
        b.each([&](int64_t row, int64_t query, int64_t head) {
            const T* of = static_cast<const T*>(p.query) + (first + query) * p.query_stride + (first_head + head) * DIM;
            fetch_next_head<T, DIM>(of);
            copy_heads<T, DIM>(of, DIM, b.queries + row * L::COUNT);
        });
        // Panels of the keys that are visible to the block.
        const int64_t low = b.start(0), high = b.stop(b.rows - 1);
        const int64_t begin = low - (low - b.begin) % PANEL_KEYS;
        for (int64_t from = begin; from < high; from += PANEL_KEYS) {
            const int64_t to = std::min(from + PANEL_KEYS, b.end);
            float* panel = transposed + (kept ? (from - b.begin) * L::COUNT : 0);
            if (!kept || to > keys_end) transpose_keys<T, DIM>(keys, b.lowest, from, keys_end = to, panel);
            score_panel<T, DIM>(matrix_unit, b, panel, from, to);
        }
        // All maxima are computed before the first softmax, so that a softmax does not wait for its own maximum.
        b.each([&](int64_t row, int64_t query, int64_t head) {
            float* scores = b.scores + row * b.pitch + b.starts[query] - b.begin;
            factors[row] = scale_query_scores(p, first_head + head, first + query, scores);
        });
        b.each([&](int64_t row, int64_t query, int64_t head) {
            const int64_t before = b.starts[query] - b.begin;
            float* scores = b.scores + row * b.pitch;
            auto* weights = reinterpret_cast<typename L::Weight*>(scores) + before;
            factors[row] = softmax_weights<T, DIM>(p, first_head + head, first + query, factors[row],
                                                   panel_margins<T, DIM>(b, row, query), scores + before, weights);
        });
        std::fill(b.sums, b.sums + b.rows * DIM, 0.0f);
        for (int64_t from = begin; from < high; from += PANEL_KEYS) {
            const int64_t to = std::min(from + PANEL_KEYS, b.end);
            float* panel = gathered + (kept ? (from - b.begin) * DIM / L::KEYS : 0);
            if (!kept || to > values_end) {
                finite &= gather_values<T, DIM>(values, b.lowest, from, values_end = to, panel);
            }
            add_panel<T, DIM>(matrix_unit, b, panel, from, to);
        }
        b.each([&](int64_t row, int64_t query, int64_t head) {
            T* out = static_cast<T*>(p.out) + ((first + query) * p.heads + first_head + head) * DIM;
            store_row<T, DIM>(b.sums + row * DIM, factors[row], int64_t{DIM}, out);
        });
    });
    return finite;
}
