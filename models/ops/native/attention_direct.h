// Attention of one query over keys as they lie: for a few queries, whose keys are read once and from memory.
//
// What is computed of a query and a head depends on nothing but the query, its keys and its values, each in their
// order; `attention_tiled.h` makes the same sums in the same order for many queries at once.

// Keys or values of one row and one key-value head: a cache of blocks, or packed ones as one endless block.
template <class T> struct Side {
    const T* tokens;
    int64_t stride, block_size;
    const int64_t* table;

    INLINE const T* at(int64_t key) const {
        return tokens + (table[key / block_size] * block_size + key % block_size) * stride;
    }
    // Keys from this one on that lie one after the other.
    INLINE int64_t run(int64_t key, int64_t last) const { return std::min(block_size - key % block_size, last - key); }
    // So many of them are taken together where they are few.
    INLINE int64_t step(int64_t key, int64_t last) const { return std::min(WIDTH, run(key, last)); }
    // Tells the memory that such a step will be wanted, `numbers` numbers of each key.
    INLINE void fetch(int64_t key, int64_t last, int64_t numbers) const {
        if (key >= last) return;
        const T* line = at(key);
        for (int64_t i = step(key, last); i > 0; i--, line += stride) {
            const char* bytes = reinterpret_cast<const char*>(line);
            for (int64_t byte = 0; byte < numbers * int64_t{sizeof(T)}; byte += 64) __builtin_prefetch(bytes + byte);
        }
    }
};

// What of a head one multiplication takes. Lanes are 32 bits: a number in float32, or a pair of bfloat16 where the
// processor multiplies and adds such pairs.
template <class T, int DIM> struct Lanes {
#ifdef BF16_PRODUCTS
    static constexpr bool PAIRS = DIM > 0 && sizeof(T) == 2 && DIM % (2 * WIDTH) == 0;
#else
    static constexpr bool PAIRS = false;
#endif
    static constexpr int64_t COUNT = PAIRS ? DIM / 2 : DIM;  // of a head

    // Sixteen lanes from lane `lane` of a head on.
    static INLINE Floats read(const T* head, int64_t lane) {
        if constexpr (PAIRS) {
            return load(reinterpret_cast<const float*>(head) + lane);
        } else {
            return load(head + lane);
        }
    }
    // One lane sixteen times.
    static INLINE Floats all(const float* lane) {
        if constexpr (PAIRS) {
            uint32_t pair;
            std::memcpy(&pair, lane, sizeof pair);
            return reinterpret_cast<Floats>(Words{} + pair);
        } else {
            return spread(*lane);
        }
    }
    static INLINE Floats add(Floats sum, Floats x, Floats y) {
#ifdef BF16_PRODUCTS
        if constexpr (PAIRS) {
            return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(x),
                                                             reinterpret_cast<__m512bh>(y)));
        }
#endif
        return sum + x * y;
    }
};

// Sums of ROWS query heads with sixteen keys, of which KEY, KEY + STEP... are added here.
template <class T, int DIM, int ROWS> struct DirectScores {
    using L = Lanes<T, DIM>;
    static constexpr int64_t VECTORS = L::COUNT / WIDTH;
    Floats of[ROWS];

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
            const auto found = DirectScores<T, DIM, 3>::template sum<0, 1>(queries + row * lanes, lines);
            for (int64_t i = 0; i < 3; i++) store(scores + (row + i) * pitch, found.of[i]);
        }
        for (; row < rows; row++) {
            const auto found = DirectScores<T, DIM, 1>::template sum<0, 1>(queries + row * lanes, lines);
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

// Vectors of a head whose sums, for some rows, are kept in registers at a time; and how many rows.
constexpr int64_t chunk_of(int64_t vectors) {
    if (REGISTERS < 32) return vectors % 2 ? 1 : 2;
    return vectors % 4 == 0 ? 4 : vectors % 5 == 0 ? 5 : vectors % 3 == 0 ? 3 : 2;
}
constexpr int64_t rows_of(int64_t chunk) { return std::min<int64_t>(8, REGISTERS * 3 / 4 / chunk); }

// out += shares . values, for `ROWS` rows, `VECTORS` vectors of each, over `count` values. Shares of a row lie `pitch`
// numbers apart, those of the output `dim`.
template <class T, int VECTORS, int ROWS>
INLINE void add_chunk(const float* shares, int64_t pitch, const T* values, int64_t stride, int64_t count, int64_t dim,
                      float* out) {
    Floats sums[ROWS][VECTORS];
    for (int64_t row = 0; row < ROWS; row++) {
        for (int64_t v = 0; v < VECTORS; v++) sums[row][v] = load(out + row * dim + v * WIDTH);
    }
    for (int64_t i = 0; i < count; i++) {
        Floats value[VECTORS];
        for (int64_t v = 0; v < VECTORS; v++) value[v] = load(values + i * stride + v * WIDTH);
        for (int64_t row = 0; row < ROWS; row++) {
            const Floats share = spread(shares[row * pitch + i]);
            for (int64_t v = 0; v < VECTORS; v++) sums[row][v] += value[v] * share;
        }
    }
    for (int64_t row = 0; row < ROWS; row++) {
        for (int64_t v = 0; v < VECTORS; v++) store(out + row * dim + v * WIDTH, sums[row][v]);
    }
}

template <class T, int DIM, int ROWS>
void add_rows(const float* shares, int64_t pitch, const T* values, int64_t stride, int64_t count, float* out) {
    constexpr int64_t vectors = DIM / WIDTH, chunk = chunk_of(vectors);
    for (int64_t v = 0; v < vectors; v += chunk) {
        add_chunk<T, chunk, ROWS>(shares, pitch, values + v * WIDTH, stride, count, DIM, out + v * WIDTH);
    }
}

// The same for any number of rows, as many together as registers hold.
template <class T, int DIM>
INLINE void add_values(const float* shares, int64_t pitch, const T* values, int64_t stride, int64_t count,
                       int64_t head_dim, int64_t rows, float* out) {
    if constexpr (DIM > 0) {
        constexpr int64_t most = rows_of(chunk_of(DIM / WIDTH));
        for (int64_t row = 0; row < rows; row += most) {
            const float* part = shares + row * pitch;
            float* sums = out + row * DIM;
            switch (std::min(most, rows - row)) {
                case 1: add_rows<T, DIM, 1>(part, pitch, values, stride, count, sums); break;
                case 2: add_rows<T, DIM, std::min<int64_t>(2, most)>(part, pitch, values, stride, count, sums); break;
                case 3: add_rows<T, DIM, std::min<int64_t>(3, most)>(part, pitch, values, stride, count, sums); break;
                case 4: add_rows<T, DIM, std::min<int64_t>(4, most)>(part, pitch, values, stride, count, sums); break;
                case 5: add_rows<T, DIM, std::min<int64_t>(5, most)>(part, pitch, values, stride, count, sums); break;
                case 6: add_rows<T, DIM, std::min<int64_t>(6, most)>(part, pitch, values, stride, count, sums); break;
                case 7: add_rows<T, DIM, std::min<int64_t>(7, most)>(part, pitch, values, stride, count, sums); break;
                default: add_rows<T, DIM, most>(part, pitch, values, stride, count, sums);
            }
        }
    } else {
        for (int64_t row = 0; row < rows; row++) {
            for (int64_t i = 0; i < count; i++) {
#pragma omp simd
                for (int64_t d = 0; d < head_dim; d++) {
                    out[row * head_dim + d] += shares[row * pitch + i] * widen(values[i * stride + d]);
                }
            }
        }
    }
}

// The bias of a head and a query from the first key on that it sees, or null.
INLINE const float* bias_from(const Attention& p, int64_t head, int64_t query) {
    if (p.bias == nullptr) return nullptr;
    return p.bias + head * p.bias_stride + p.bias_zero + p.starts[query] - p.origins[query];
}

// Lanes of some heads.
template <class T, int DIM> INLINE void copy_heads(const T* heads, int64_t count, float* lanes) {
    if constexpr (Lanes<T, DIM>::PAIRS) {
        std::memcpy(lanes, heads, count * sizeof(T));
    } else {
        for (int64_t i = 0; i < count; i++) lanes[i] = widen(heads[i]);
    }
}

template <class T> INLINE void finish_row(const float* sums, float factor, int64_t dim, T* out) {
    for (int64_t d = 0; d < dim; d++) narrow(sums[d] * factor, out[d]);
}

constexpr int64_t MOST_FETCHED = 256 << 10;

// Keys that are read next, and how many numbers of each.
template <class T> struct Coming {
    Side<T> keys;
    int64_t first, last, numbers;

    INLINE void fetch(int64_t after) const { keys.fetch(first + after, last, numbers); }
};

// One query with `width` key-value heads from `kv_head` on, which lie side by side, and the heads that share them. Blocks
// lie anywhere, so that the processor does not foresee them: while keys are read, their values and the keys after them
// are fetched, and while values are, the keys of the next query.
template <class T, int DIM>
void attend_query(const Attention& p, const Side<T>& keys, const Side<T>& values, int64_t query, int64_t kv_head,
                  int64_t width, const Coming<T>& coming, Rooms& rooms) {
    const int64_t group = p.heads / p.kv_heads, rows = width * group, dim = DIM ? DIM : p.head_dim;
    const int64_t lanes = DIM ? Lanes<T, DIM>::COUNT : dim;
    const int64_t first = p.starts[query], last = p.ends[query], count = last - first;
    const int64_t pitch = (count + WIDTH - 1) / WIDTH * WIDTH + WIDTH, head = kv_head * group;
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
                               scores + row * pitch + key - first, pitch);
        }
        key += here;
    }
    for (int64_t row = 0; row < rows; row++) {
        factors[row] = soften(scores + row * pitch, count, p.scale, bias_from(p, head + row, query), p.cap);
    }
    std::fill(sums, sums + rows * dim, 0.0f);
    for (int64_t key = first; key < last;) {
        const int64_t here = values.step(key, last);
        const T* run = values.at(key);
        if (stays) coming.fetch(key - first);
        for (int64_t row = 0; row < rows; row += group) {
            add_values<T, DIM>(scores + row * pitch + key - first, pitch, run + row / group * dim, values.stride, here,
                               dim, group, sums + row * dim);
        }
        key += here;
    }
    T* out = static_cast<T*>(p.out) + (query * p.heads + head) * dim;
    for (int64_t row = 0; row < rows; row++) finish_row(sums + row * dim, factors[row], dim, out + row * dim);
}
