// Attention of single queries over keys and values in the blocks of a cache (Kwon et al. 2023, arXiv:2309.06180).
//
// One unit of work is one query with some or all of its key-value heads and the query heads that share them: its keys
// are read once, block by block, then its values. Sums and softmax are float32. What is computed of a head depends on
// nothing but its own query, keys and values, so a row gives the same bits alone, in a batch, and in a chunk.

// Scores of one query head against `count` keys, `stride` numbers apart.
template <class T, int DIM>
INLINE void score_block(const float* query, const T* keys, int64_t stride, int64_t count, int64_t head_dim,
                        float* scores) {
    constexpr int64_t vectors = DIM / WIDTH;
    if constexpr (vectors > 0) {
        for (int64_t tile = 0; tile < count; tile += WIDTH) {
            const int64_t here = std::min(WIDTH, count - tile);
            Floats products[WIDTH];
            for (int64_t i = 0; i < here; i++) {
                const T* key = keys + (tile + i) * stride;
                Floats product = load(query) * load(key);
                for (int64_t v = 1; v < vectors; v++) product += load(query + v * WIDTH) * load(key + v * WIDTH);
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

// out += shares . values for `HEADS` query heads over `count` values; shares of a head lie `pitch` numbers apart.
template <class T, int DIM, int HEADS>
INLINE void add_block(const float* shares, int64_t pitch, const T* values, int64_t stride, int64_t count,
                      int64_t head_dim, float* out) {
    constexpr int64_t vectors = DIM / WIDTH;
    if constexpr (vectors > 0) {
        Floats sums[HEADS][vectors > 0 ? vectors : 1];
        for (int64_t head = 0; head < HEADS; head++) {
            for (int64_t v = 0; v < vectors; v++) sums[head][v] = load(out + head * DIM + v * WIDTH);
        }
        for (int64_t i = 0; i < count; i++) {
            for (int64_t v = 0; v < vectors; v++) {
                const Floats value = load(values + i * stride + v * WIDTH);
                for (int64_t head = 0; head < HEADS; head++) sums[head][v] += value * shares[head * pitch + i];
            }
        }
        for (int64_t head = 0; head < HEADS; head++) {
            for (int64_t v = 0; v < vectors; v++) store(out + head * DIM + v * WIDTH, sums[head][v]);
        }
    } else {
        for (int64_t head = 0; head < HEADS; head++) {
            for (int64_t i = 0; i < count; i++) {
#pragma omp simd
                for (int64_t d = 0; d < head_dim; d++) {
                    out[head * head_dim + d] += shares[head * pitch + i] * widen(values[i * stride + d]);
                }
            }
        }
    }
}

// The same for all query heads of a key-value head, as many together as registers hold.
template <class T, int DIM>
INLINE void add_group(const float* shares, int64_t pitch, const T* values, int64_t stride, int64_t count,
                      int64_t head_dim, int64_t group, float* out) {
    int64_t head = 0;
    for (; head + 3 <= group; head += 3) {
        add_block<T, DIM, 3>(shares + head * pitch, pitch, values, stride, count, head_dim, out + head * head_dim);
    }
    if (group - head == 2) {
        add_block<T, DIM, 2>(shares + head * pitch, pitch, values, stride, count, head_dim, out + head * head_dim);
    } else if (group - head == 1) {
        add_block<T, DIM, 1>(shares + head * pitch, pitch, values, stride, count, head_dim, out + head * head_dim);
    }
}

// Scores to shares: bias, cap, softmax. Returns one over their sum; the shares stay unnormalised.
INLINE float soften(float* scores, int64_t count, const float* bias, float cap) {
    if (cap > 0.0f) {
        for (int64_t i = 0; i < count; i++) scores[i] = cap * std::tanh(scores[i] / cap);
    }
    if (bias != nullptr) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) scores[i] += bias[i];
    }
    float highest = scores[0];
#pragma omp simd reduction(max : highest)
    for (int64_t i = 0; i < count; i++) highest = scores[i] > highest ? scores[i] : highest;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        scores[i] = exp_negative(scores[i] - highest);
        sum += scores[i];
    }
    return 1.0f / sum;
}

// Units begin..end-1, each of `width` key-value heads of a query.
template <class T, int DIM> void attend_units(const PagedAttention& p, int64_t width, int64_t begin, int64_t end) {
    const int64_t group = p.heads / p.kv_heads, dim = DIM ? DIM : p.head_dim, token = p.kv_heads * dim;
    const int64_t rows = width * group, units = p.kv_heads / width;
    std::vector<float> scores, queries(rows * dim), sums(rows * dim), factors(rows);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t query = unit / units, kv_head = unit % units * width;
        const int64_t first = p.starts[query], last = p.ends[query], count = last - first;
        const int64_t* table = p.tables + p.rows[query] * p.table_width;
        const T* heads = static_cast<const T*>(p.query) + query * p.query_stride + kv_head * group * dim;
        const T* key_cache = static_cast<const T*>(p.key_cache) + kv_head * dim;
        const T* value_cache = static_cast<const T*>(p.value_cache) + kv_head * dim;
        for (int64_t i = 0; i < rows * dim; i++) queries[i] = widen(heads[i]) * p.scale;
        std::fill(sums.begin(), sums.end(), 0.0f);
        if (static_cast<int64_t>(scores.size()) < rows * count) scores.resize(rows * count);
        for (int64_t key = first; key < last;) {
            const int64_t offset = key % p.block_size, here = std::min(p.block_size - offset, last - key);
            const T* keys = key_cache + (table[key / p.block_size] * p.block_size + offset) * token;
            for (int64_t row = 0; row < rows; row++) {
                score_block<T, DIM>(&queries[row * dim], keys + row / group * dim, token, here, dim,
                                    &scores[row * count + key - first]);
            }
            key += here;
        }
        for (int64_t row = 0; row < rows; row++) {
            const float* bias = nullptr;
            if (p.bias != nullptr) {
                // Distance d of a key and the query is found at d + length - 1.
                const int64_t line = (kv_head * group + row) * (2 * p.bias_length - 1);
                bias = p.bias + line + p.bias_length - 1 + first - p.positions[query];
            }
            factors[row] = soften(&scores[row * count], count, bias, p.cap);
        }
        for (int64_t key = first; key < last;) {
            const int64_t offset = key % p.block_size, here = std::min(p.block_size - offset, last - key);
            const T* values = value_cache + (table[key / p.block_size] * p.block_size + offset) * token;
            for (int64_t row = 0; row < rows; row += group) {
                add_group<T, DIM>(&scores[row * count + key - first], count, values + row / group * dim, token, here,
                                  dim, group, &sums[row * dim]);
            }
            key += here;
        }
        T* out = static_cast<T*>(p.out) + (query * p.heads + kv_head * group) * dim;
        for (int64_t row = 0; row < rows; row++) {
#pragma omp simd
            for (int64_t d = 0; d < dim; d++) narrow(sums[row * dim + d] * factors[row], out[row * dim + d]);
        }
    }
}

template <class T> void attend_dtype(const PagedAttention& p, int64_t width, int64_t begin, int64_t end) {
    switch (p.head_dim) {
        case 32: return attend_units<T, 32>(p, width, begin, end);
        case 64: return attend_units<T, 64>(p, width, begin, end);
        case 80: return attend_units<T, 80>(p, width, begin, end);
        case 96: return attend_units<T, 96>(p, width, begin, end);
        case 128: return attend_units<T, 128>(p, width, begin, end);
        case 256: return attend_units<T, 256>(p, width, begin, end);
        default: return attend_units<T, 0>(p, width, begin, end);
    }
}

void attend(DType dtype, const PagedAttention& p, int64_t heads_of_unit, int64_t begin, int64_t end) {
    if (dtype == FLOAT32) {
        attend_dtype<float>(p, heads_of_unit, begin, end);
    } else {
        attend_dtype<bfloat16>(p, heads_of_unit, begin, end);
    }
}
