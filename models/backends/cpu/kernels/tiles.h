// How the products of matrices are cut up: rows in tiles whose sums fill the registers, columns in panels of 32.
//
// Every sum of a row and a column is made in one order, over all of k, whatever the size of its tile, so a row gives the
// same bits whatever rows are beside it.

// LANES: numbers of 32 bits in a register. TILE_ROWS: rows whose sums fill the registers, for SPAN registers of columns.
#if defined(AVX512)
constexpr int LANES = 16, TILE_ROWS = 12;
#elif defined(AVX2)
constexpr int LANES = 8, TILE_ROWS = 6;
#else
constexpr int LANES = 4, TILE_ROWS = 6;
#endif
constexpr int SPAN = 2, COLUMNS = SPAN * LANES;

// A register as a vector: compilers split the longer ones of vectors.h badly where this many are alive.
using Sums = float __attribute__((vector_size(LANES * 4)));
typedef float UnalignedSums __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
using Units = uint32_t __attribute__((vector_size(LANES * 4)));
typedef uint32_t UnalignedUnits __attribute__((vector_size(LANES * 4), aligned(1), may_alias));
static_assert(alignof(UnalignedSums) == 4 && alignof(UnalignedUnits) == 1);

// A tile of so few rows is the only one of its block (`for_tiles`): nobody reads its weights again.
constexpr int FEW_ROWS = TILE_ROWS / 2 - 1;

// What is read next, fetched in equal parts while a tile is computed. A tile of few rows waits for its weights: it fetches
// them a little ahead of itself, past the second cache, which keeps what Python needs between two steps. Others fetch the
// next panel.
struct Ahead {
    const char* next;
    int64_t step;

    // panel: of `bytes`, which the tile goes through in so many turns.
    static INLINE Ahead of(const void* panel, int64_t bytes, int64_t turns, int64_t rows, int64_t tile, int64_t tiles) {
        constexpr int64_t CLOSE = 4096;
        const auto* first = static_cast<const char*>(panel);
        if (rows <= FEW_ROWS) return {first + CLOSE, bytes / turns};
        const int64_t step = bytes / turns / tiles;
        return {first + bytes + tile * turns * step, step};
    }

    template <int ROWS> INLINE void fetch() {
        constexpr int KEPT = ROWS <= FEW_ROWS ? 0 : 3;
        __builtin_prefetch(next, 0, KEPT);
        __builtin_prefetch(next + 64, 0, KEPT);
        next += step;
    }
};

// Calls tile.operator()<ROWS>() for the constant that equals `rows`.
template <int ROWS = TILE_ROWS, class Tile> INLINE void with_rows(int64_t rows, const Tile& tile) {
    if (rows == ROWS) return tile(std::integral_constant<int, ROWS>{});
    if constexpr (ROWS > 1) with_rows<ROWS - 1>(rows, tile);
}

// body(first row, rows, tile, tiles) for tiles of nearly equal size: a tile of one or two rows leaves the processor waiting.
template <class Body> INLINE void for_tiles(int64_t begin, int64_t end, int64_t most, const Body& body) {
    const int64_t rows = end - begin, tiles = (rows + most - 1) / most;
    for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t first = begin + rows * tile / tiles, last = begin + rows * (tile + 1) / tiles;
        body(first, last - first, tile, tiles);
    }
}

// body(first row, last row, panel) for items begin..end-1, the panels of a block of rows one after another.
template <class Body>
INLINE void for_items(int64_t rows, int64_t blocks, int64_t columns, int64_t begin, int64_t end, const Body& body) {
    const int64_t panels = (columns + PANEL - 1) / PANEL;
    for (int64_t item = begin; item < end; item++) {
        const int64_t block = item / panels;
        body(rows * block / blocks, rows * (block + 1) / blocks, item % panels);
    }
}
