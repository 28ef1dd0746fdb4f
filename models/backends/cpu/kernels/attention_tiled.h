// Attention of many queries of one row, bit for bit what `attention_direct.h` gives each of them.
//
// A row here is one query with one query head; all rows share a key-value head. Keys are taken in panels and turned, so
// that a vector holds one number of sixteen keys and a row's score needs no sum across lanes: the lanes of the direct
// kernel's vectors become sums of their own, added in the order of its tree.

// Rows and groups of sixteen keys whose scores are made together. A tile has at least so many rows.
constexpr int64_t SCORE_ROWS = REGISTERS < 32 ? 2 : 6, SCORE_GROUPS = REGISTERS < 32 ? 1 : 2;
constexpr int64_t SCORE_KEYS = SCORE_GROUPS * WIDTH, PANEL_KEYS = 64;

// Sixteen keys, turned: [lanes][16].
template <class T, int DIM> constexpr int64_t TURNED = Lanes<T, DIM>::COUNT * WIDTH;

// Scores of SCORE_ROWS rows against SCORE_KEYS keys.
template <class T, int DIM> struct Scores {
    using L = Lanes<T, DIM>;
    Floats of[SCORE_ROWS][SCORE_GROUPS];

    // What lanes LANE, LANE + STEP, LANE + 2 * STEP... of the direct kernel's sums come to.
    template <int LANE, int STEP> static INLINE Scores sum(const float* queries, const float* keys) {
        Scores found;
        if constexpr (STEP == L::CHAINS) {
            for (int row = 0; row < SCORE_ROWS; row++) {
                for (int g = 0; g < SCORE_GROUPS; g++) found.of[row][g] = Floats{};
            }
#pragma GCC unroll 1
            for (int64_t lane = LANE; lane < L::COUNT; lane += STEP) {
                Floats key[SCORE_GROUPS];
                for (int g = 0; g < SCORE_GROUPS; g++) key[g] = load(keys + g * TURNED<T, DIM> + lane * WIDTH);
                for (int row = 0; row < SCORE_ROWS; row++) {
                    const Floats query = L::all(queries + row * L::COUNT + lane);
                    for (int g = 0; g < SCORE_GROUPS; g++) found.of[row][g] = L::add(found.of[row][g], query, key[g]);
                }
            }
        } else {
            found = sum<LANE, 2 * STEP>(queries, keys);
            const Scores other = sum<LANE + STEP, 2 * STEP>(queries, keys);
            for (int row = 0; row < SCORE_ROWS; row++) {
                for (int g = 0; g < SCORE_GROUPS; g++) found.of[row][g] += other.of[row][g];
            }
        }
        return found;
    }
};

template <class T, int DIM> void score_tile(const float* queries, const float* keys, float* scores, int64_t pitch) {
    const auto found = Scores<T, DIM>::template sum<0, 1>(queries, keys);
    for (int row = 0; row < SCORE_ROWS; row++) {
        for (int g = 0; g < SCORE_GROUPS; g++) store(scores + row * pitch + g * WIDTH, found.of[row][g]);
    }
}

// Lane by lane, sixteen of sixteen keys: lane j of line i becomes lane i of line j.
template <class T, int DIM> void turn_lines(const T* const lines[WIDTH], int64_t from, float* turned) {
    if constexpr (REGISTERS < 32) {
        for (int64_t i = 0; i < WIDTH; i++) {
            for (int64_t j = 0; j < WIDTH; j++) turned[j * WIDTH + i] = widen(lines[i][from + j]);
        }
    } else {
        Floats x[WIDTH];
        for (int64_t i = 0; i < WIDTH; i++) x[i] = Lanes<T, DIM>::read(lines[i], from);
        transpose(x);
        for (int64_t i = 0; i < WIDTH; i++) store(turned + i * WIDTH, x[i]);
    }
}

// A head of a token is read from the second cache if it was fetched while the head before it was computed.
template <class T, int DIM> INLINE void fetch_next_head(const T* head) {
    for (int64_t d = DIM; d < 2 * DIM; d += 64 / sizeof(T)) __builtin_prefetch(head + d, 0, 2);
}

// Keys first..last-1 in groups of sixteen, turned, and as many groups as scores are made of together. In place of keys
// before `lowest` or behind the last there are others, whose scores nobody reads.
template <class T, int DIM>
void turn_keys(const Side<T>& keys, int64_t lowest, int64_t first, int64_t last, float* turned) {
    const T* lines[WIDTH];
    for (int64_t key = first; key < last || (key - first) % SCORE_KEYS; key += WIDTH, turned += TURNED<T, DIM>) {
        for (int64_t i = 0; i < WIDTH;) {
            const int64_t from = std::max(lowest, std::min(key + i, last - 1)), run = keys.run(from, last);
            const T* line = keys.at(from);
            // One that stands for another is not the first of a run.
            const int64_t count = from == key + i ? run : 1;
            for (int64_t j = 0; j < count && i < WIDTH; i++, j++) lines[i] = line + j * keys.stride;
        }
        for (int64_t i = 0; i < WIDTH; i++) fetch_next_head<T, DIM>(lines[i]);
        for (int64_t lane = 0; lane < Lanes<T, DIM>::COUNT; lane += WIDTH) {
            turn_lines<T, DIM>(lines, lane, turned + lane * WIDTH);
        }
    }
}

// Values first..last-1 in lanes, side by side: [lanes][dim]. In pairs, the first one's other may not be there, nor the
// last one's; `first` is the first of a pair.
template <class T, int DIM>
void gather_values(const Side<T>& values, int64_t lowest, int64_t first, int64_t last, float* gathered) {
    using L = Lanes<T, DIM>;
    for (int64_t key = first; key < last;) {
        const int64_t run = key < lowest ? 1 : values.run(key, last), count = std::max<int64_t>(1, run / L::KEYS);
        const T *even = key < lowest ? nothing<T, DIM>() : values.at(key), *odd = nothing<T, DIM>();
        if constexpr (L::PAIRS) {
            if (key + 1 < last) odd = run > 1 ? even + values.stride : values.at(key + 1);
        }
        const Lying<T, DIM> lying{even, odd, values.stride};
        for (int64_t lane = 0; lane < count; lane++, gathered += DIM) {
            for (int64_t d = 0; d < DIM; d += 2 * WIDTH) {
                if constexpr (DIM % (2 * WIDTH)) {
                    Floats value[1];
                    for (int64_t i = d; i < std::min<int64_t>(DIM, d + 2 * WIDTH); i += WIDTH) {
                        lying.read(lane, i, value);
                        store(gathered + i, value[0]);
                    }
                } else {
                    Floats value[2];
                    lying.read(lane, d, value);
                    store(gathered + d, value[0]);
                    store(gathered + d + WIDTH, value[1]);
                }
            }
        }
        key += count * L::KEYS;
    }
}

// Rows of one tile that are computed together: query by query, and of each query the heads that share the key-value head.
struct Block {
    int64_t before, rows, group;       // rows of the tile before them, and how many they are
    const int32_t *starts, *ends;      // of the tile's queries, neither falling
    int64_t lowest, end;               // keys that any query of the tile sees
    int64_t begin;                     // the key of the first score: `lowest`, or the other one of its pair
    int64_t pitch;                     // numbers from one row's scores to the next's
    float *queries, *scores, *sums;    // [rows, lanes]; [rows, pitch]; [rows, dim]

    int64_t query(int64_t row) const { return (before + row) / group; }
    int64_t start(int64_t row) const { return starts[query(row)]; }
    int64_t stop(int64_t row) const { return ends[query(row)]; }

    // body(row, query, head of the group) for each row.
    template <class Body> INLINE void each(const Body& body) const {
        int64_t query = before / group, head = before % group;
        for (int64_t row = 0; row < rows; row++) {
            body(row, query, head);
            if (++head == group) head = 0, query++;
        }
    }
};

// All rows against a panel of keys from..to-1.
template <class T, int DIM> void score_panel(const Block& b, const float* panel, int64_t from, int64_t to) {
    constexpr int64_t lanes = Lanes<T, DIM>::COUNT;
    for (int64_t after = SCORE_ROWS; after < b.rows + SCORE_ROWS; after += SCORE_ROWS) {
        // The last rows are made with those before them, once more.
        const int64_t row = std::min(after, b.rows) - SCORE_ROWS;
        const int64_t low = std::max(from, b.start(row)), high = std::min(to, b.stop(row + SCORE_ROWS - 1));
        for (int64_t key = low - (low - from) % SCORE_KEYS; key < high; key += SCORE_KEYS) {
            score_tile<T, DIM>(b.queries + row * lanes, panel + (key - from) * lanes,
                               b.scores + row * b.pitch + key - b.begin, b.pitch);
        }
    }
}

// Values low..high-1 of a panel that begins with value `from`, to the sums of `count` rows. Pairs are whole, or the rows have
// shares of zero for the rest.
template <class T, int DIM>
void add_seen(const Block& b, const float* panel, int64_t row, int64_t count, int64_t from, int64_t low, int64_t high) {
    constexpr int64_t KEYS = Lanes<T, DIM>::KEYS;
    if (low >= high) return;
    const int64_t first = (low - b.begin) / KEYS, last = (high - b.begin + KEYS - 1) / KEYS;
    const Gathered<DIM> values{panel + (first - (from - b.begin) / KEYS) * DIM};
    add_values<T, DIM>(b.scores + row * b.pitch + first, b.pitch, values, last - first, count, b.sums + row * DIM);
}

// The same for one row, which does not see what lies beside them in a pair: zero times that might not be zero.
template <class T, int DIM>
void add_alone(const Block& b, const float* panel, int64_t row, int64_t from, int64_t low, int64_t high) {
    if constexpr (Lanes<T, DIM>::PAIRS) {
        const auto add_one = [&](int64_t key, uint32_t mask) {
            const Masked<Gathered<DIM>> values{{panel + (key - from) / 2 * DIM}, mask};
            add_rows<T, DIM, 1>(b.scores + row * b.pitch + (key - b.begin) / 2, b.pitch, values, 1, b.sums + row * DIM);
        };
        if (low >= high) return;
        if ((low - from) % 2) add_one(low++, 0xffff0000u);
        const bool rest = low < high && (high - from) % 2;
        add_seen<T, DIM>(b, panel, row, 1, from, low, high - rest);
        if (rest) add_one(high - 1, 0x0000ffffu);
    } else {
        add_seen<T, DIM>(b, panel, row, 1, from, low, high);
    }
}

// The panel's values from..to-1 to the sums of all rows. Every row takes its values one after the other: those before
// the ones that its neighbours see too, those, and the rest.
template <class T, int DIM> void add_panel(const Block& b, const float* panel, int64_t from, int64_t to) {
    constexpr int64_t KEYS = Lanes<T, DIM>::KEYS;
    for_tiles(0, b.rows, VALUE_ROWS<T, DIM>, [&](int64_t first, int64_t count, int64_t, int64_t) {
        int64_t low = std::max(from, b.start(first + count - 1)), high = std::min(to, b.stop(first));
        // Where the other one of a pair is there, whole pairs.
        if (low != b.lowest) low += (low - from) % KEYS;
        if (high != b.end) high -= (high - from) % KEYS;
        if (low >= high) low = high = to;
        for (int64_t row = first; low > from && row < first + count; row++) {
            add_alone<T, DIM>(b, panel, row, from, std::max(from, b.start(row)), std::min(low, b.stop(row)));
        }
        add_seen<T, DIM>(b, panel, first, count, from, low, high);
        for (int64_t row = first; high < to && row < first + count; row++) {
            add_alone<T, DIM>(b, panel, row, from, std::max(high, b.start(row)), std::min(to, b.stop(row)));
        }
    });
}

// Keys and values of a tile in this many numbers or fewer of each are turned and gathered once, and its rows taken in blocks
// of so many scores or more.
constexpr int64_t MOST_KEPT = 65536, BLOCK_SCORES = 16384, BLOCK_ROWS = 12;
// Where there are more, half of a usual second cache is filled with scores; of very many keys, those of fewest rows that
// make turning them again pay.
constexpr int64_t MOST_SCORES = 131072, FEWEST_BLOCK_ROWS = 36;

INLINE int64_t block_rows(int64_t seen, bool kept) {
    const int64_t scores = kept ? BLOCK_SCORES : MOST_SCORES, fewest = kept ? BLOCK_ROWS : FEWEST_BLOCK_ROWS;
    return std::max(fewest, scores / std::max<int64_t>(1, seen) / BLOCK_ROWS * BLOCK_ROWS);
}

// `count` queries from `first` on, all of a row whose first key is `row_first`, with one key-value head.
template <class T, int DIM>
void attend_tile(const Attention& p, const Side<T>& keys, const Side<T>& values, int64_t first, int64_t count,
                 int64_t row_first, int64_t kv_head, Rooms& rooms) {
    using L = Lanes<T, DIM>;
    Block b;
    b.group = p.heads / p.kv_heads, b.before = 0, b.rows = count * b.group;
    b.starts = p.starts + first, b.ends = p.ends + first;
    b.lowest = b.start(0), b.end = b.stop(b.rows - 1);
    b.begin = b.lowest - (b.lowest - row_first) % L::KEYS;
    const int64_t seen = b.end - b.begin, padded = (seen + PANEL_KEYS - 1) / PANEL_KEYS * PANEL_KEYS;
    const bool kept = padded * DIM <= MOST_KEPT;
    // A row's scores may begin anywhere and are softened in whole vectors.
    b.pitch = (seen + SCORE_KEYS - 1) / SCORE_KEYS * SCORE_KEYS + WIDTH;
    const int64_t first_head = kv_head * b.group, rows = b.rows, together = std::min(rows, block_rows(seen, kept));
    const int64_t room = (kept ? padded : PANEL_KEYS) * DIM / L::KEYS;
    float *turned = rooms.keys.of(room), *gathered = rooms.values.of(room);
    b.queries = rooms.queries.of(together * L::COUNT);
    b.scores = rooms.scores.of(together * b.pitch);
    b.sums = rooms.sums.of(together * DIM);
    float* factors = rooms.factors.of(together);
    int64_t keys_end = b.begin, values_end = b.begin;  // of those that are kept
    for_tiles(0, rows, together, [&](int64_t block, int64_t block_rows, int64_t, int64_t) {
        b.before = block, b.rows = block_rows;
        b.each([&](int64_t row, int64_t query, int64_t head) {
            const T* of = static_cast<const T*>(p.query) + (first + query) * p.query_stride + (first_head + head) * DIM;
            fetch_next_head<T, DIM>(of);
            copy_heads<T, DIM>(of, DIM, b.queries + row * L::COUNT);
        });
        // Panels of the keys that the block sees.
        const int64_t low = b.start(0), high = b.stop(b.rows - 1);
        const int64_t begin = low - (low - b.begin) % PANEL_KEYS;
        for (int64_t from = begin; from < high; from += PANEL_KEYS) {
            const int64_t to = std::min(from + PANEL_KEYS, b.end);
            float* panel = turned + (kept ? (from - b.begin) * L::COUNT : 0);
            if (!kept || to > keys_end) turn_keys<T, DIM>(keys, b.lowest, from, keys_end = to, panel);
            score_panel<T, DIM>(b, panel, from, to);
        }
        // All highest ones first: shares need the whole of theirs, and what is found meanwhile is another row's.
        b.each([&](int64_t row, int64_t query, int64_t head) {
            float* scores = b.scores + row * b.pitch + b.starts[query] - b.begin;
            factors[row] = highest_score(p, first_head + head, first + query, scores);
        });
        b.each([&](int64_t row, int64_t query, int64_t) {
            const int64_t before = b.starts[query] - b.begin;
            float* scores = b.scores + row * b.pitch;
            auto* shares = reinterpret_cast<typename L::Share*>(scores) + before;
            factors[row] = shares_of<T, DIM>(p, first + query, factors[row], before % L::KEYS, scores + before, shares);
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
            finish_row<T, DIM>(b.sums + row * DIM, factors[row], int64_t{DIM}, out);
        });
    });
}
