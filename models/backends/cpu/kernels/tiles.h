// Tiling of matrix products: rows in tiles whose sums fill the registers, output columns in panels of 32.
//
// The sum for a row and column adds all of k in one order, for every size of the tile. A row therefore gives the same
// bits in every batch.
#pragma once

#include "vectors.h"

// TILE_ROWS: rows whose sums fill the registers, with SPAN registers of columns each.
#ifdef AVX512
constexpr int TILE_ROWS = 12;
#else
constexpr int TILE_ROWS = 6;
#endif
constexpr int SPAN = 2;

// Rows of the largest tile of any product.
#ifdef AMX
constexpr int64_t MAX_TILE_ROWS = 32;
#else
constexpr int64_t MAX_TILE_ROWS = TILE_ROWS;
#endif

// A tile of at most this many rows is the only tile of its block (see `for_tiles`; `max_tile_rows` is 8 or more), so its
// weights are read once.
constexpr int MAX_FEW_ROWS = std::min(TILE_ROWS, 8) / 2 - 1;

// Registers of columns of a tile. One pass of few rows reads the whole panel, or as much of it as possible, so that it
// reads memory in order.
constexpr int span_of(int64_t rows) { return rows <= MAX_FEW_ROWS ? std::min<int>(4, PANEL / WIDTH) : SPAN; }

// Passes over a panel in which a tile reads all its columns.
constexpr int64_t passes_of(int64_t rows) { return PANEL / WIDTH / span_of(rows); }

// What one tile reads from memory. panel: first byte of the panel. bytes: size of the panel. tile: index of the tile.
// tiles: how many tiles share the panel.
struct PanelRead {
    const void* panel;
    int64_t bytes, tile, tiles;
};

// The caches that a prefetch fills. FIRST_LEVEL keeps weights out of the second-level cache, so that it still has what
// Python needs between two steps of the engine.
enum class Caches { ALL, FIRST_LEVEL, SECOND_LEVEL };

// Prefetches weights while a tile is computed.
//
// Vector instructions use `of` and `fetch`. A tile of few rows is limited by memory: it prefetches its own panel a few
// KiB ahead, past the second-level cache if `few_rows_bypass` is true. Other tiles prefetch the next panel.
// The matrix unit uses `of_steps` and `fetch_step`. A tile that is alone on its panel prefetches that panel, others the
// next one, always into all caches.
struct Prefetch {
    const char* next;  // address of the next prefetch
    int64_t step;      // bytes by which `next` advances per call
    Caches caches;

    // turns: number of fetch() calls per tile. rows: rows of this tile.
    static INLINE Prefetch of(const PanelRead& read, int64_t turns, int64_t rows) {
        constexpr int64_t DISTANCE_BYTES = 4096;
        const auto* first = static_cast<const char*>(read.panel);
        if (rows <= MAX_FEW_ROWS) {
            return {first + DISTANCE_BYTES, read.bytes / turns, few_rows_bypass ? Caches::FIRST_LEVEL : Caches::ALL};
        }
        return of_next_panel(read, turns);
    }

    // For products of the matrix unit. steps: steps of a tile, each with at most one call of fetch_step(). A tile that
    // is alone on its panel is limited by memory and prefetches that panel.
    static INLINE Prefetch of_steps(const PanelRead& read, int64_t steps) {
        constexpr int64_t DISTANCE_BYTES = 8192;
        const auto* first = static_cast<const char*>(read.panel);
        if (read.tiles == 1) return {first + DISTANCE_BYTES, read.bytes / steps, Caches::ALL};
        return of_next_panel(read, steps);
    }

    static INLINE Prefetch of_next_panel(const PanelRead& read, int64_t turns) {
        const int64_t step = read.bytes / turns / read.tiles;
        const char* first = static_cast<const char*>(read.panel) + read.bytes + read.tile * turns * step;
        return {first, step, caches_of(read)};
    }

    INLINE void fetch() {
        if (caches == Caches::FIRST_LEVEL) {
            fetch_lines<0>();
        } else if (caches == Caches::ALL) {
            fetch_lines<3>();
        } else {
            fetch_lines<2>();
        }
        next += step;
    }

    // Prefetches the share of one step: the bytes that it reads, divided by the tiles that share the panel.
    INLINE void fetch_step() {
        for (int64_t byte = 0; byte < step; byte += 64) __builtin_prefetch(next + byte, 0, 3);
        next += step;
    }

private:
    // With one or two tiles per panel, prefetches are so frequent that on some processors they probably fill all line
    // buffers of the first-level cache (slots for pending loads), and the tile's own reads wait. See decision 101.
    // A small panel and the next one fit in the first-level cache together, so they need no other cache. See decision
    // 105.
    static INLINE Caches caches_of(const PanelRead& read) {
        if (read.tiles <= max_second_level_tiles) return Caches::SECOND_LEVEL;
        return read.bytes <= max_first_level_bytes ? Caches::FIRST_LEVEL : Caches::ALL;
    }

    // LOCALITY: argument of __builtin_prefetch: 3 for all caches, 2 for the second-level cache, 0 for the first-level
    // cache.
    template <int LOCALITY> INLINE void fetch_lines() {
        __builtin_prefetch(next, 0, LOCALITY);
        __builtin_prefetch(next + 64, 0, LOCALITY);
    }
};

// Addresses of the next numbers of the ROWS rows of a tile. Rows are `stride` numbers apart.
//
// An x86 address is one register plus 1, 2, 4 or 8 times another. So rows 3 i + 1 and 3 i + 2 are reached from row 3 i and
// the stride, without a register of their own. With one register per row, compilers run out of them and keep addresses
// in vector registers, which takes 3% of the time of a float32 product.
template <int ROWS, class Number> class RowCursor {
public:
    INLINE RowCursor(const Number* x, int64_t stride) : stride_(stride) {
        for (int i = 0; i < KEPT; i++) every_third_[i] = x + 3 * i * stride;
    }

    INLINE const Number* row(int row) const { return every_third_[row / 3] + row % 3 * stride_; }

    INLINE void advance(int64_t count) {
#pragma GCC unroll 4
        for (int i = 0; i < KEPT; i++) {
            every_third_[i] += count;
            asm("" : "+r"(every_third_[i]));  // otherwise compilers keep one register per row again
        }
    }

private:
    static constexpr int KEPT = (ROWS + 2) / 3;

    const Number* every_third_[KEPT];
    int64_t stride_;
};

// Calls tile(std::integral_constant<int, rows>) so that the number of rows is a compile-time constant.
template <int ROWS = TILE_ROWS, class Tile> INLINE void with_constant_rows(int64_t rows, const Tile& tile) {
    if (rows == ROWS) return tile(std::integral_constant<int, ROWS>{});
    if constexpr (ROWS > 1) with_constant_rows<ROWS - 1>(rows, tile);
}

// Largest number of rows of a tile of a product by vector instructions on this processor.
INLINE int64_t vector_tile_rows() { return std::min<int64_t>(TILE_ROWS, max_tile_rows); }

// Calls body(first row, rows, tile, tiles) for tiles of nearly equal size. A tile of one or two rows would leave
// multipliers idle.
template <class Body> INLINE void for_tiles(int64_t begin, int64_t end, int64_t max_rows, const Body& body) {
    const int64_t rows = end - begin, tiles = (rows + max_rows - 1) / max_rows;
    for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t first = begin + rows * tile / tiles, last = begin + rows * (tile + 1) / tiles;
        body(first, last - first, tile, tiles);
    }
}

// Calls body(first row, last row, panel) for work items begin..end-1: all panels of the first block of rows, then of
// the next.
template <class Body>
INLINE void for_panels(int64_t rows, int64_t blocks, int64_t columns, int64_t begin, int64_t end, const Body& body) {
    const int64_t panels = (columns + PANEL - 1) / PANEL;
    for (int64_t item = begin; item < end; item++) {
        const int64_t block = item / panels;
        body(rows * block / blocks, rows * (block + 1) / blocks, item % panels);
    }
}
