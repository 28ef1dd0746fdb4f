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
};

// Scores of one query head against `count` keys, `stride` numbers apart.
template <class T, int DIM>
INLINE void score_keys(const float* query, const T* keys, int64_t stride, int64_t count, int64_t head_dim,
                       float* scores) {
    constexpr int64_t vectors = DIM / WIDTH;
    if constexpr (vectors > 0) {
        for (int64_t tile = 0; tile < count; tile += WIDTH) {
            const int64_t here = std::min(WIDTH, count - tile);
            Floats products[WIDTH];
            for (int64_t i = 0; i < here; i++) {
                const T* key = keys + (tile + i) * stride;
                Floats product{};
                for (int64_t v = 0; v < vectors; v++) product += load(query + v * WIDTH) * load(key + v * WIDTH);
                products[i] = product;
            }
            for (int64_t i = here; i < WIDTH; i++) products[i] = Floats{};
            const Floats found = sums_of(products);
            if (here == WIDTH) {
                store(scores + tile, found);
            } else {
                for (int64_t i = 0; i < here; i++) scores[tile + i] = found[i];
            }
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
            for (int64_t d = 0; d < head_dim; d++) sum += query[d] * widen(keys[i * stride + d]);
            scores[i] = sum;
        }
    }
}

// Vectors of a head whose sums, for some rows, are kept in registers at a time; and how many rows.
constexpr int64_t chunk_of(int64_t vectors) {
    return REGISTERS < 32 ? (vectors % 2 ? 1 : 2) : vectors % 4 == 0 ? 4 : vectors % 5 == 0 ? 5 : vectors % 3 == 0 ? 3 : 2;
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

template <class T> INLINE void scale_heads(const T* heads, float scale, int64_t count, float* scaled) {
    for (int64_t i = 0; i < count; i++) scaled[i] = widen(heads[i]) * scale;
}

template <class T> INLINE void finish_row(const float* sums, float factor, int64_t dim, T* out) {
    for (int64_t d = 0; d < dim; d++) narrow(sums[d] * factor, out[d]);
}

// One query with `width` key-value heads from `kv_head` on, side by side in memory, and all query heads that share them.
template <class T, int DIM>
void attend_query(const Attention& p, const Side<T>& keys, const Side<T>& values, int64_t query, int64_t kv_head,
                  int64_t width, Rooms& rooms) {
    const int64_t group = p.heads / p.kv_heads, rows = width * group, dim = DIM ? DIM : p.head_dim;
    const int64_t first = p.starts[query], last = p.ends[query], count = last - first;
    const int64_t pitch = (count + WIDTH - 1) / WIDTH * WIDTH, head = kv_head * group;
    float* scaled = rooms.queries.of(rows * dim);
    float* scores = rooms.scores.of(rows * pitch);
    float* sums = rooms.sums.of(rows * dim);
    float* factors = rooms.factors.of(rows);
    scale_heads(static_cast<const T*>(p.query) + query * p.query_stride + head * dim, p.scale, rows * dim, scaled);
    for (int64_t key = first; key < last;) {
        const int64_t here = keys.run(key, last);
        const T* run = keys.at(key);
        for (int64_t row = 0; row < rows; row++) {
            score_keys<T, DIM>(scaled + row * dim, run + row / group * dim, keys.stride, here, dim,
                               scores + row * pitch + key - first);
        }
        key += here;
    }
    for (int64_t row = 0; row < rows; row++) {
        factors[row] = soften(scores + row * pitch, count, bias_from(p, head + row, query), p.cap);
    }
    std::fill(sums, sums + rows * dim, 0.0f);
    for (int64_t key = first; key < last;) {
        const int64_t here = values.run(key, last);
        const T* run = values.at(key);
        for (int64_t row = 0; row < rows; row += group) {
            add_values<T, DIM>(scores + row * pitch + key - first, pitch, run + row / group * dim, values.stride, here,
                               dim, group, sums + row * dim);
        }
        key += here;
    }
    T* out = static_cast<T*>(p.out) + (query * p.heads + head) * dim;
    for (int64_t row = 0; row < rows; row++) finish_row(sums + row * dim, factors[row], dim, out + row * dim);
}
