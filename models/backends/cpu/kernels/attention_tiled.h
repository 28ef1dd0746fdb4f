// Attention of many queries of one batch row. Gives the same bits as `attention_direct.h` gives for each query.
//
// In this file a row is one query with one query head; all rows share a key-value head. Keys are transposed in
// panels, so that a vector holds the same lane of sixteen keys and a score needs no sum across lanes. The direct
// kernel adds the lanes of a vector in a tree. Here these lanes are separate sums, which are added in the same order.

// Rows, and groups of sixteen keys, whose scores are computed together. A tile has at least SCORE_ROWS rows.
constexpr int64_t SCORE_ROWS = REGISTERS < 32 ? 2 : 6, SCORE_GROUPS = REGISTERS < 32 ? 1 : 2;
constexpr int64_t SCORE_KEYS = SCORE_GROUPS * WIDTH, PANEL_KEYS = 64;

// Size of sixteen transposed keys: [lanes][16].
template <class T, int DIM> constexpr int64_t TRANSPOSED = Lanes<T, DIM>::COUNT * WIDTH;

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

// Transposes sixteen lanes of sixteen keys, from lane `from` on.
template <class T, int DIM> void transpose_lines(const T* const lines[WIDTH], int64_t from, float* transposed) {
    if constexpr (REGISTERS < 32) {
        for (int64_t i = 0; i < WIDTH; i++) {
            for (int64_t j = 0; j < WIDTH; j++) transposed[j * WIDTH + i] = widen(lines[i][from + j]);
        }
    } else {
        Floats x[WIDTH];
        for (int64_t i = 0; i < WIDTH; i++) x[i] = Lanes<T, DIM>::read(lines[i], from);
        transpose(x);
        for (int64_t i = 0; i < WIDTH; i++) store(transposed + i * WIDTH, x[i]);
    }
}

// Prefetches the following head of a token while this one is computed.
template <class T, int DIM> INLINE void fetch_next_head(const T* head) {
    for (int64_t d = DIM; d < 2 * DIM; d += 64 / sizeof(T)) __builtin_prefetch(head + d, 0, 2);
}

// Transposes keys first..last-1 in groups of sixteen, padded to whole multiples of SCORE_KEYS. Keys before
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

// Copies values first..last-1 to contiguous lanes: [lanes][dim]. `first` begins a pair. Values missing from the first
// or last pair are zero.
template <class T, int DIM>
void gather_values(const KvView<T>& values, int64_t lowest, int64_t first, int64_t last, float* gathered) {
    using L = Lanes<T, DIM>;
    for (int64_t key = first; key < last;) {
        const int64_t run = key < lowest ? 1 : values.run(key, last), count = std::max<int64_t>(1, run / L::KEYS);
        const T *even = key < lowest ? zero_head<T, DIM>() : values.at(key), *odd = zero_head<T, DIM>();
        if constexpr (L::PAIRS) {
            if (key + 1 < last) odd = run > 1 ? even + values.stride : values.at(key + 1);
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
                }
            }
        }
        key += count * L::KEYS;
    }
}

// Rows of one tile that are computed together: for each query, all heads that share the key-value head.
struct RowBlock {
    int64_t before, rows, group;       // rows of the tile before this block; rows in it; query heads per query
    const int32_t *starts, *ends;      // [queries of the tile]: visible keys; neither array decreases
    int64_t lowest, end;               // keys visible to any query of the tile
    int64_t begin;                     // key of the first score: `lowest`, or the first key of its pair
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

// Scores of all rows against a panel of keys from..to-1.
template <class T, int DIM> void score_panel(const RowBlock& b, const float* panel, int64_t from, int64_t to) {
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
template <class T, int DIM> void add_panel(const RowBlock& b, const float* panel, int64_t from, int64_t to) {
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

// If a tile has at most MAX_KEPT_NUMBERS numbers, its keys and values are transposed and gathered once. Rows are then
// processed in blocks of at least MIN_BLOCK_SCORES scores.
constexpr int64_t MAX_KEPT_NUMBERS = 65536, MIN_BLOCK_SCORES = 16384, BLOCK_ROWS = 12;
// In larger tiles they are transposed again for every block of rows. The scores of a block then fill half of a usual
// second-level cache, and a block has at least MIN_UNKEPT_ROWS rows, so that it repays the transposition.
constexpr int64_t MAX_BLOCK_SCORES = 131072, MIN_UNKEPT_ROWS = 36;

INLINE int64_t block_rows(int64_t seen, bool kept) {
    const int64_t scores = kept ? MIN_BLOCK_SCORES : MAX_BLOCK_SCORES, min_rows = kept ? BLOCK_ROWS : MIN_UNKEPT_ROWS;
    return std::max(min_rows, scores / std::max<int64_t>(1, seen) / BLOCK_ROWS * BLOCK_ROWS);
}

// Attention of `count` queries from `first` on, with one key-value head. row_first: first key of their batch row.
template <class T, int DIM>
void attend_tile(const Attention& p, const KvView<T>& keys, const KvView<T>& values, int64_t first, int64_t count,
                 int64_t row_first, int64_t kv_head, Scratch& scratch) {
    using L = Lanes<T, DIM>;
    RowBlock b;
    b.group = p.heads / p.kv_heads, b.before = 0, b.rows = count * b.group;
    b.starts = p.starts + first, b.ends = p.ends + first;
    b.lowest = b.start(0), b.end = b.stop(b.rows - 1);
    b.begin = b.lowest - (b.lowest - row_first) % L::KEYS;
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
            score_panel<T, DIM>(b, panel, from, to);
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
                                                   before % L::KEYS, scores + before, weights);
        });
        std::fill(b.sums, b.sums + b.rows * DIM, 0.0f);
        for (int64_t from = begin; from < high; from += PANEL_KEYS) {
            const int64_t to = std::min(from + PANEL_KEYS, b.end);
            float* panel = gathered + (kept ? (from - b.begin) * DIM / L::KEYS : 0);
            if (!kept || to > values_end) gather_values<T, DIM>(values, b.lowest, from, values_end = to, panel);
            add_panel<T, DIM>(b, panel, from, to);
        }
        b.each([&](int64_t row, int64_t query, int64_t head) {
            T* out = static_cast<T*>(p.out) + ((first + query) * p.heads + first_head + head) * DIM;
            store_row<T, DIM>(b.sums + row * DIM, factors[row], int64_t{DIM}, out);
        });
    });
}
