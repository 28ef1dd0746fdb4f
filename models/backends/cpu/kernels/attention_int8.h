// Attention over keys and values that are stored in int8 (int8_slots.h), for decoding and for prompts alike.
//
// Products are sums of integers, which are exact in every order. A query is rounded to 15 bits; a score is an integer
// times the scales of query and key. Values are processed in panels of 64, which begin at multiples of 64 in their
// batch row. The softmax weights of a panel, times the scales of its values, are rounded to 16 bits with one scale per
// query. A query therefore gives the same bits in every tile, alone or in a batch, and for every division of a prompt.
//
// In a panel of keys a lane holds four dimensions of one key, in a panel of values one dimension of four keys. A row is
// one query with one query head.
#pragma once

#include "attention_lanes.h"
#include "attention_scratch.h"
#include "attention_softmax.h"
#include "attention_tiled.h"
#include "numbers.h"
#include "quads.h"
#include "tiles.h"
#include "vectors.h"

constexpr int32_t MAX_QUERY = 16383, MAX_WEIGHT = 32767;

// Keys or values of a panel.
constexpr int64_t INT8_PANEL_KEYS = 64;

// Largest head whose scores fit in int32.
constexpr int64_t MAX_INT8_HEAD = 1024;
static_assert(int64_t{127} * MAX_QUERY * MAX_INT8_HEAD < (int64_t{1} << 31));
static_assert(int64_t{127} * MAX_WEIGHT * INT8_PANEL_KEYS < (int64_t{1} << 31));

struct Int8Scratch {
    ScratchBuffer<int32_t> factors, panel;
    ScratchBuffer<float> scores, sums, scales;
};

// Addresses of keys or values from..to-1 of a panel. The rest of the panel repeats the last address.
struct PanelLines {
    const int8_t* of[INT8_PANEL_KEYS];

    PanelLines(const KvView<int8_t>& view, int64_t from, int64_t to) {
        for (int64_t i = 0; i < INT8_PANEL_KEYS;) {
            const int64_t key = std::min(from + i, to - 1), run = from + i < to ? view.run(key, to) : 1;
            const int8_t* line = view.at(key);
            for (int64_t j = 0; j < run && i < INT8_PANEL_KEYS; i++, j++) of[i] = line + j * view.stride;
        }
    }
};

// Prefetches part `part` of `parts` of the panel that begins at key `from`, into the second-level cache: a panel of all
// heads would fill the first. numbers: of each key.
INLINE void fetch_panel(const KvView<int8_t>& view, int64_t from, int64_t last, int64_t numbers, int64_t part,
                        int64_t parts) {
    const int64_t end = std::min(from + INT8_PANEL_KEYS * (part + 1) / parts, last);
    for (int64_t key = from + INT8_PANEL_KEYS * part / parts; key < end;) {
        const int8_t* line = view.at(key);
        for (const int64_t stop = key + view.run(key, end); key < stop; key++, line += view.stride) {
            for (int64_t byte = 0; byte < numbers; byte += 64) __builtin_prefetch(line + byte, 0, 2);
        }
    }
}

// Scales of the keys or values from..to-1 of a panel, in float32. The rest of the panel gets zeros.
INLINE void read_scales(const bfloat16* scales, const Attention& p, const int64_t* table, int64_t kv_head, int64_t from,
                        int64_t to, float* out) {
    for (int64_t key = from; key < to;) {
        const int64_t run = std::min(p.block_size - key % p.block_size, to - key);
        const bfloat16* first =
            scales + (table[key / p.block_size] * p.kv_heads + kv_head) * p.block_size + key % p.block_size;
#pragma omp simd
        for (int64_t i = 0; i < run; i++) out[key - from + i] = widen(first[i]);
        key += run;
    }
    std::fill(out + (to - from), out + INT8_PANEL_KEYS, 0.0f);
}

// Panel of keys: [dim / 4][INT8_PANEL_KEYS] quads, dimensions padded with zeros. Only groups of WIDTH keys with one of the
// first `count` keys are written. offset: first number of the head in each line.
INLINE void gather_keys(const PanelLines& lines, int64_t offset, int64_t count, int64_t dim, int32_t* panel) {
    for (int64_t key = 0; key < count; key += WIDTH) {
        const int8_t* const* keys = lines.of + key;
        int64_t d = 0;
        for (; d + QUAD * WIDTH <= dim; d += QUAD * WIDTH) {
            Words x[WIDTH];
#pragma GCC unroll 16
            for (int64_t i = 0; i < WIDTH; i++) x[i] = load_words(keys[i] + offset + d);
            transpose(x);
#pragma GCC unroll 16
            for (int64_t i = 0; i < WIDTH; i++) {
                store(panel + (d / QUAD + i) * INT8_PANEL_KEYS + key, reinterpret_cast<Integers>(x[i]));
            }
        }
        for (; d < dim; d += QUAD) {
            for (int64_t i = 0; i < WIDTH; i++) {
                int32_t quad = 0;
                std::memcpy(&quad, keys[i] + offset + d, std::min(QUAD, dim - d));
                panel[d / QUAD * INT8_PANEL_KEYS + key + i] = quad;
            }
        }
    }
}

// Panel of values: [INT8_PANEL_KEYS / 4][padded] quads, where `padded` is dim in whole vectors. `place_of` has the order of
// the dimensions. Only quads with one of the first `count` values are written.
INLINE void gather_values(const PanelLines& lines, int64_t offset, int64_t count, int64_t dim, int64_t padded,
                          int32_t* panel) {
    for (int64_t key = 0; key < count; key += QUAD, panel += padded) {
        const int8_t* const* values = lines.of + key;
        int64_t d = 0;
#ifdef AVX512
        for (; d + QUAD * WIDTH <= dim; d += QUAD * WIDTH) {
            __m512i x[QUAD];
            for (int64_t i = 0; i < QUAD; i++) x[i] = _mm512_loadu_si512(values[i] + offset + d);
            const __m512i low = _mm512_unpacklo_epi8(x[0], x[1]), other_low = _mm512_unpacklo_epi8(x[2], x[3]);
            const __m512i high = _mm512_unpackhi_epi8(x[0], x[1]), other_high = _mm512_unpackhi_epi8(x[2], x[3]);
            _mm512_storeu_si512(panel + d, _mm512_unpacklo_epi16(low, other_low));
            _mm512_storeu_si512(panel + d + WIDTH, _mm512_unpackhi_epi16(low, other_low));
            _mm512_storeu_si512(panel + d + 2 * WIDTH, _mm512_unpacklo_epi16(high, other_high));
            _mm512_storeu_si512(panel + d + 3 * WIDTH, _mm512_unpackhi_epi16(high, other_high));
        }
#endif
        for (; d < padded; d++) {
            uint32_t quad = 0;
            for (int64_t i = 0; d < dim && i < QUAD; i++) {
                quad |= static_cast<uint32_t>(static_cast<uint8_t>(values[i][offset + d])) << (8 * i);
            }
            panel[d] = static_cast<int32_t>(quad);
        }
    }
}

// Place of dimension `d` in the sums of a row. Interleaving bytes with AVX-512 moves groups of four dimensions.
INLINE int64_t place_of(int64_t d, int64_t dim) {
#ifdef AVX512
    constexpr int64_t CHUNK = QUAD * WIDTH;
    if (d / CHUNK < dim / CHUNK) {
        const int64_t within = d % CHUNK;
        return d - within + within % WIDTH / QUAD * WIDTH + within / WIDTH * QUAD + within % QUAD;
    }
#endif
    return d;
}

// Attention of queries first..first+count-1 of one batch row with `width` key-value heads from `kv_head` on.
template <class T>
void attend_int8_rows(const Int8Attention& call, int64_t first, int64_t count, int64_t kv_head, int64_t width,
                      Int8Scratch& scratch) {
    const Attention& p = call.attention;
    const int64_t group = p.heads / p.kv_heads, dim = p.head_dim, padded = (dim + WIDTH - 1) / WIDTH * WIDTH;
    const int64_t of_head = count * group, rows = width * of_head;
    const int64_t* table = p.tables + p.rows[first] * p.table_width;
    const int32_t *starts = p.starts + first, *ends = p.ends + first;
    const int64_t end = ends[count - 1], begin = starts[0] / INT8_PANEL_KEYS * INT8_PANEL_KEYS;
    const int64_t pitch = (end - begin + INT8_PANEL_KEYS - 1) / INT8_PANEL_KEYS * INT8_PANEL_KEYS + WIDTH;
    const int64_t words = std::max(padded, INT8_PANEL_KEYS);
    const auto view = [&](const void* tokens, int64_t stride) {
        return KvView<int8_t>{static_cast<const int8_t*>(tokens) + kv_head * dim, stride, p.block_size, table};
    };
    const auto keys = view(p.keys, p.key_stride), values = view(p.values, p.value_stride);
    int32_t* factors = scratch.factors.of(rows * words);
    int32_t* panel = scratch.panel.of(std::max((dim + QUAD - 1) / QUAD * INT8_PANEL_KEYS, INT8_PANEL_KEYS / QUAD * padded));
    float* scores = scratch.scores.of(rows * pitch);
    float* sums = scratch.sums.of(rows * padded);
    float *scales = scratch.scales.of(2 * rows), *shares = scales + rows;
    alignas(64) float of_panel[INT8_PANEL_KEYS];
    // Calls body(row, query, query head) for each row of a key-value head.
    const auto each_row = [&](int64_t head, const auto& body) {
        for (int64_t query = 0, row = head * of_head; query < count; query++) {
            for (int64_t i = 0; i < group; i++, row++) body(row, query, (kv_head + head) * group + i);
        }
    };
    // Calls body(first key, end, lines, key-value head) for each panel of keys or values.
    const auto each_panel = [&](const KvView<int8_t>& side, const auto& body) {
        for (int64_t from = begin; from < end; from += INT8_PANEL_KEYS) {
            const int64_t to = std::min(from + INT8_PANEL_KEYS, end);
            const PanelLines lines(side, from, to);
            for (int64_t head = 0; head < width; head++) {
                fetch_panel(side, to, end, width * dim, head, width);
                body(from, to, lines, head);
            }
        }
    };

    for (int64_t head = 0; head < width; head++) {
        each_row(head, [&](int64_t row, int64_t query, int64_t query_head) {
            // The sums of the row are not needed yet; their memory holds the query.
            float* numbers = sums + row * padded;
            const T* of_query = static_cast<const T*>(p.query) + (first + query) * p.query_stride + query_head * dim;
            for (int64_t d = 0; d < dim; d++) numbers[d] = widen(of_query[d]);
            std::fill(numbers + dim, numbers + padded, 0.0f);
            scales[row] = round_factors<MAX_QUERY>(
                padded / WIDTH, [&](int64_t v) { return load(numbers + v * WIDTH); }, factors + row * words);
            scales[row] *= static_cast<float>(p.scale);
        });
    }
    each_panel(keys, [&](int64_t from, int64_t to, const PanelLines& lines, int64_t head) {
        gather_keys(lines, head * dim, to - from, dim, panel);
        read_scales(call.key_scales, p, table, kv_head + head, from, to, of_panel);
        float* of_head_scores = scores + head * of_head * pitch + from - begin;
        multiply_panel(factors + head * of_head * words, words, of_head, panel, INT8_PANEL_KEYS,
                       (to - from + WIDTH - 1) / WIDTH, (dim + QUAD - 1) / QUAD,
                       [&](int64_t row, int64_t v, Integers products) {
                           store(of_head_scores + row * pitch + v * WIDTH,
                                 __builtin_convertvector(products, Floats) * load(of_panel + v * WIDTH));
                       });
    });
    for (int64_t head = 0; head < width; head++) {
        each_row(head, [&](int64_t row, int64_t query, int64_t query_head) {
            float* visible = scores + row * pitch + starts[query] - begin;
            const int64_t seen = ends[query] - starts[query];
            const float* bias = bias_from(p, query_head, first + query);
            const auto cap = static_cast<float>(p.cap);
            const float top = scale_scores(visible, seen, scales[row], bias, cap);
            const float scale = only_scaled(bias, cap) ? scales[row] : 1.0f;
            shares[row] = softmax(visible, seen, top, scale, visible);
            if (p.sinks != nullptr) shares[row] = factor_with_sink(shares[row], top * scale, p.sinks[query_head]);
        });
    }
    std::fill(sums, sums + rows * padded, 0.0f);
    each_panel(values, [&](int64_t from, int64_t to, const PanelLines& lines, int64_t head) {
        gather_values(lines, head * dim, to - from, dim, padded, panel);
        read_scales(call.value_scales, p, table, kv_head + head, from, to, of_panel);
        each_row(head, [&](int64_t row, int64_t query, int64_t) {
            const float* weights = scores + row * pitch + from - begin;
            const auto weight = [&](int64_t v) {
                const Integers key = lane_numbers() + static_cast<int32_t>(from + v * WIDTH);
                const Floats product = load(weights + v * WIDTH) * load(of_panel + v * WIDTH);
                return ((key >= starts[query]) & (key < ends[query])) ? product : Floats{};
            };
            scales[row] = round_factors<MAX_WEIGHT>((to - from + WIDTH - 1) / WIDTH, weight, factors + row * words);
        });
        multiply_panel(factors + head * of_head * words, words, of_head, panel, padded, padded / WIDTH,
                       (to - from + QUAD - 1) / QUAD, [&](int64_t row, int64_t v, Integers products) {
                           row += head * of_head;
                           float* sum = sums + row * padded + v * WIDTH;
                           store(sum, load(sum) + __builtin_convertvector(products, Floats) * scales[row]);
                       });
    });
    for (int64_t head = 0; head < width; head++) {
        each_row(head, [&](int64_t row, int64_t query, int64_t query_head) {
            T* out = static_cast<T*>(p.out) + ((first + query) * p.heads + query_head) * dim;
            alignas(64) float ordered[WIDTH];
            for (int64_t d = 0; d < padded; d += WIDTH) {
                for (int64_t i = 0; i < WIDTH; i += QUAD) {
                    std::memcpy(ordered + i, sums + row * padded + place_of(d + i, dim), QUAD * sizeof(float));
                }
                for (int64_t i = 0; i < std::min(WIDTH, dim - d); i++) narrow(ordered[i] * shares[row], out[d + i]);
            }
        });
    }
}

template <class T> void attend_int8_items(const Int8Attention& call, int64_t begin, int64_t end) {
    static thread_local Int8Scratch scratch;
    const Attention& p = call.attention;
    const int64_t group = p.heads / p.kv_heads;
    for (int64_t item = begin; item < end;) {
        const int64_t kv_head = item % p.kv_heads;
        const int32_t* tile = p.tiles + item / p.kv_heads * 3;
        const int64_t first = tile[0], count = tile[1];
        // The number of rows whose scores fit in half of a usual second-level cache. Heads are adjacent in memory, so
        // that few queries process all heads of this range together.
        const int64_t most = block_rows(p.ends[first + count - 1] - p.starts[first], false);
        const int64_t heads = std::min(p.kv_heads - kv_head, end - item);
        const int64_t width = std::max<int64_t>(1, std::min(heads, most / (count * group)));
        for_tiles(0, count, std::max<int64_t>(1, most / group), [&](int64_t query, int64_t queries, int64_t, int64_t) {
            attend_int8_rows<T>(call, first + query, queries, kv_head, width, scratch);
        });
        item += width;
    }
}

void attend_int8(DType dtype, const Int8Attention& call, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? attend_int8_items<float>(call, begin, end) : attend_int8_items<bfloat16>(call, begin, end);
}
