// The interface between Python and the compiled kernels: the operations, their parameters and the codes of both.
//
// Python reads the enumerations, the structs and the list of operations from this file (`header.py`), so that each has
// one definition. `setup.py` compiles a hash of this file into the library, and a library with another hash is refused.
// To keep the Python reader simple, every field of a struct takes 8 bytes: a pointer, an int64_t, a double, or a struct
// of such fields.
//
// Plain C++17 and OpenMP, no torch: building needs nothing but a compiler.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#define ALWAYS_INLINE __attribute__((always_inline))
#define INLINE inline ALWAYS_INLINE

enum DType : int32_t { FLOAT32 = 0, BFLOAT16 = 1 };

enum Activation : int32_t { NONE = 0, RELU = 1, GELU = 2, GELU_TANH = 3, GELU_QUICK = 4, SILU = 5, TANH = 6, RELU_SQUARED = 7, SIGMOID = 8 };

// How a router computes the score of an expert, see experts.h.
enum RouterScore : int32_t { SOFTMAX_SCORE = 0, SIGMOID_SCORE = 1, SPARSE_MIXER_SCORE = 2 };

// How the scales and minimums of a group-wise quantized weight are stored, see group_layout.h.
enum ScaleStorage : int32_t { HALF = 0, HALF_MINIMUM = 1, HALF_ZERO = 2, SINGLE = 3, SINGLE_MINIMUM = 4, UNIT = 5, UNIT_MINIMUM = 6 };

struct bfloat16 {
    uint16_t bits;
};

// Largest number of rows of a tile of a product by vector instructions on this processor, see tiles.h. Defined in exports.cpp.
extern const int64_t max_tile_rows;

// Panels that at most this many tiles share are prefetched into the second-level cache only; 0: none. See `Prefetch` in
// tiles.h. Defined in exports.cpp.
extern const int64_t max_second_level_tiles;

// Whether tiles of few rows prefetch their weights into the first-level cache only. See `Prefetch` in tiles.h. Defined in
// exports.cpp.
extern const bool few_rows_bypass;

// Largest panel, in bytes, that is prefetched into the first-level cache only. If it is not 0, keys and values are
// prefetched in the same way. See `Prefetch` in tiles.h. Defined in exports.cpp.
extern const int64_t max_first_level_bytes;

// Output channels that are multiplied together, see tiles.h.
constexpr int64_t PANEL = 32;

// Numbers of a channel side by side in int8 panels.
constexpr int64_t QUAD = 4;

// Smallest number of activations that share a scale in products with group-wise quantized weights.
constexpr int64_t MIN_ROUNDED = 32;

// --- Parameters of the operations. Strides count numbers, not bytes, unless the comment says otherwise.

// RMS norm and layer norm of each part of each row, see norms.h.
struct Norm {
    const void* x;       // [rows, parts, width], rows `stride` numbers apart
    int64_t stride;
    const void* weight;  // [width]
    const void* bias;    // [width], or null; layer norm only
    void* out;           // [rows, parts, width], contiguous
    int64_t rows, parts, width;
    double eps;
};

// Rotary position embedding, see rotary.h.
struct Rotation {
    const void* x;             // [tokens, heads, head_dim], tokens `stride` numbers apart
    int64_t stride;
    const float* cos;          // [positions, half]
    const float* sin;          // [positions, half]
    const int64_t* positions;  // [tokens]: row of `cos` and `sin`; null: token i uses row i
    void* out;                 // [tokens, heads, head_dim], contiguous
    int64_t tokens, heads, head_dim;
    int64_t half;              // half of the rotated dimensions
    int64_t is_interleaved;    // pairs are (0, 1), (2, 3)..., not (0, half), (1, half + 1)...
};

// New keys and values, copied into their cache slots. `width` and strides are bytes.
struct SlotWrite {
    const char* key;       // [tokens, width], tokens `key_stride` bytes apart
    int64_t key_stride;
    const char* value;     // [tokens, width], tokens `value_stride` bytes apart
    int64_t value_stride;
    char* key_cache;       // [slots, width]
    char* value_cache;     // [slots, width]
    const int64_t* slots;  // [tokens]
    int64_t tokens, width;
};

// New keys and values, rounded to int8 in their cache slots, see int8_slots.h.
struct Int8SlotWrite {
    const void* key;         // [tokens, kv_heads, head_dim], tokens `key_stride` numbers apart
    int64_t key_stride;
    const void* value;       // like key, tokens `value_stride` numbers apart
    int64_t value_stride;
    int8_t* key_cache;       // [slots, kv_heads, head_dim]
    int8_t* value_cache;     // like key_cache
    bfloat16* key_scales;    // [blocks, kv_heads, block_size]
    bfloat16* value_scales;  // like key_scales
    const int64_t* slots;    // [tokens]
    int64_t tokens, kv_heads, head_dim, block_size;
};

// Rows of a tensor, gathered by index. `width` and `stride` are bytes.
struct RowGather {
    const char* x;         // rows `stride` bytes apart
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

// out = x * factor, both contiguous.
struct Scaling {
    const void* x;
    void* out;
    int64_t rows, width;
    double factor;
};

// out = x * factor of the row, in float32.
struct RowScaling {
    const void* x;         // [rows, width], rows `stride` numbers apart
    int64_t stride;
    const float* factors;  // [rows]
    void* out;             // [rows, width], contiguous
    int64_t rows, width;
};

// The activation xIELU, all contiguous, see elementwise.h.
struct Xielu {
    const void* x;
    void* out;
    int64_t rows, width;
    double alpha_p, alpha_n, beta, eps;
};

// out = activation(x * scale), all contiguous, see elementwise.h.
struct ScaledActivation {
    const void* x;
    void* out;
    int64_t rows, width;
    double scale;
    int64_t activation;  // an Activation
};

// out = cap * tanh(x / cap), all contiguous, see elementwise.h.
struct SoftCap {
    const float* x;
    float* out;  // may be x
    int64_t rows, width;
    double cap;
};

// One table of a RowSum and the rows that it contributes.
struct TableLookup {
    const int64_t* index;  // [rows], or null: every row uses row 0 of the table
    const void* table;     // [table_rows, width]
    int64_t table_rows;
};

// Sums of rows of up to three tables, see tables.h.
struct RowSum {
    TableLookup lookups[3];
    int64_t count;     // tables in use
    const void* onto;  // [rows, width]: initial values of the sums, or null
    double scale;      // factor of the first table's rows, where `onto` is null
    void* out;         // [rows, width], contiguous
    int64_t rows, width;
};

// Means of spans of rows, see tables.h.
struct SpanMean {
    const void* x;         // [rows, width], contiguous
    const int64_t* spans;  // [count, 2]: first row and end
    float* out;            // [count, width]
    int64_t rows, count, width;
};

// Attention, see attention.h. Keys that lie in one ragged tensor are a cache of one block.
struct Attention {
    const void* query;       // [queries, heads, head_dim], queries `query_stride` numbers apart
    int64_t query_stride;
    const void* keys;        // [blocks, block_size, kv_heads, head_dim], tokens `key_stride` numbers apart
    int64_t key_stride;
    const void* values;      // like keys, tokens `value_stride` numbers apart
    int64_t value_stride;
    const int64_t* tables;   // [rows, table_width]: blocks of each row
    int64_t table_width, block_size;
    const int32_t* rows;     // [queries]: row of each query
    const int32_t* starts;   // [queries]: first visible key
    const int32_t* ends;     // [queries]: end of the visible keys
    const int32_t* origins;  // [queries]: key whose bias has index `bias_zero` in the row of each head
    const int32_t* tiles;    // [tiles, 3]: first query, number of queries, first key of their row. The queries of a tile
                             // belong to one row; their starts and ends never decrease
    const float* bias;       // [heads, bias_stride], or null
    int64_t bias_stride, bias_zero;
    void* out;               // [queries, heads, head_dim], contiguous
    int64_t num_tiles, heads, kv_heads, head_dim;
    double scale;
    double cap;              // scores become cap * tanh(score / cap); 0 for no cap
    const float* sinks;      // [heads]: score per head that takes part in the softmax and has no value; or null
};

// Attention over an int8 cache, see attention_int8.h. Keys and values are int8, the query and the result have the dtype
// of the operation.
struct Int8Attention {
    Attention attention;
    const bfloat16* key_scales;    // [blocks, kv_heads, block_size]
    const bfloat16* value_scales;  // like key_scales
};

// Activations, rounded to int8 with one scale per row, see int8_linear.h.
struct RowQuantization {
    const void* x;   // [rows, width], rows `stride` numbers apart
    int64_t stride;
    uint8_t* out;    // [rows, padded]: rounded values plus 128
    float* scales;   // [rows]
    int64_t rows, width, padded;
};

// The steps between the sums of a product and the stored result, see epilogue.h.
struct Epilogue {
    const float* bias;        // [columns], or null
    const void* multiplier;   // [rows, columns], rows `multiplier_stride` numbers apart, or null; may be `out`
    int64_t multiplier_stride;
    const void* residual;     // [rows, columns], rows `residual_stride` numbers apart, or null; may be `out`
    int64_t residual_stride;
    void* out;                // [rows, columns], rows `out_stride` numbers apart
    int64_t out_stride, columns;
    int64_t activation;       // an Activation
};

// Product of rows with a float weight, see float_linear.h.
struct FloatLinear {
    const void* x;       // [rows, width], rows `stride` numbers apart
    int64_t stride, rows, width;
    int64_t row_bytes;   // of `width` numbers
    const void* weight;  // panels one after another, or [columns, width]
    Epilogue epilogue;
    int64_t is_packed;   // whether the weight is in panels
    int64_t out_dtype;   // DType of the result, the multiplier and the residual: that of x, or float32
};

// Product of int8 rows with a packed int8 weight, see int8_linear.h.
struct Int8Linear {
    const uint8_t* x;            // [rows, padded]: rounded values plus 128
    const float* row_scales;     // [rows]
    int64_t rows, padded;
    const int8_t* weight;        // [panels][padded / 4][2][16][4]
    const float* weight_scales;  // [columns]
    const int32_t* offsets;      // [columns]: 128 times the sum of the channel's weights
    Epilogue epilogue;
};

// Activations, rounded to int8 in blocks with a scale each, see group_linear.h.
struct BlockQuantization {
    const void* x;      // [rows, width], rows `stride` numbers apart
    int64_t stride;
    uint8_t* out;       // [rows, row_bytes]: `padded` int8 values, then a `RoundedBlock` per block
    int64_t row_bytes, rows, width, padded;
    int64_t rounded;    // numbers of a block: 32, 64 or 128
};

// A packed weight whose channels have a scale for each group of inputs, see group_layout.h.
struct GroupWeight {
    const uint8_t* weight;  // [panels][padded / block][header_bytes, then block * 4 * bits bytes of codes]
    int64_t bits;           // of a stored code: 4, 6 or 8
    int64_t group;          // inputs that share a scale
    int64_t block;          // inputs of a header: one or more groups
    int64_t header_bytes;
    int64_t scale_storage;  // a ScaleStorage
    int64_t padded;         // inputs, padded to whole blocks
    int64_t rounded;        // activations that share a scale
    int64_t columns;        // output channels
    const int8_t* table;    // [16]: values of codes of 4 bits; null: the codes are integers
};

// Product of rows with a group-wise quantized weight, see group_linear.h.
struct GroupLinear {
    const uint8_t* x;  // [rows, row_bytes], see BlockQuantization
    int64_t row_bytes, rows;
    GroupWeight w;
    Epilogue epilogue;
};

// Rows of a group-wise quantized weight, as numbers of the operation's dtype.
struct GroupRows {
    GroupWeight w;
    int64_t width;
    const int64_t* index;  // [count]
    int64_t count;
    void* out;             // [count, width], contiguous
};

// The experts of each row and their shares, see experts.h.
struct Routing {
    const void* logits;       // [rows, num_experts], rows `stride` numbers apart
    int64_t stride, rows, num_experts;
    int64_t choices;          // experts of a row
    int64_t score;            // a RouterScore
    const float* correction;  // [num_experts], added to the scores for the choice only, or null
    int64_t groups;           // equal groups of experts
    int64_t groups_per_row;   // groups of which experts may be chosen
    int64_t group_members;    // number of best scores whose sum is the rank of a group
    int64_t is_normalized;    // whether the shares of a row are divided by their sum plus `epsilon`
    double epsilon, scale;    // scale: factor of the shares
    double tolerance;         // SPARSE_MIXER_SCORE only
    float* shares;            // [rows, choices]
    int64_t* experts;         // [rows, choices], the best first
};

// The pairs of a row and one of its experts, sorted by expert, see experts.h. Pair `row * choices + choice` is choice
// number `choice` of the row.
struct ExpertGroups {
    const int64_t* experts;  // [rows, choices]
    int64_t rows, choices, num_experts;
    int64_t* order;          // [rows * choices]: pair at each place
    int64_t* places;         // [rows, choices]: place of each pair
    int64_t* tasks;          // [number of tasks, 3]: expert, first place, end. The places of a task have one expert
    int64_t* num_tasks;      // [1]
};

// Which rows are multiplied by the weights of which expert, part of the products of experts.
struct ExpertRows {
    const void* inputs;        // rows `input_stride` numbers apart
    int64_t input_stride;
    const int64_t* order;      // place p reads input row `order[p] / choices`; null: input row p
    int64_t choices;
    const int64_t* tasks;      // see ExpertGroups
    const int64_t* num_tasks;  // [1]
    int64_t is_gated;          // each panel of a gate is followed by the panel of the values that it multiplies
    double limit;              // gates are at most this large, and the values within [-limit, limit]; may be infinite
    double offset;             // added to the values after they are clipped
};

// Products of rows with the weights of their experts, which are one float weight: [experts][panels]. `linear.epilogue`
// describes the result of one expert; row p of the result is that of place p. `linear.rows` counts rows before they are
// multiplied with several experts. The fields x and stride are unused.
struct FloatExperts {
    ExpertRows experts;
    FloatLinear linear;
};

// The products of `FloatExperts` with an int8 weight. The fields x and row_scales are unused.
struct Int8Experts {
    ExpertRows experts;
    int64_t width;  // numbers of an input row
    Int8Linear linear;
};

// The products of `FloatExperts` with a group-wise quantized weight. The field x is unused.
struct GroupExperts {
    ExpertRows experts;
    int64_t width;  // numbers of an input row
    GroupLinear linear;
};

// out = sum of share * x over the choices of a row + sigmoid(shared_gate) * shared + residual, see experts.h.
struct ExpertSum {
    const void* x;            // [rows * choices, width], by place
    const int64_t* places;    // [rows, choices]
    const float* shares;      // [rows, choices]
    const void* shared;       // [rows, width], contiguous, or null
    const void* shared_gate;  // [rows, 1], contiguous, or null for a factor of one
    const void* residual;     // [rows, width], rows `residual_stride` numbers apart, or null
    int64_t residual_stride;
    void* out;                // [rows, width], contiguous
    int64_t rows, choices, width;
};

// Rows of a packed weight, as numbers of the operation's dtype. Serves embeddings that are tied to an output head.
struct WeightRows {
    const void* weight;    // [columns, width] in panels
    const float* scales;   // [columns], or null for a float weight
    int64_t columns, width;
    const int64_t* index;  // [count]
    int64_t count;
    void* out;             // [count, width], contiguous
};

// The largest logits of each row, see logits_top_k.h.
struct LogitsTopK {
    const float* logits;  // [rows, width], rows `stride` numbers apart
    int64_t rows, stride, width;
    int64_t count;        // k
    float* values;        // [rows, count], in falling order
    int64_t* ids;         // [rows, count]
    float* logsumexp;     // [rows]: log of the sum of exp(logit - largest logit), or null
    uint8_t* is_finite;   // [rows]: whether all logits are finite
};

// A random token of each row, see draw.h.
struct Draw {
    const float* logits;        // [rows, width], rows `stride` numbers apart
    int64_t rows, stride, width;
    const float* temperatures;  // [rows], above zero
    const int64_t* top_ks;      // [rows], 0 for no limit
    const double* top_ps;       // [rows], 1 for no limit
    const float* log_min_ps;    // [rows], -inf for no limit
    const double* typical_ps;   // [rows], 1 for no limit
    const double* uniforms;     // [rows], in [0, 1)
    int64_t* tokens;            // [rows]
    float* lowest;              // [rows]: smallest scaled logit that can be drawn
    float* highest;             // [rows]: largest scaled logit that can be drawn, or infinity
};

// One token of each row through a short convolution, then SiLU or a product with `multiplier`, see mixers.h.
struct ConvolutionStep {
    const void* x;           // [rows, width], rows `stride` numbers apart
    const void* gate;        // like x: factor of x, or null
    const void* multiplier;  // like x: factor of the result instead of SiLU, or null
    int64_t stride;
    const float* weights;    // [taps, channels], the most distant token first
    const float* bias;       // [channels], or null
    float* windows;          // [slots, taps - 1, channels]: earlier inputs
    const int64_t* slots;    // [rows]
    void* out;               // [rows, width], rows `out_stride` numbers apart: float32, or with `multiplier` like x
    int64_t out_stride;
    int64_t rows, width;
    int64_t first, channels, taps;  // x has the channels from `first` on
    double scale;            // factor of x
};

// One token of each row through the gated delta rule, see mixers.h.
struct GatedDeltaStep {
    const float* inputs;         // [rows, 2 * key_heads * key_dim + heads * value_dim]: queries, keys, values
    const void* beta;            // [rows, heads], rows `beta_stride` numbers apart
    int64_t beta_stride;
    const void* decay;           // [rows, heads], rows `decay_stride` numbers apart
    int64_t decay_stride;
    const float* decay_bias;     // [heads]
    const float* decay_factors;  // [heads]
    float* memory;               // [slots, heads, key_dim, value_dim]
    const int64_t* slots;        // [rows]
    void* out;                   // [rows, heads, value_dim], contiguous
    int64_t rows, heads, key_heads, key_dim, value_dim;
};

// One token of each row through a selective state space, see mixers.h.
struct StateSpaceStep {
    const float* inputs;          // [rows, heads * head_dim + 2 * groups * state_size]: values, keys, queries
    const void* time_step;        // [rows, heads], rows `stride` numbers apart
    int64_t stride;
    const float* time_step_bias;  // [heads]
    const float* decay_factors;   // [heads]
    const float* skip;            // [heads]
    float* memory;                // [slots, heads, head_dim, state_size]
    const int64_t* slots;         // [rows]
    void* out;                    // [rows, heads, head_dim], contiguous
    int64_t rows, heads, head_dim, groups, state_size;
    double time_scale;            // factor of time_step
};

// RMS norm with a gate, see mixers.h.
struct GatedNorm {
    const void* x;       // [rows, groups, width], contiguous
    const void* gate;    // [rows, groups, width], rows `stride` numbers apart
    int64_t stride;
    const void* weight;  // [width] or [groups, width]; null: no norm
    void* out;           // [rows, groups, width], contiguous
    int64_t rows, groups, width;
    int64_t is_shared;   // all groups have the same weight
    int64_t gate_first;  // the gate is applied before the norm
    double eps;
    double gate_scale;   // factor of the gate before SiLU
};

// Largest dimension of a head of the gated delta rule.
constexpr int64_t MAX_MIXER_DIM = 512;

// --- Layouts that several kernels share.

// A block of rows stays in a core's cache while it is multiplied by one panel after another.
inline int64_t blocks_of(int64_t rows, int64_t bytes_of_row) {
    const int64_t most = std::max<int64_t>(96, (384 << 10) / std::max<int64_t>(1, bytes_of_row));
    return std::max<int64_t>(1, (rows + most - 1) / most);
}

inline int64_t panels_of(int64_t columns) { return (columns + PANEL - 1) / PANEL; }

// Items of an elementwise operation: each is one panel of one row, so that threads also share a single long row.
inline int64_t panels_of_rows(int64_t rows, int64_t width) { return rows * panels_of(width); }

// Items of a product: each is one panel times one block of rows.
inline int64_t panel_items(int64_t rows, int64_t row_bytes, int64_t columns) {
    return blocks_of(rows, row_bytes) * panels_of(columns);
}

// Items of a product of experts: each is one panel, or a gate's panel and the one that it multiplies, times one task.
// This is the largest number that is possible with so many rows, see `multiply_experts`.
inline int64_t max_expert_items(int64_t rows, const ExpertRows& experts, const Epilogue& epilogue) {
    return rows * experts.choices * panels_of(epilogue.columns);
}

// One output channel of a weight in panels, [panels][k / GROUP][PANEL][GROUP], where `width` is padded to whole groups.
template <int64_t GROUP, class T> struct Channel {
    T* first;

    static INLINE Channel of(T* packed, int64_t width, int64_t column) {
        const int64_t groups = (width + GROUP - 1) / GROUP;
        return {packed + (column / PANEL * PANEL * groups + column % PANEL) * GROUP};
    }
    INLINE T& operator[](int64_t k) const { return first[k / GROUP * PANEL * GROUP + k % GROUP]; }
};

// --- The list of operations.

// Work on fewer numbers than this is not worth a second thread.
constexpr int64_t GRAIN = 32768;

// X(name, parameters, number of items, cost of one item). Threads share the items of an operation. The kernel
// `name(dtype, p, begin, end)` computes items begin..end-1 on one thread. The cost is the count of numbers that an item
// reads, times 4 to 8 where each number takes an exponential or other long computation.
#define TRIPTYCH_OPERATIONS(X)                                                                             \
    X(rms_norm, Norm, p.rows, p.parts * p.width)                                                           \
    X(rms_norm_from_one, Norm, p.rows, p.parts * p.width)                                                  \
    X(layer_norm, Norm, p.rows, p.parts * p.width)                                                         \
    X(rotate, Rotation, p.tokens, p.heads * p.head_dim)                                                    \
    X(write_slots, SlotWrite, p.tokens, p.width)                                                           \
    X(write_int8_slots, Int8SlotWrite, p.tokens, 2 * p.kv_heads * p.head_dim)                              \
    X(take_rows, RowGather, p.rows, p.width)                                                               \
    X(add, Sum, p.rows, p.width)                                                                           \
    X(scale, Scaling, p.rows, p.width)                                                                     \
    X(scale_by_row, RowScaling, p.rows, p.width)                                                           \
    X(xielu, Xielu, panels_of_rows(p.rows, p.width), 4 * PANEL)                                            \
    X(scaled_activation, ScaledActivation, panels_of_rows(p.rows, p.width), 4 * PANEL)                     \
    X(soft_cap, SoftCap, panels_of_rows(p.rows, p.width), 4 * PANEL)                                       \
    X(sum_of_rows, RowSum, p.rows, p.count * p.width)                                                      \
    X(means_of_spans, SpanMean, p.count, p.rows / std::max<int64_t>(1, p.count) * p.width)                 \
    X(attend, Attention, p.num_tiles * p.kv_heads, GRAIN)                                                  \
    X(attend_int8, Int8Attention, p.attention.num_tiles * p.attention.kv_heads, GRAIN)                     \
    X(float_linear, FloatLinear, panel_items(p.rows, p.row_bytes, p.epilogue.columns), p.width * PANEL)    \
    X(quantize_rows, RowQuantization, p.rows, p.width)                                                     \
    X(int8_linear, Int8Linear, panel_items(p.rows, p.padded, p.epilogue.columns), p.padded * PANEL)        \
    X(quantize_blocks, BlockQuantization, p.rows, p.width)                                                 \
    X(group_linear, GroupLinear, panel_items(p.rows, p.row_bytes, p.w.columns), p.w.padded * PANEL)        \
    X(unpack_group_rows, GroupRows, p.count, 8 * p.width)                                                  \
    X(route, Routing, p.rows, 8 * p.num_experts)                                                           \
    X(group_by_expert, ExpertGroups, 1, p.rows * p.choices)                                                \
    X(float_experts, FloatExperts, max_expert_items(p.linear.rows, p.experts, p.linear.epilogue), p.linear.width * PANEL) \
    X(int8_experts, Int8Experts, max_expert_items(p.linear.rows, p.experts, p.linear.epilogue), p.linear.padded * PANEL) \
    X(group_experts, GroupExperts, max_expert_items(p.linear.rows, p.experts, p.linear.epilogue), p.linear.w.padded * PANEL) \
    X(sum_of_experts, ExpertSum, p.rows, p.choices * p.width)                                              \
    X(unpack_rows, WeightRows, p.count, 8 * p.width)                                                       \
    X(unpack_int8_rows, WeightRows, p.count, p.width)                                                      \
    X(logits_top_k, LogitsTopK, p.rows, p.width)                                                           \
    X(draw, Draw, p.rows, p.width)                                                                         \
    X(convolution_step, ConvolutionStep, p.rows, 4 * p.taps * p.width)                                     \
    X(gated_delta_step, GatedDeltaStep, p.rows * p.heads, 2 * p.key_dim * p.value_dim)                     \
    X(state_space_step, StateSpaceStep, p.rows * p.heads, 2 * p.head_dim * p.state_size)                   \
    X(gated_norm, GatedNorm, p.rows * p.groups, 4 * p.width)

enum Operation : int64_t {
#define X(name, ...) OPERATION_##name,
    TRIPTYCH_OPERATIONS(X)
#undef X
};

// The kernels of one instruction set: all operations in the order of the list, then the kernels that only loading
// needs. Each isa compiles the same sources into such a table; `exports.cpp` chooses the best one that the processor
// runs.
struct Kernels {
#define X(name, Parameters, ...) void (*name)(DType, const Parameters&, int64_t begin, int64_t end);
    TRIPTYCH_OPERATIONS(X)
#undef X
    void (*pack_panels)(DType, const void* weight, int64_t columns, int64_t width, void* packed, int64_t begin,
                        int64_t end);
    void (*search_two_levels)(const float* x, int64_t count, float* scales, float* minimums);
    void (*search_six_bits)(const float* x, int64_t count, float* scales);
    void (*round_groups)(const float* x, int64_t count, const float* scales, const float* minimums, float least,
                         float most, int8_t* codes);
};

// The kernels that only loading needs.
#define LOADING_KERNELS(X) X(pack_panels) X(search_two_levels) X(search_six_bits) X(round_groups)

extern const Kernels kernels_baseline;
#ifdef __x86_64__
extern const Kernels kernels_x86_64_v3, kernels_x86_64_v4, kernels_x86_64_v4_vnni, kernels_x86_64_v4_bf16,
    kernels_x86_64_v4_amx;
#endif
