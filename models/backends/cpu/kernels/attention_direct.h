// Attention of one query over keys as they lie: for a few queries, whose keys are read once and from memory.
//
// What is computed of a query and a head depends on nothing but the query, its keys and its values, each in their
// order; `attention_tiled.h` makes the same sums in the same order for many queries at once.

// Sums of ROWS query heads with sixteen keys, of which KEY, KEY + STEP... are added here.
template <class T, int DIM, int ROWS> struct DirectScores {
    using L = Lanes<T, DIM>;
    static constexpr int64_t VECTORS = L::COUNT / WIDTH;
    Floats of[ROWS];

    static INLINE DirectScores of_keys(const float* queries, const T* const (&keys)[WIDTH]) {
        if constexpr (L::CHAINS == WIDTH) {
            return sum<0, 1>(queries, keys);
        } else {
            return together(queries, keys);
        }
    }
    // The first lanes of two vectors or four, as many of each as there are chains, then the next ones.
    static INLINE void cut(const Floats (&x)[2], Floats (&parts)[2]) {
        parts[0] = first_8(x[0], x[1]), parts[1] = second_8(x[0], x[1]);
    }
    static INLINE void cut(const Floats (&x)[4], Floats (&parts)[4]) {
        const Floats low[] = {first_8(x[0], x[2]), first_8(x[1], x[3])};
        const Floats high[] = {second_8(x[0], x[2]), second_8(x[1], x[3])};
        parts[0] = first_4(low[0], low[1]), parts[1] = second_4(low[0], low[1]);
        parts[2] = first_4(high[0], high[1]), parts[3] = second_4(high[0], high[1]);
    }
    // Keys in twos or fours: a vector holds the chains of all of them.
    static INLINE DirectScores together(const float* queries, const T* const (&keys)[WIDTH]) {
        constexpr int CHAINS = L::CHAINS, KEYS = WIDTH / CHAINS;
        Floats sums[ROWS][CHAINS] = {}, x[KEYS], key[KEYS], query[KEYS];
        for (int64_t lane = 0; lane < L::COUNT; lane += WIDTH) {
#pragma GCC unroll 8
            for (int i = 0; i < CHAINS; i++) {
                for (int k = 0; k < KEYS; k++) x[k] = L::read(keys[i + k * CHAINS], lane);
                cut(x, key);
                for (int row = 0; row < ROWS; row++) {
                    for (int k = 0; k < KEYS; k++) x[k] = load(queries + row * L::COUNT + lane);
                    cut(x, query);
                    for (int k = 0; k < KEYS; k++) sums[row][i] = L::add(sums[row][i], query[k], key[k]);
                }
            }
        }
        DirectScores found;
        for (int row = 0; row < ROWS; row++) {
            Floats* s = sums[row];
            if constexpr (CHAINS == 8) {
                for (int i = 0; i < 4; i++) s[i] = halved<4>(s[i], s[i + 4]);
            }
            for (int i = 0; i < 2; i++) s[i] = halved<2>(s[i], s[i + 2]);
            found.of[row] = halved<1>(s[0], s[1]);
        }
        return found;
    }
    template <int KEY, int STEP> static INLINE DirectScores sum(const float* queries, const T* const (&keys)[WIDTH]) {
        DirectScores found;
        if constexpr (STEP == WIDTH) {
            for (int row = 0; row < ROWS; row++) found.of[row] = Floats{};
            for (int64_t v = 0; v < VECTORS; v++) {
                const Floats key = L::read(keys[KEY], v * WIDTH);
                for (int row = 0; row < ROWS; row++) {
                    found.of[row] = L::add(found.of[row], load(queries + row * L::COUNT + v * WIDTH), key);
                }
            }
        } else {
            found = sum<KEY, 2 * STEP>(queries, keys);
            const DirectScores other = sum<KEY + STEP, 2 * STEP>(queries, keys);
            for (int row = 0; row < ROWS; row++) found.of[row] = halved<STEP>(found.of[row], other.of[row]);
        }
        return found;
    }
    // As in sums_of.
    template <int STEP> static INLINE Floats halved(Floats a, Floats b) {
        if constexpr (STEP == 8) return first_8(a, b) + second_8(a, b);
        if constexpr (STEP == 4) return first_4(a, b) + second_4(a, b);
        if constexpr (STEP == 2) return first_2(a, b) + second_2(a, b);
        return first_1(a, b) + second_1(a, b);
    }
};

// Scores of `rows` query heads against `count` keys, at most sixteen and `stride` numbers apart. Rows are `pitch`
// numbers apart; up to fifteen numbers behind the scores of each are overwritten.
template <class T, int DIM>
INLINE void score_keys(const float* queries, const T* keys, int64_t stride, int64_t count, int64_t head_dim,
                       int64_t rows, float* scores, int64_t pitch) {
    if constexpr (DIM > 0) {
        constexpr int64_t lanes = Lanes<T, DIM>::COUNT;
        const T* lines[WIDTH];
        for (int64_t i = 0; i < WIDTH; i++) lines[i] = keys + std::min(i, count - 1) * stride;
        int64_t row = 0;
        for (; row + 3 <= rows; row += 3) {
            const auto found = DirectScores<T, DIM, 3>::of_keys(queries + row * lanes, lines);
            for (int64_t i = 0; i < 3; i++) store(scores + (row + i) * pitch, found.of[i]);
        }
        for (; row < rows; row++) {
            const auto found = DirectScores<T, DIM, 1>::of_keys(queries + row * lanes, lines);
            store(scores + row * pitch, found.of[0]);
        }
    } else {
        for (int64_t row = 0; row < rows; row++) {
            for (int64_t i = 0; i < count; i++) {
                float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
                for (int64_t d = 0; d < head_dim; d++) sum += queries[row * head_dim + d] * widen(keys[i * stride + d]);
                scores[row * pitch + i] = sum;
            }
        }
    }
}

// Shares times values, for heads of any size.
template <class T>
INLINE void add_any(const float* shares, int64_t pitch, const T* values, int64_t stride, int64_t count, int64_t dim,
                    int64_t rows, float* out) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < count; i++) {
#pragma omp simd
            for (int64_t d = 0; d < dim; d++) out[row * dim + d] += shares[row * pitch + i] * widen(values[i * stride + d]);
        }
    }
}

constexpr int64_t MOST_FETCHED = 256 << 10;

// Keys that are read next, and how many numbers of each.
template <class T> struct Coming {
    Side<T> keys;
    int64_t first, last, numbers;

    INLINE void fetch(int64_t after) const { keys.fetch(first + after, last, numbers); }
};

// Shares times values first..last-1, `width` heads side by side and `group` rows for each. Shares of a row lie `pitch`
// lanes apart, the first is that of key `first` and, in pairs, of the one before it where `odd`. Calls fetch(values so far).
template <class T, int DIM, class Fetch>
INLINE void add_lying(const Side<T>& values, int64_t first, int64_t last, int64_t odd, int64_t width, int64_t group,
                      int64_t dim, const float* shares, int64_t pitch, float* sums, const Fetch& fetch) {
    using L = Lanes<T, DIM>;
    for (int64_t key = first - odd, lane = 0; key < last;) {
        const bool begins = key >= first;
        const int64_t here = begins ? values.step(key, last) : 1, count = std::max<int64_t>(1, here / L::KEYS);
        const T *even = begins ? values.at(key) : nullptr, *odd_one = nullptr;
        if constexpr (L::PAIRS) {
            if (key + 1 < last) odd_one = here > 1 ? even + values.stride : values.at(key + 1);
        }
        fetch(key - first);
        for (int64_t head = 0; head < width; head++) {
            const float* part = shares + head * group * pitch + lane;
            float* out = sums + head * group * dim;
            const T* one = even == nullptr ? nullptr : even + head * dim;
            if constexpr (DIM > 0) {
                const T* other = odd_one == nullptr ? nullptr : odd_one + head * dim;
                const T* none = nothing<T, DIM>();
                const Lying<T, DIM> lying{one == nullptr ? none : one, other == nullptr ? none : other, values.stride};
                add_values<T, DIM>(part, pitch, lying, count, group, out);
            } else {
                add_any<T>(part, pitch, one, values.stride, count, dim, group, out);
            }
        }
        key += count * L::KEYS, lane += count;
    }
}

// One query with `width` key-value heads from `kv_head` on, which lie side by side, and the heads that share them. Blocks
// lie anywhere, so that the processor does not foresee them: while keys are read, their values and the keys after them
// are fetched, and while values are, the keys of the next query.
template <class T, int DIM>
void attend_query(const Attention& p, const Side<T>& keys, const Side<T>& values, int64_t query, int64_t row_first,
                  int64_t kv_head, int64_t width, const Coming<T>& coming, Rooms& rooms) {
    const int64_t group = p.heads / p.kv_heads, rows = width * group, dim = DIM ? DIM : p.head_dim;
    const int64_t lanes = DIM ? Lanes<T, DIM>::COUNT : dim;
    const int64_t first = p.starts[query], last = p.ends[query], count = last - first;
    const int64_t odd = (first - row_first) % Lanes<T, DIM>::KEYS;
    const int64_t pitch = (odd + count + WIDTH - 1) / WIDTH * WIDTH + WIDTH, head = kv_head * group;
    // What is fetched long before it is read must still be in the second cache then.
    const bool stays = count * width * dim * int64_t{sizeof(T)} <= MOST_FETCHED;
    float* queries = rooms.queries.of(rows * dim);
    float* scores = rooms.scores.of(rows * pitch);
    float* sums = rooms.sums.of(rows * dim);
    float* factors = rooms.factors.of(rows);
    copy_heads<T, DIM>(static_cast<const T*>(p.query) + query * p.query_stride + head * dim, rows * dim, queries);
    for (int64_t key = first; key < last;) {
        const int64_t here = keys.step(key, last);
        const T* run = keys.at(key);
        keys.fetch(key + here, last, width * dim);
        if (stays) values.fetch(key, last, width * dim);
        for (int64_t row = 0; row < rows; row += group) {
            score_keys<T, DIM>(queries + row * lanes, run + row / group * dim, keys.stride, here, dim, group,
                               scores + row * pitch + odd + key - first, pitch);
        }
        key += here;
    }
    for (int64_t row = 0; row < rows; row++) {
        float* of_row = scores + row * pitch;
        auto* shares = reinterpret_cast<typename Lanes<T, DIM>::Share*>(of_row) + odd;
        const float highest = highest_score(p, head + row, query, of_row + odd);
        factors[row] = shares_of<T, DIM>(p, query, highest, odd, of_row + odd, shares);
    }
    std::fill(sums, sums + rows * dim, 0.0f);
    add_lying<T, DIM>(values, first, last, odd, width, group, dim, scores, pitch, sums, [&](int64_t after) {
        if (stays) coming.fetch(std::max<int64_t>(0, after));
    });
    T* out = static_cast<T*>(p.out) + (query * p.heads + head) * dim;
    for (int64_t row = 0; row < rows; row++) finish_row<T, DIM>(sums + row * dim, factors[row], dim, out + row * dim);
}
