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
#include <vector>

#define INLINE inline __attribute__((always_inline))

enum DType : int32_t { FLOAT32 = 0, BFLOAT16 = 1 };

struct bfloat16 {
    uint16_t bits;
};

struct PagedAttention {
    const void* query;         // [queries, heads, head_dim], queries `query_stride` numbers apart
    int64_t query_stride;
    const void* key_cache;     // [blocks, block_size, kv_heads, head_dim]
    const void* value_cache;
    const int64_t* tables;     // [rows, table_width]: blocks of each row
    int64_t table_width;
    const int32_t* rows;       // [queries]: whose blocks
    const int32_t* starts;     // [queries]: first key that the query sees
    const int32_t* ends;       // [queries]: end of the keys that it sees
    const int32_t* positions;  // [queries]: where it stands itself
    const float* bias;         // [heads, 2 * length - 1] by distance of key and query, or null
    int64_t bias_length;       // `length`
    void* out;                 // [queries, heads, head_dim], contiguous
    int64_t queries, heads, kv_heads, head_dim, block_size;
    float scale, cap;          // cap: 0 for none
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

// Logits and what stands out in each row of them, see survey.h.
struct Survey {
    const float* logits;  // [rows, width], rows `stride` numbers apart
    int64_t stride, width, count;
    float* values;        // [rows, count]: the largest, falling
    int64_t* ids;         // [rows, count]: where they stand
    float* log_sums;      // [rows]: log of the sum of exp(logit - the largest), or null
    uint8_t* finite;      // [rows]: whether all logits are finite
};

// Logits and how to choose a token of each row at random, see draw.h.
struct Draw {
    const float* logits;  // [rows, width], rows `stride` numbers apart
    int64_t stride, width;
    const float* temperatures;  // [rows], above zero
    const int64_t* top_ks;      // [rows], 0 for no limit
    const double* top_ps;       // [rows], 1 for no limit
    const float* log_min_ps;    // [rows], -inf for no limit
    const double* uniforms;     // [rows], in [0, 1)
    int64_t* tokens;            // [rows]
    float* lowest;              // [rows]: the smallest scaled logit that may be drawn
};

// Each function works on items begin..end-1.
struct Kernels {
    void (*rms_norm)(DType, const void* x, int64_t stride, const void* weight, void* out, int64_t width, float eps,
                     int64_t begin, int64_t end);
    void (*rotate)(DType, const void* x, int64_t stride, const float* cos, const float* sin, void* out, int64_t heads,
                   int64_t head_dim, int64_t half, bool interleaved, int64_t begin, int64_t end);
    void (*attend)(DType, const PagedAttention&, int64_t heads_of_unit, int64_t begin, int64_t end);
    void (*quantise)(DType, const void* x, int64_t stride, uint8_t* out, float* scales, int64_t width, int64_t padded,
                     int64_t begin, int64_t end);
    void (*multiply_panels)(DType, const Int8Linear&, int64_t begin, int64_t end);
    void (*survey)(const Survey&, int64_t begin, int64_t end);
    void (*draw)(const Draw&, int64_t begin, int64_t end);
};

extern const Kernels kernels_baseline;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_GENERATIONS
extern const Kernels kernels_v3, kernels_v4, kernels_v4_vnni;
#endif
