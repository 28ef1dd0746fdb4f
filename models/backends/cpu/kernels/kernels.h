// The kernels of one processor generation, and what they are given. Plain C++17 and OpenMP; no torch, so that building
// needs nothing but a compiler.
//
// Every kernel is one function over a range of its work, on one thread. `isa.h` holds them all and is compiled
// once for each generation (`isa_*.cpp`), each time into a table of functions; `exports.cpp` chooses the best
// table that the processor can run and shares the work among threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#define INLINE inline __attribute__((always_inline))

enum DType : int32_t { FLOAT32 = 0, BFLOAT16 = 1 };

struct bfloat16 {
    uint16_t bits;
};

struct Attention {
    const void* query;       // [queries, heads, head_dim], queries `query_stride` numbers apart
    int64_t query_stride;
    const void* keys;        // [blocks, block_size, kv_heads, head_dim], tokens `key_stride` numbers apart
    int64_t key_stride;
    const void* values;      // the same, `value_stride`
    int64_t value_stride;
    const int64_t* tables;   // [rows, table_width]: blocks of each row
    int64_t table_width, block_size;
    const int32_t* rows;     // [queries]: whose blocks
    const int32_t* starts;   // [queries]: first key that the query sees
    const int32_t* ends;     // [queries]: end of the keys that it sees
    const int32_t* origins;  // [queries]: the key whose bias is number `bias_zero` of its head's
    const int32_t* tiles;    // [tiles, 3]: first query, how many after each other, all of one row, and its first key;
                             // neither their starts nor their ends fall
    const float* bias;       // [heads, bias_stride], or null
    int64_t bias_stride, bias_zero;
    void* out;               // [queries, heads, head_dim], contiguous
    int64_t num_tiles, heads, kv_heads, head_dim;
    float scale, cap;        // cap: 0 for none
};

// Activations to be rounded to int8, see int8_linear.h.
struct Quantise {
    const void* x;   // [rows, width], rows `stride` numbers apart
    int64_t stride;
    uint8_t* out;    // [rows, padded], 128 higher
    float* scales;   // [rows]
    int64_t rows, width, padded;
};

// Output channels that are multiplied together, see tiles.h.
constexpr int64_t PANEL = 32;

// Numbers of a channel side by side in int8 panels.
constexpr int64_t QUAD = 4;

enum Activation : int32_t { NONE = 0, RELU = 1, GELU = 2, GELU_TANH = 3, GELU_QUICK = 4, SILU = 5, TANH = 6 };

// What follows a product before it is stored, see epilogue.h. Rows are `_stride` numbers apart.
struct Finish {
    const float* bias;     // [columns], or null
    const void* times;     // [rows, columns], or null
    int64_t times_stride;
    const void* residual;  // [rows, columns], or null; may be `out`
    int64_t residual_stride;
    void* out;             // [rows, columns]
    int64_t out_stride, columns;
    int32_t activation;
};

// A weight and the rows that it multiplies, see float_linear.h.
struct FloatLinear {
    const void* x;  // [rows, width], rows `stride` numbers apart
    int64_t stride, rows, width;
    int64_t blocks;  // parts that the rows are cut into
    const void* weight;  // panels one after another, or [columns, width]
    Finish finish;
    int32_t packed;      // whether in panels
    int32_t writes;      // the DType of what is written and of what follows: that of x, or float32
};

// A packed int8 weight and the rows that it multiplies, see int8_linear.h.
struct Int8Linear {
    const uint8_t* x;         // [rows, padded], 128 higher
    const float* row_scales;  // [rows]
    int64_t rows, padded;
    int64_t blocks;               // parts that the rows are cut into
    const int8_t* weight;         // [panels][padded / 4][2][16][4]
    const float* weight_scales;   // [columns]
    const int32_t* offsets;       // [columns]: 128 times the sum of each channel's weights
    Finish finish;
};

// A norm over the numbers of each part of each row, see norms.h.
struct Norm {
    const void* x;       // [rows, parts, width], rows `stride` numbers apart
    int64_t stride;
    const void* weight;  // [width]
    const void* bias;    // [width], or null; a layer norm's only
    void* out;           // [rows, parts, width], contiguous
    int64_t rows, parts, width;
    double eps;
};

// Rotary positions, see rotary.h.
struct Rotation {
    const void* x;     // [tokens, heads, head_dim], tokens `stride` numbers apart
    int64_t stride;
    const float* cos;  // [positions, half]
    const float* sin;
    const int64_t* positions;  // [tokens], or null: every token has a row of its own, in order
    void* out;         // [tokens, heads, head_dim], contiguous
    int64_t tokens, heads, head_dim, half, interleaved;
};

// New keys and values into the rows of their caches that `slots` names. Widths and strides are bytes.
struct SlotWrite {
    const char* key;
    int64_t key_stride;
    const char* value;
    int64_t value_stride;
    char* key_cache;
    char* value_cache;
    const int64_t* slots;  // [tokens]
    int64_t tokens, width;
};

// Some rows, one after the other. Widths and strides are bytes.
struct RowChoice {
    const char* x;
    int64_t stride;
    const int64_t* index;  // [rows]
    char* out;             // [rows, width], contiguous
    int64_t rows, width;
};

// out = x + y, all contiguous.
struct Sum {
    const void* x;
    const void* y;
    void* out;
    int64_t rows, width;
};

// out = x * factor, all contiguous.
struct Scaling {
    const void* x;
    void* out;
    int64_t rows, width;
    double factor;
};

// Which row of a table each row of a sum takes.
struct Lookup {
    const int64_t* index;  // [rows], or null for the first row, always
    const void* table;     // [table_rows, width]
    int64_t table_rows;
};

// Sums of rows of tables, see tables.h.
struct RowSum {
    Lookup parts[3];
    int64_t count;
    const void* onto;  // [rows, width] that the sum begins with, or null
    double scale;      // of the first table's rows where the sum begins with them
    void* out;         // [rows, width], contiguous
    int64_t rows, width;
};

// Means of spans of rows, see tables.h.
struct SpanMean {
    const void* x;         // [rows, width], contiguous
    const int64_t* spans;  // [count, 2]: first row, and the end
    float* out;            // [count, width]
    int64_t rows, count, width;
};

// A block of rows stays in a core's cache while it is multiplied by one panel after another.
inline int64_t blocks_of(int64_t rows, int64_t bytes_of_row) {
    const int64_t most = std::max<int64_t>(96, (384 << 10) / std::max<int64_t>(1, bytes_of_row));
    return std::max<int64_t>(1, (rows + most - 1) / most);
}

inline int64_t panels_of(int64_t columns) { return (columns + PANEL - 1) / PANEL; }

// One output channel of a weight in panels, [panels][k / GROUP][PANEL][GROUP], where `width` is padded to whole groups.
template <int64_t GROUP, class T> struct Channel {
    T* first;

    static INLINE Channel of(T* packed, int64_t width, int64_t column) {
        const int64_t groups = (width + GROUP - 1) / GROUP;
        return {packed + (column / PANEL * PANEL * groups + column % PANEL) * GROUP};
    }
    INLINE T& operator[](int64_t k) const { return first[k / GROUP * PANEL * GROUP + k % GROUP]; }
};

// Logits and what stands out in each row of them, see logits_top_k.h.
struct Survey {
    const float* logits;  // [rows, width], rows `stride` numbers apart
    int64_t rows, stride, width, count;
    float* values;        // [rows, count]: the largest, falling
    int64_t* ids;         // [rows, count]: where they stand
    float* log_sums;      // [rows]: log of the sum of exp(logit - the largest), or null
    uint8_t* finite;      // [rows]: whether all logits are finite
};

// Logits and how to choose a token of each row at random, see draw.h.
struct Draw {
    const float* logits;  // [rows, width], rows `stride` numbers apart
    int64_t rows, stride, width;
    const float* temperatures;  // [rows], above zero
    const int64_t* top_ks;      // [rows], 0 for no limit
    const double* top_ps;       // [rows], 1 for no limit
    const float* log_min_ps;    // [rows], -inf for no limit
    const double* typical_ps;   // [rows], 1 for no limit
    const double* uniforms;     // [rows], in [0, 1)
    int64_t* tokens;            // [rows]
    float* lowest;              // [rows]: the smallest scaled logit that may be drawn
    float* highest;             // [rows]: the largest, or infinity
};

// Each function works on items begin..end-1.
struct Kernels {
    void (*rms_norm)(DType, const Norm&, int64_t begin, int64_t end);
    void (*rms_norm_from_one)(DType, const Norm&, int64_t begin, int64_t end);
    void (*layer_norm)(DType, const Norm&, int64_t begin, int64_t end);
    void (*rotate)(DType, const Rotation&, int64_t begin, int64_t end);
    void (*add)(DType, const Sum&, int64_t begin, int64_t end);
    void (*scale)(DType, const Scaling&, int64_t begin, int64_t end);
    void (*row_sum)(DType, const RowSum&, int64_t begin, int64_t end);
    void (*span_mean)(DType, const SpanMean&, int64_t begin, int64_t end);
    void (*attend)(DType, const Attention&, int64_t begin, int64_t end);  // num_tiles * kv_heads
    void (*quantise)(DType, const Quantise&, int64_t begin, int64_t end);
    void (*int8_linear)(DType, const Int8Linear&, int64_t begin, int64_t end);
    void (*pack_panels)(DType, const void* weight, int64_t columns, int64_t width, void* packed, int64_t begin,
                        int64_t end);
    void (*unpack_channels)(DType, const void* packed, int64_t width, const int64_t* index, void* out, int64_t begin,
                            int64_t end);
    void (*unpack_int8_channels)(DType, const int8_t* packed, const float* scales, int64_t width, const int64_t* index,
                                 void* out, int64_t begin, int64_t end);
    void (*float_linear)(DType, const FloatLinear&, int64_t begin, int64_t end);
    void (*survey)(const Survey&, int64_t begin, int64_t end);
    void (*draw)(const Draw&, int64_t begin, int64_t end);
};

extern const Kernels kernels_baseline;
#ifdef __x86_64__
extern const Kernels kernels_x86_64_v3, kernels_x86_64_v4, kernels_x86_64_v4_vnni, kernels_x86_64_v4_bf16;
#endif
