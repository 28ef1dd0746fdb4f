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
        if constexpr (STEP == WIDTH) {
            for (int row = 0; row < SCORE_ROWS; row++) {
                for (int g = 0; g < SCORE_GROUPS; g++) found.of[row][g] = Floats{};
            }
#pragma GCC unroll 1
            for (int64_t lane = LANE; lane < L::COUNT; lane += WIDTH) {
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

// Keys first..last-1 in groups of sixteen, turned, and as many groups as scores are made of together. Behind the last
// key its numbers are repeated.
template <class T, int DIM> void turn_keys(const Side<T>& keys, int64_t first, int64_t last, float* turned) {
    const T* lines[WIDTH];
    for (int64_t key = first; key < last || (key - first) % SCORE_KEYS; key += WIDTH, turned += TURNED<T, DIM>) {
        for (int64_t i = 0; i < WIDTH;) {
            const int64_t from = std::min(key + i, last - 1), run = keys.run(from, last);
            const T* line = keys.at(from);
            for (int64_t j = 0; j < run && i < WIDTH; i++, j++) lines[i] = line + j * keys.stride;
        }
        for (int64_t lane = 0; lane < Lanes<T, DIM>::COUNT; lane += WIDTH) {
            turn_lines<T, DIM>(lines, lane, turned + lane * WIDTH);
        }
    }
}

// Values first..last-1, side by side: [values][dim].
template <class T, int DIM> void gather_values(const Side<T>& values, int64_t first, int64_t last, float* gathered) {
    for (int64_t key = first; key < last;) {
        const int64_t run = values.run(key, last);
        const T* line = values.at(key);
        for (int64_t i = 0; i < run; i++, line += values.stride, gathered += DIM) {
            for (int64_t d = 0; d < DIM; d += WIDTH) store(gathered + d, load(line + d));
        }
        key += run;
    }
}

// Rows of one tile: query by query, and of each query the heads that share the key-value head.
struct Tile {
    int64_t rows, group;
    const int32_t *starts, *ends;      // [queries]
    int64_t begin, end;                // keys that any query sees
    int64_t pitch;                     // numbers from one row's scores to the next's
    float *queries, *scores, *sums;    // [rows, lanes]; [rows, pitch], the first is of key `begin`; [rows, dim]
    float* panel;                      // PANEL_KEYS keys or values

    int64_t start(int64_t row) const { return starts[row / group]; }
    int64_t stop(int64_t row) const { return ends[row / group]; }
    // First and last of the bounds of `count` rows.
    std::pair<int64_t, int64_t> starts_of(int64_t row, int64_t count) const { return bounds(starts, row, count); }
    std::pair<int64_t, int64_t> stops_of(int64_t row, int64_t count) const { return bounds(ends, row, count); }
    std::pair<int64_t, int64_t> bounds(const int32_t* of, int64_t row, int64_t count) const {
        const auto found = std::minmax_element(of + row / group, of + (row + count - 1) / group + 1);
        return {*found.first, *found.second};
    }
};

// All rows against the panel's keys from..to-1.
template <class T, int DIM> void score_panel(const Tile& t, int64_t from, int64_t to) {
    constexpr int64_t lanes = Lanes<T, DIM>::COUNT;
    for (int64_t after = SCORE_ROWS; after < t.rows + SCORE_ROWS; after += SCORE_ROWS) {
        // The last rows are made with those before them, once more.
        const int64_t row = std::min(after, t.rows) - SCORE_ROWS;
        const int64_t low = std::max(from, t.starts_of(row, SCORE_ROWS).first);
        const int64_t high = std::min(to, t.stops_of(row, SCORE_ROWS).second);
        for (int64_t key = low - (low - from) % SCORE_KEYS; key < high; key += SCORE_KEYS) {
            score_tile<T, DIM>(t.queries + row * lanes, t.panel + (key - from) * lanes,
                               t.scores + row * t.pitch + key - t.begin, t.pitch);
        }
    }
}

// Values low..high-1 of a panel that begins with value `from`, to the sums of `count` rows that see all of them.
template <int DIM>
void add_seen(const Tile& t, int64_t row, int64_t count, int64_t from, int64_t low, int64_t high) {
    if (low >= high) return;
    const float* shares = t.scores + row * t.pitch + low - t.begin;
    add_values<float, DIM>(shares, t.pitch, t.panel + (low - from) * DIM, DIM, high - low, DIM, count,
                           t.sums + row * DIM);
}

// The panel's values from..to-1 to the sums of all rows. Every row takes its values one after the other: those before
// the ones that its neighbours see too, those, and the rest.
template <int DIM> void add_panel(const Tile& t, int64_t from, int64_t to) {
    constexpr int64_t block = rows_of(chunk_of(DIM / WIDTH));
    for (int64_t first = 0; first < t.rows; first += block) {
        const int64_t count = std::min(block, t.rows - first);
        int64_t low = std::max(from, t.starts_of(first, count).second);
        int64_t high = std::min(to, t.stops_of(first, count).first);
        if (low >= high) low = high = to;
        for (int64_t row = first; row < first + count; row++) {
            add_seen<DIM>(t, row, 1, from, std::max(from, t.start(row)), std::min(low, t.stop(row)));
        }
        add_seen<DIM>(t, first, count, from, low, high);
        for (int64_t row = first; row < first + count; row++) {
            add_seen<DIM>(t, row, 1, from, std::max(high, t.start(row)), std::min(to, t.stop(row)));
        }
    }
}

// `count` queries from `first` on, all of one row, with one key-value head.
template <class T, int DIM>
void attend_tile(const Attention& p, const Side<T>& keys, const Side<T>& values, int64_t first, int64_t count,
                 int64_t kv_head, Rooms& rooms) {
    Tile t;
    t.group = p.heads / p.kv_heads, t.rows = count * t.group;
    t.starts = p.starts + first, t.ends = p.ends + first;
    t.begin = t.starts_of(0, t.rows).first, t.end = t.stops_of(0, t.rows).second;
    // A row's scores may begin anywhere and are softened in whole vectors.
    t.pitch = (t.end - t.begin + SCORE_KEYS - 1) / SCORE_KEYS * SCORE_KEYS + WIDTH;
    t.queries = rooms.queries.of(t.rows * DIM);
    t.scores = rooms.scores.of(t.rows * t.pitch);
    t.sums = rooms.sums.of(t.rows * DIM);
    t.panel = rooms.panel.of(PANEL_KEYS * DIM);
    float* factors = rooms.factors.of(t.rows);
    for (int64_t row = 0; row < t.rows; row += t.group) {
        const T* heads = static_cast<const T*>(p.query) + (first + row / t.group) * p.query_stride;
        copy_heads<T, DIM>(heads + kv_head * t.group * DIM, t.group * DIM, t.queries + row * Lanes<T, DIM>::COUNT);
    }
    for (int64_t from = t.begin; from < t.end; from += PANEL_KEYS) {
        const int64_t to = std::min(from + PANEL_KEYS, t.end);
        turn_keys<T, DIM>(keys, from, to, t.panel);
        score_panel<T, DIM>(t, from, to);
    }
    for (int64_t row = 0; row < t.rows; row++) {
        const float* bias = bias_from(p, kv_head * t.group + row % t.group, first + row / t.group);
        const int64_t start = t.start(row);
        factors[row] = soften(t.scores + row * t.pitch + start - t.begin, t.stop(row) - start, p.scale, bias, p.cap);
    }
    std::fill(t.sums, t.sums + t.rows * DIM, 0.0f);
    for (int64_t from = t.begin; from < t.end; from += PANEL_KEYS) {
        const int64_t to = std::min(from + PANEL_KEYS, t.end);
        gather_values<T, DIM>(values, from, to, t.panel);
        add_panel<DIM>(t, from, to);
    }
    for (int64_t row = 0; row < t.rows; row++) {
        T* out = static_cast<T*>(p.out) + ((first + row / t.group) * p.heads + kv_head * t.group + row % t.group) * DIM;
        finish_row(t.sums + row * DIM, factors[row], int64_t{DIM}, out);
    }
}
