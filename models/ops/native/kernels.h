// The kernels of one processor generation, and what they are given. Plain C++17 and OpenMP; no torch, so that building
// needs nothing but a compiler.
//
// Every kernel is one function over a range of its work, on one thread. `generation.h` holds them all and is compiled
// once for each generation (`generation_*.cpp`), each time into a table of functions; `exports.cpp` chooses the best
// table that the processor can run and shares the work among threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
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
    const int32_t* tiles;    // [tiles, 2]: first query, and how many after each other, all of one row
    const float* bias;       // [heads, bias_stride], or null
    int64_t bias_stride, bias_zero;
    void* out;               // [queries, heads, head_dim], contiguous
    int64_t num_tiles, heads, kv_heads, head_dim;
    float scale, cap;        // cap: 0 for none
};

// A packed int8 weight and the rows that it multiplies, see int8_linear.h.
struct Int8Linear {
    const uint8_t* rows;         // [rows, padded], 128 higher
    const float* row_scales;     // [rows]
    int64_t num_rows, padded;
    const int8_t* panels;        // [panels][padded / 4][2][16][4]
    const float* weight_scales;  // [columns]
    const int32_t* offsets;      // [columns]: 128 times the sum of each channel's weights
    const float* bias;           // [columns], or null
    int64_t columns;
    void* out;                   // [rows, columns], contiguous
};

// Each function works on items begin..end-1.
struct Kernels {
    void (*rms_norm)(DType, const void* x, int64_t stride, const void* weight, void* out, int64_t width, float eps,
                     int64_t begin, int64_t end);
    void (*rotate)(DType, const void* x, int64_t stride, const float* cos, const float* sin, void* out, int64_t heads,
                   int64_t head_dim, int64_t half, bool interleaved, int64_t begin, int64_t end);
    void (*attend)(DType, const Attention&, int64_t begin, int64_t end);  // num_tiles * kv_heads
    void (*quantise)(DType, const void* x, int64_t stride, uint8_t* out, float* scales, int64_t width, int64_t padded,
                     int64_t begin, int64_t end);
    void (*multiply_panels)(DType, const Int8Linear&, int64_t begin, int64_t end);
};

extern const Kernels kernels_baseline;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_GENERATIONS
extern const Kernels kernels_v3, kernels_v4, kernels_v4_vnni;
#endif
