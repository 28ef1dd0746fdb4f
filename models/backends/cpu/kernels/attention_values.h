// Products of softmax weights and values, added value by value or pair by pair, in the order of the keys.
#pragma once

#include "attention_lanes.h"
#include "attention_read_ahead.h"
#include "tiles.h"
#include "vectors.h"

// Values that `gather_values` has copied to contiguous lanes: [lanes][dim].
template <int DIM> struct GatheredValues {
    const float* values;

    template <int COUNT> INLINE void read(int64_t lane, int64_t d, Floats (&values)[COUNT]) const {
        for (int v = 0; v < COUNT; v++) values[v] = load(this->values + lane * DIM + d + v * WIDTH);
    }
};

// Values with the masked half of each pair set to zero.
template <class Source> struct MaskedValues {
    Source source;
    uint32_t mask;

    template <int COUNT> INLINE void read(int64_t lane, int64_t d, Floats (&values)[COUNT]) const {
        source.read(lane, d, values);
        for (int v = 0; v < COUNT; v++) values[v] = reinterpret_cast<Floats>(reinterpret_cast<Words>(values[v]) & mask);
    }
};

// Number of vectors of a head whose sums are kept in registers at a time. VALUE_ROWS is the matching number of rows.
constexpr int64_t chunk_of(int64_t vectors, bool pairs) {
    if (REGISTERS < 32) return vectors % 2 ? 1 : 2;
    if (pairs) return vectors % 4 == 0 ? 4 : 2;
    return vectors % 4 == 0 ? 4 : vectors % 5 == 0 ? 5 : vectors % 3 == 0 ? 3 : 2;
}
template <class T, int DIM> constexpr int64_t CHUNK = chunk_of(DIM / WIDTH, Lanes<T, DIM>::PAIRS);
template <class T, int DIM> constexpr int64_t VALUE_ROWS = REGISTERS * 3 / 4 / CHUNK<T, DIM>;

// out += weights * values, for ROWS rows over `count` lanes.
//
// weights: [ROWS, count] lanes, rows `pitch` lanes apart.
// out: [ROWS, DIM], float32.
template <class T, int DIM, int ROWS, class Source, class Ahead = NoReadAhead>
void add_rows(const float* weights, int64_t pitch, Source values, int64_t count, float* out, Ahead&& ahead = {}) {
    using L = Lanes<T, DIM>;
    constexpr int VECTORS = CHUNK<T, DIM>;
    constexpr int LINES = std::max<int>(1, VECTORS * WIDTH * L::KEYS * sizeof(T) / 64);  // that a lane reads
    for (int64_t d = 0; d < DIM; d += VECTORS * WIDTH) {
        Floats sums[ROWS][VECTORS];
        for (int row = 0; row < ROWS; row++) {
            for (int v = 0; v < VECTORS; v++) sums[row][v] = load(out + row * DIM + d + v * WIDTH);
        }
        for (int64_t i = 0; i < count; i++) {
            ahead.template fetch<LINES>();
            Floats value[VECTORS];
            values.read(i, d, value);
#pragma GCC unroll 12
            for (int row = 0; row < ROWS; row++) {
                const Floats weight = L::all(weights + row * pitch + i);
                for (int v = 0; v < VECTORS; v++) sums[row][v] = L::add(sums[row][v], weight, value[v]);
            }
        }
        for (int row = 0; row < ROWS; row++) {
            for (int v = 0; v < VECTORS; v++) store(out + row * DIM + d + v * WIDTH, sums[row][v]);
        }
    }
}

// Like `add_rows`, for any number of rows. Processes as many at a time as the registers hold.
template <class T, int DIM, class Source, class Ahead = NoReadAhead>
INLINE void add_values(const float* weights, int64_t pitch, const Source& values, int64_t count, int64_t rows,
                       float* out, Ahead&& ahead = {}) {
    constexpr int64_t most = VALUE_ROWS<T, DIM>;
    for (int64_t row = 0; row < rows; row += most) {
        with_constant_rows<most>(std::min(most, rows - row), [&](auto size) {
            const float* of_rows = weights + row * pitch;
            if (row == 0) {
                add_rows<T, DIM, size.value>(of_rows, pitch, values, count, out, ahead);
            } else {
                add_rows<T, DIM, size.value>(of_rows, pitch, values, count, out + row * DIM);
            }
        });
    }
}
