// Products of attention by the matrix unit (amx.h), for bfloat16 and head dimensions that are multiples of 32. `attend`
// lists the dimensions that are compiled.
//
// Scores add up 32 dimensions per step, and products with values 32 keys per step. The steps of keys begin at the first
// key of a batch row, so that a query has the same steps in every batch. The unit multiplies and adds in the same order
// whichever operand is the first, so that keys may be the rows of the product or the panel.
#pragma once

#include "amx.h"
#include "attention_lanes.h"
#include "attention_panels.h"
#include "attention_read_ahead.h"
#include "attention_scratch.h"
#include "tiles.h"
#include "vectors.h"

#ifdef AMX

constexpr int64_t COLUMNS = AMX_LINE_BYTES / 4;  // number of query heads whose scores `score_columns` computes together

// Number of floats that the result of `copy_queries` has for one key-value head. Includes columns without a head.
template <class T, int DIM> INLINE int64_t query_lanes(int64_t group, int64_t) {
    return (group + COLUMNS - 1) / COLUMNS * COLUMNS * Lanes<T, DIM>::COUNT;
}

// Copies query heads to columns: [width, ceil(group / COLUMNS), lanes, COLUMNS]. Columns without a head are not written;
// their scores are not used.
//
// width: number of key-value heads. group: number of query heads of each.
template <class T, int DIM>
void copy_queries(const T* queries, int64_t width, int64_t group, int64_t dim, float* columns) {
    constexpr int64_t lanes = Lanes<T, DIM>::COUNT;
    for (int64_t head = 0; head < width; head++, columns += query_lanes<T, DIM>(group, dim)) {
        for (int64_t row = 0; row < group; row++, queries += DIM) {
            float* column = columns + row / COLUMNS * COLUMNS * lanes + row % COLUMNS;
            for (int64_t lane = 0; lane < lanes; lane++) {
                std::memcpy(column + lane * COLUMNS, queries + 2 * lane, sizeof *column);
            }
        }
    }
}

// Scores of up to COLUMNS query heads against 32 keys, or against 16 keys without HAS_SECOND.
//
// columns: [lanes][COLUMNS], one part of the result of `copy_queries`.
// first, second: 16 keys each, `first_stride` and `second_stride` numbers apart.
// scores: [32 keys][COLUMNS], float32.
template <class T, int DIM, bool HAS_SECOND>
INLINE void score_columns(const float* columns, const T* first, const T* second, int64_t first_stride,
                          int64_t second_stride, float* scores) {
    constexpr int64_t line_bytes = COLUMNS * sizeof(float);
    _tile_zero(0);
    if constexpr (HAS_SECOND) _tile_zero(2);
    for (int64_t lane = 0; lane < Lanes<T, DIM>::COUNT; lane += AMX_LINES) {
        _tile_loadd(6, columns + lane * COLUMNS, line_bytes);
        _tile_loadd(4, first + 2 * lane, first_stride * int64_t{sizeof(T)});
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (HAS_SECOND) {
            _tile_loadd(5, second + 2 * lane, second_stride * int64_t{sizeof(T)});
            _tile_dpbf16ps(2, 5, 6);
        }
    }
    _tile_stored(0, scores, line_bytes);
    if constexpr (HAS_SECOND) _tile_stored(2, scores + AMX_LINES * COLUMNS, line_bytes);
}

// Scores of the query heads of one key-value head against up to DIRECT_KEYS keys.
//
// columns: the part of the result of `copy_queries` for this key-value head.
// rows: number of query heads.
// keys: [count, head_dim], `stride` numbers apart.
// scores: [rows, count], float32, rows `pitch` numbers apart. Up to fifteen numbers after each row are overwritten.
template <class T, int DIM>
INLINE void score_keys(MatrixUnit& matrix_unit, const float* columns, const T* keys, int64_t stride, int64_t count,
                       int64_t, int64_t rows, float* scores, int64_t pitch, ReadAhead<T>& ahead) {
    ahead.fetch_at_once(count * DIM * int64_t{sizeof(T)});
    static_assert(DIRECT_KEYS == 2 * AMX_LINES);
    alignas(64) T rest[AMX_LINES * DIM];
    alignas(64) float products[DIRECT_KEYS * COLUMNS];
    const T *first = keys, *second = keys + AMX_LINES * stride;
    int64_t first_stride = stride, second_stride = stride;
    // The unit always reads sixteen keys. Fewer keys are copied first, because the memory after the last key may not be
    // readable.
    if (const int64_t others = count % AMX_LINES; others != 0) {
        const T*& part = count < AMX_LINES ? first : second;
        for (int64_t i = 0; i < others; i++) std::memcpy(rest + i * DIM, part + i * stride, DIM * sizeof(T));
        part = rest;
        (count < AMX_LINES ? first_stride : second_stride) = DIM;
    }
    const Integers lines = lane_numbers() * int32_t{COLUMNS};
    matrix_unit.set_shapes(2 * AMX_LINES, AMX_LINES);
    finish_stores(rest);
    for (int64_t row = 0; row < rows; row += COLUMNS) {
        const float* group = columns + row * Lanes<T, DIM>::COUNT;
        if (count > AMX_LINES) {
            score_columns<T, DIM, true>(group, first, second, first_stride, second_stride, products);
        } else {
            score_columns<T, DIM, false>(group, first, second, first_stride, second_stride, products);
        }
        for (int64_t i = row; i < std::min(rows, row + COLUMNS); i++) {
            for (int64_t key = 0; key < count; key += WIDTH) {
                const float* column = products + key * COLUMNS + i - row;
                store(scores + i * pitch + key, (Floats)_mm512_i32gather_ps((__m512i)lines, column, sizeof(float)));
            }
        }
    }
}

// Adds the weighted values of one step to the sums in the registers of the unit, for 32 dimensions. `AmxSums::load` has
// loaded the sums, and `set_shapes` has set the number of rows. HAS_SECOND: see `add_amx_step`.
//
// weights: [rows, STEP_KEYS], bfloat16, rows `pitch` words of 32 bits apart.
// first_rows: number of rows of the first part.
// gathered: values from `gather_values`, from the first of the 32 dimensions on. Pairs of keys are DIM words of 32 bits
//     apart.
template <bool HAS_SECOND, int DIM>
INLINE void add_value_step(const float* weights, int64_t pitch, int64_t first_rows, const float* gathered) {
    const auto* first = reinterpret_cast<const char*>(weights);
    add_amx_step<bfloat16, HAS_SECOND>(first, first + first_rows * pitch * 4, pitch * 4,
                                       {reinterpret_cast<const char*>(gathered), AMX_LINE_BYTES, DIM * 4});
}

// sums += weights * values, for values first..last-1.
//
// width: number of adjacent key-value heads. group: number of query heads, and rows of weights and sums, of each.
// weights: softmax weights, bfloat16, rows `pitch` words of 32 bits apart. The first weight of a row belongs to key
//     `first - before`, which begins a step. In the first and last step, weights of keys outside first..last-1 are zero.
// sums: [width * group, DIM], float32.
template <class T, int DIM>
INLINE void add_stored_values(MatrixUnit& matrix_unit, const KvView<T>& values, int64_t first, int64_t last,
                              int64_t before, int64_t width, int64_t group, int64_t, const float* weights,
                              int64_t pitch, float* sums, Scratch& scratch, ReadAhead<T>& ahead) {
    constexpr int64_t STEP = Lanes<T, DIM>::STEP_KEYS;
    float* gathered = scratch.values.of(STEP / 2 * DIM);
    for (int64_t key = first - before; key < last; key += STEP, weights += STEP / 2) {
        const int64_t here = std::min(key + STEP, last) - std::max(key, first);
        for (int64_t head = 0; head < width; head++) {
            ahead.fetch_at_once(here * DIM * int64_t{sizeof(T)});
            gather_values<T, DIM>(values.of_head(head, DIM), first, key, std::min(key + STEP, last), gathered);
            finish_stores(gathered);
            for (int64_t row = 0; row < group; row += AMX_LINES) {
                const int64_t rows = std::min(AMX_LINES, group - row), at = head * group + row;
                matrix_unit.set_shapes(rows, AMX_LINES);
                for (int64_t d = 0; d < DIM; d += 2 * WIDTH) {
                    const AmxSums part{sums + at * DIM + d, nullptr, DIM * 4};
                    part.load<false>();
                    add_value_step<false, DIM>(weights + at * pitch, pitch, rows, gathered + d);
                    part.store<false>();
                }
            }
        }
    }
}

// Calls body(first row, rows, whether there are more than 16) for every 32 rows of a block.
template <class Body> INLINE void for_unit_rows(const RowBlock& b, const Body& body) {
    for (int64_t row = 0; row < b.rows; row += MAX_TILE_ROWS) {
        const int64_t rows = std::min(MAX_TILE_ROWS, b.rows - row);
        if (rows > AMX_LINES) {
            body(row, rows, std::true_type{});
        } else {
            body(row, rows, std::false_type{});
        }
    }
}

// Scores of all rows against a panel of keys from..to-1.
template <class T, int DIM>
void score_panel(MatrixUnit& matrix_unit, const RowBlock& b, const float* panel, int64_t from, int64_t to) {
    constexpr int64_t lanes = Lanes<T, DIM>::COUNT;
    finish_stores(panel);
    for_unit_rows(b, [&](int64_t row, int64_t rows, auto has_second) {
        const int64_t low = std::max(from, b.start(row)), high = std::min(to, b.stop(row + rows - 1));
        const int64_t first_rows = MatrixUnit::first_rows(rows);
        const auto* first = reinterpret_cast<const char*>(b.queries + row * lanes);
        matrix_unit.set_shapes(rows, AMX_LINES);
        for (int64_t key = low - (low - from) % SCORE_KEYS; key < high; key += SCORE_KEYS) {
            const auto* of_keys = reinterpret_cast<const char*>(panel + (key - from) * lanes);
            float* scores = b.scores + row * b.pitch + key - b.begin;
            clear_amx_sums();
            for (int64_t line = 0; line < lanes; line += AMX_LINES) {
                add_amx_step<T, has_second>(
                    first + 4 * line, first + 4 * (first_rows * lanes + line), 4 * lanes,
                    {of_keys + line * AMX_LINE_BYTES, TRANSPOSED<T, DIM> * 4, AMX_LINE_BYTES});
            }
            AmxSums{scores, scores + first_rows * b.pitch, b.pitch * 4}.template store<has_second>();
        }
    });
}

// Margins of the weights of a row. `add_panel` multiplies up to 32 rows by every key that any of them sees, so the
// margins reach from the first to the last of these keys.
template <class T, int DIM> INLINE Margins panel_margins(const RowBlock& b, int64_t row, int64_t query) {
    const int64_t first = row - row % MAX_TILE_ROWS, last = std::min(b.rows, first + MAX_TILE_ROWS) - 1;
    return margins<Lanes<T, DIM>::STEP_KEYS>(b.begin, b.start(first), b.starts[query], b.ends[query], b.stop(last));
}

// Adds weighted values from..to-1 of the panel to the sums of all rows, step after step in the order of the keys. All
// values of the panel must be finite, see `attend_tile`.
template <class T, int DIM>
void add_panel(MatrixUnit& matrix_unit, const RowBlock& b, const float* panel, int64_t from, int64_t to) {
    constexpr int64_t STEP = Lanes<T, DIM>::STEP_KEYS;
    finish_stores(panel);
    for_unit_rows(b, [&](int64_t row, int64_t rows, auto has_second) {
        int64_t low = std::max(from, b.start(row));
        const int64_t high = std::min(to, b.stop(row + rows - 1)), first_rows = MatrixUnit::first_rows(rows);
        low -= (low - from) % STEP;
        if (low >= high) return;
        matrix_unit.set_shapes(rows, AMX_LINES);
        for (int64_t d = 0; d < DIM; d += 2 * WIDTH) {
            float* sums = b.sums + row * DIM + d;
            const AmxSums part{sums, sums + first_rows * DIM, DIM * 4};
            part.template load<has_second>();
            for (int64_t key = low; key < high; key += STEP) {
                add_value_step<has_second, DIM>(b.scores + row * b.pitch + (key - b.begin) / 2, b.pitch, first_rows,
                                                panel + (key - from) / 2 * DIM + d);
            }
            part.template store<has_second>();
        }
    });
}

#endif
