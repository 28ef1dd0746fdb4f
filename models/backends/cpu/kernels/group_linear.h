// Linear with group-wise quantized weights (group_layout.h). Activations are rounded to int8 in blocks of 32, 64 or
// 128 with a scale each (rounded_blocks.h). The sum of a step (row_steps.h) is exact in int32. It is then scaled and
// added up in float32 in the order of the inputs, so a row gives the same bits in every batch.
#pragma once

#include "amx.h"
#include "byte_products.h"
#include "epilogue.h"
#include "group_layout.h"
#include "numbers.h"
#include "rounded_blocks.h"
#include "row_steps.h"
#include "tiles.h"
#include "vectors.h"

// Rows of a tile of vector instructions. Each has sums of int32 and of float32, so fewer rows fill the registers than
// in other products.
constexpr int GROUP_TILE_ROWS = TILE_ROWS * 2 / 3;

// Tiles of few rows prefetch their own panel, other tiles the next one (see also `Prefetch`).
template <int ROWS> constexpr bool IS_FEW = ROWS < GROUP_TILE_ROWS / 2;

// Products of ROWS rows and one panel by vector instructions: `multiply`.
//
// Codes: how codes are stored. STEP: inputs of a step (row_steps.h): 16, or the activations that share a scale.
// LOCALITY: argument of __builtin_prefetch: 3 for all caches, 2 for the second-level cache only, 0 to bypass it.
template <class Codes, int STEP, int ROWS, int LOCALITY> class GroupTile {
public:
    // tile: index of this tile among the `tiles` tiles that share the panel. sums: [ROWS][PANEL], float32.
    static void multiply(const RoundedRows& rows, const GroupWeight& w, const uint8_t* panel, int64_t tile,
                         int64_t tiles, float* sums) {
        // Distance in bytes at which a tile of few rows prefetches.
        constexpr int64_t DISTANCE_BYTES = 4096;
        const Codes reader(w);
        const bool minimums = has_minimums(w);
        const int64_t next_panel = panel_bytes(w), blocks = w.padded / w.block, groups = w.block / w.group;
        const int64_t header_bytes = w.header_bytes, steps = w.group / STEP;
        BlockScales scales;
        for (int64_t first = 0; first < PANEL / 2; first += WIDTH * PIECES) {
            const auto column_of = [&](int v) ALWAYS_INLINE { return first + v / 2 * WIDTH + v % 2 * 16; };
            Sums<Floats> total = {};
            RowCursor<ROWS, uint8_t> inputs(rows.x, rows.row_bytes);
            RowCursor<ROWS, RowStep> row_steps(rows.steps, rows.steps_per_row);
            const uint8_t* at = panel;
            // The tiles of a panel prefetch the blocks of the next panel in turns. With distance 0 a prefetch does
            // nothing.
            int64_t turn = 0;
            for (int64_t block = 0; block < blocks; block++) {
                const int64_t ahead = IS_FEW<ROWS> ? DISTANCE_BYTES : turn == tile ? next_panel : 0;
                turn = turn + 1 == tiles ? 0 : turn + 1;
                for (int64_t line = 0; line < header_bytes; line += 64) {
                    __builtin_prefetch(at + line + ahead, 0, LOCALITY);
                }
                read_scales(w, at, scales);
                at += header_bytes;
                for (int64_t group = 0; group < groups; group++) {
                    Floats scale[VECTORS];
#pragma GCC unroll 4
                    for (int v = 0; v < VECTORS; v++) {
                        const float factor = v % 2 == 0 ? 1.0f : 1.0f / Codes::UPPER;
                        scale[v] = load(scales.scales[group] + column_of(v)) * factor;
                    }
                    for (int64_t step = 0; step < steps; step++, row_steps.advance(1)) {
                        Sums<Integers> exact;
                        for_sums([&](int row, int v) ALWAYS_INLINE {
                            exact[row][v] = Integers{} + row_steps.row(row)->starts[v % 2];
                        });
                        for (int part = 0; part < STEP / PART; part++) {
                            add_part(reader, first, ahead, inputs, at, exact);
                        }
                        for_sums([&](int row, int v) ALWAYS_INLINE {
                            Floats sum = __builtin_convertvector(exact[row][v], Floats);
                            if (v % 2 == 1 && Codes::UPPER != 1) {
                                sum -= __builtin_convertvector(exact[row][v - 1], Floats);
                            }
                            total[row][v] += sum * scale[v] * row_steps.row(row)->scale;
                        });
                        if (minimums) {
                            Floats minimum[VECTORS];
#pragma GCC unroll 4
                            for (int v = 0; v < VECTORS; v++) minimum[v] = load(scales.minimums[group] + column_of(v));
                            for_sums([&](int row, int v) ALWAYS_INLINE {
                                total[row][v] -= minimum[v] * row_steps.row(row)->sum;
                            });
                        }
                    }
                }
            }
            for_sums([&](int row, int v) ALWAYS_INLINE { store(sums + row * PANEL + column_of(v), total[row][v]); });
        }
    }

private:
    using Products = CodeProducts<Codes::LARGEST>;

    // Number of inputs that `Codes` reads at once.
    static constexpr int INPUTS = 4 * Codes::QUADS;
    // Pieces of the panel that are multiplied at once. Sums of one or two rows leave registers for two pieces; then
    // cache lines are read in order and, with AVX2, only once. With AVX-512 one piece is the whole panel.
    static constexpr int PIECES = ROWS <= 2 ? std::min<int>(2, PANEL / 2 / WIDTH) : 1;
    // A piece has one vector of lower and one of upper channels.
    static constexpr int VECTORS = 2 * PIECES;
    // Few rows have two chains of dependent products per vector, because one alone would stall.
    static constexpr int CHAINS = ROWS * VECTORS <= 4 ? 2 : 1;
    // Number of inputs whose products are added before `Products::widened`.
    static constexpr int PART = Products::QUADS == 0 ? STEP : std::min(STEP, 4 * CHAINS * Products::QUADS);
    static_assert(STEP % PART == 0 && PART % (CHAINS * INPUTS) == 0);

    template <class Vector> using Sums = Vector[ROWS][VECTORS];

    // Calls body(row, v) for each sum of the tile.
    template <class Body> static INLINE void for_sums(const Body& body) {
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) body(row, v);
        }
    }

    // Adds the products of the next PART inputs to `exact`, and advances `inputs` and `at`, the address of their codes.
    // first: first lower channel. ahead: distance in bytes at which the codes are prefetched.
    static INLINE void add_part(const Codes& reader, int64_t first, int64_t ahead, RowCursor<ROWS, uint8_t>& inputs,
                                const uint8_t*& at, Sums<Integers>& exact) {
        Sums<Integers> chains[CHAINS] = {};
        if constexpr (Products::QUADS == 0) {
            for_sums([&](int row, int v) ALWAYS_INLINE { chains[0][row][v] = exact[row][v]; });
        }
        for (int turns = 0; turns < PART / (CHAINS * INPUTS); turns++) {
#pragma GCC unroll 2
            for (int chain = 0; chain < CHAINS; chain++) {
                for (int line = 0; line < Codes::LINES; line++) __builtin_prefetch(at + 64 * line + ahead, 0, LOCALITY);
#pragma GCC unroll 2
                for (int piece = 0; piece < PIECES; piece++) {
                    const auto units = reader.read(at, 4 * (first + piece * WIDTH));
#pragma GCC unroll 2
                    for (int quad = 0; quad < Codes::QUADS; quad++) {
#pragma GCC unroll 16
                        for (int row = 0; row < ROWS; row++) {
                            int32_t numbers;
                            std::memcpy(&numbers, inputs.row(row) + 4 * quad, sizeof numbers);
#pragma GCC unroll 2
                            for (int half = 0; half < 2; half++) {
                                Integers& sum = chains[chain][row][2 * piece + half];
                                sum = Products::add(sum, units.codes[quad][half], numbers);
                            }
                        }
                    }
                }
                inputs.advance(INPUTS);
                at += 64 * Codes::LINES;
            }
        }
        for_sums([&](int row, int v) ALWAYS_INLINE {
            Integers sum = Products::widened(chains[0][row][v]);
            if constexpr (CHAINS == 2) sum += Products::widened(chains[1][row][v]);
            exact[row][v] = Products::QUADS == 0 ? sum : exact[row][v] + sum;
        });
    }
};

#ifdef AMX
// A step of the matrix unit whose sums are not added up yet. scales, minimums: of the lower and the upper 16 channels.
// exact: [rows][PANEL].
struct alignas(64) AmxStep {
    Floats scales[2], minimums[2];
    int32_t exact[MAX_TILE_ROWS * PANEL];
};

// Scales the exact sums of COUNT consecutive steps, and adds them to `sums` in the order of `GroupTile`.
//
// first_step: index of the first step in its row. sums: [rows][PANEL].
template <class Codes, int COUNT>
INLINE void add_amx_steps(const AmxStep* steps, int64_t first_step, const RoundedRows& x, int64_t rows, bool minimums,
                          float* sums) {
    for (int64_t row = 0; row < rows; row++) {
        const RowStep* of_row = x.steps + row * x.steps_per_row + first_step;
        float* to = sums + row * PANEL;
        __m512 totals[2] = {_mm512_loadu_ps(to), _mm512_loadu_ps(to + WIDTH)};
#pragma GCC unroll 4
        for (int i = 0; i < COUNT; i++) {
            const AmxStep& step = steps[i];
            const __m512 row_scale = _mm512_set1_ps(of_row[i].scale), row_sum = _mm512_set1_ps(of_row[i].sum);
            const Integers lower = load(step.exact + row * PANEL) + of_row[i].starts[0];
            const Integers upper = load(step.exact + row * PANEL + WIDTH) + of_row[i].starts[1];
            const Integers counts[2] = {lower, Codes::UPPER == 1 ? upper : upper - lower};
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) {
                // Rounds like `GroupTile`, where the compiler fuses each last multiplication with the addition.
                const __m512 count = _mm512_cvtepi32_ps((__m512i)counts[v]);
                totals[v] = _mm512_fmadd_ps(count * (__m512)step.scales[v], row_scale, totals[v]);
                if (minimums) totals[v] = _mm512_fnmadd_ps((__m512)step.minimums[v], row_sum, totals[v]);
            }
        }
        _mm512_storeu_ps(to, totals[0]);
        _mm512_storeu_ps(to + WIDTH, totals[1]);
    }
}

// Products of `rows` rows and one panel by the matrix unit, with the same bits as `GroupTile`. Each step multiplies its
// codes exactly; codes of fewer bits than eight are unpacked first. Vector instructions scale and add up the sums of a few
// steps together: the memory of the first ones is then written, and each total is loaded and stored once.
template <class Codes, int STEP, bool HAS_SECOND>
void multiply_amx_groups(MatrixUnit& matrix_unit, const RoundedRows& x, int64_t rows, const GroupWeight& w,
                         const uint8_t* panel, int64_t tile, int64_t tiles, float* sums) {
    // Inputs of one instruction, and steps whose sums are added up together.
    constexpr int64_t INPUTS = std::min<int64_t>(STEP, AMX_LINE_BYTES), TOGETHER = 4;
    const Codes reader(w);
    const bool minimums = has_minimums(w);
    const int64_t first_rows = MatrixUnit::first_rows(rows);
    const int64_t blocks = w.padded / w.block, groups = w.block / w.group, steps = w.group / STEP;
    const auto* first = reinterpret_cast<const char*>(x.x);
    const char* second = first + first_rows * x.row_bytes;
    // [quads of inputs][halves of the panel][channels][4]
    alignas(64) uint8_t codes[STEP / QUAD][2][AMX_LINE_BYTES];
    AmxStep waiting[TOGETHER];
    int64_t num_waiting = 0;
    BlockScales scales;
    const uint8_t* at = panel;
    auto prefetch = Prefetch::of_steps({panel, panel_bytes(w), tile, tiles}, w.padded / STEP);
    std::fill(sums, sums + rows * PANEL, 0.0f);
    matrix_unit.set_shapes(rows, INPUTS / QUAD);
    for (int64_t k = 0, block = 0; block < blocks; block++) {
        read_scales(w, at, scales);
        at += w.header_bytes;
        for (int64_t group = 0; group < groups; group++) {
            const float *scale = scales.scales[group], *minimum = scales.minimums[group];
            for (int64_t i = 0; i < steps; i++, k += STEP) {
                prefetch.fetch_step();
                AmxStep& step = waiting[num_waiting];
                step.scales[0] = load(scale), step.scales[1] = load(scale + WIDTH) * (1.0f / Codes::UPPER);
                if (minimums) step.minimums[0] = load(minimum), step.minimums[1] = load(minimum + WIDTH);
                const auto* lines = reinterpret_cast<const char*>(at);
                if constexpr (Codes::ARE_BYTES) {
                    at += sizeof codes;
                } else {
                    for (int64_t quad = 0; quad < STEP / QUAD; quad += Codes::QUADS, at += 64 * Codes::LINES) {
                        const auto units = reader.read(at, 0);
#pragma GCC unroll 2
                        for (int j = 0; j < Codes::QUADS; j++) {
                            std::memcpy(codes[quad + j], units.codes[j], sizeof codes[0]);
                        }
                    }
                    finish_stores(codes);
                    lines = reinterpret_cast<const char*>(codes);
                }
                clear_amx_sums();
                for (int64_t input = 0; input < STEP; input += INPUTS) {
                    add_amx_step<int8_t, HAS_SECOND>(first + k + input, second + k + input, x.row_bytes,
                                                     {lines + input / QUAD * PANEL_LINE_BYTES});
                }
                amx_sums(step.exact, first_rows).template store<HAS_SECOND>();
                if (++num_waiting == TOGETHER) {
                    add_amx_steps<Codes, TOGETHER>(waiting, k / STEP + 1 - TOGETHER, x, rows, minimums, sums);
                    num_waiting = 0;
                }
            }
        }
    }
    for (int64_t i = 0; i < num_waiting; i++) {
        add_amx_steps<Codes, 1>(waiting + i, w.padded / STEP - num_waiting + i, x, rows, minimums, sums);
    }
}
#endif

// Products of up to group_tile_rows() rows and one panel, see `GroupTile`.
template <class Codes, int STEP>
INLINE void multiply_rows([[maybe_unused]] MatrixUnit& matrix_unit, const RoundedRows& x, int64_t rows,
                          const GroupWeight& w, const uint8_t* panel, int64_t tile, int64_t tiles, float* sums) {
#ifdef AMX
    // Fewer rows are faster with vector instructions: the sums of each step, and codes that are unpacked, pass through
    // memory on their way to and from the matrix unit, for any number of rows. Steps below 64 inputs also fill only a
    // part of a register.
    constexpr int64_t MIN_ROWS = STEP >= 64 ? 9 : Codes::ARE_BYTES ? 13 : 24;
    if (rows > AMX_LINES && rows >= MIN_ROWS) {
        return multiply_amx_groups<Codes, STEP, true>(matrix_unit, x, rows, w, panel, tile, tiles, sums);
    }
    if (rows >= MIN_ROWS) {
        return multiply_amx_groups<Codes, STEP, false>(matrix_unit, x, rows, w, panel, tile, tiles, sums);
    }
#endif
    for_tiles(0, rows, GROUP_TILE_ROWS, [&](int64_t row, int64_t count, int64_t part, int64_t parts) {
        with_constant_rows<GROUP_TILE_ROWS>(count, [&](auto constant) {
            constexpr int ROWS = constant.value;
            const auto multiply = [&](auto locality) ALWAYS_INLINE {
                GroupTile<Codes, STEP, ROWS, locality.value>::multiply(x.from(row), w, panel, tile * parts + part,
                                                                       tiles * parts, sums + row * PANEL);
            };
            if constexpr (IS_FEW<ROWS>) {
                if (few_rows_bypass) {
                    multiply(std::integral_constant<int, 0>{});
                } else {
                    multiply(std::integral_constant<int, 3>{});
                }
            } else if (max_second_level_tiles == 0) {
                multiply(std::integral_constant<int, 3>{});
            } else {
                // `Prefetch` also considers the number of tiles and the size of the panel. Here that would be a branch
                // in the loop over inputs, which costs 7%.
                multiply(std::integral_constant<int, 2>{});
            }
        });
    });
}

INLINE int64_t group_tile_rows() {
#ifdef AMX
    return MAX_TILE_ROWS;
#else
    return GROUP_TILE_ROWS;
#endif
}

// Constants of a weight for `GroupTile`.
template <class CODES, int SIZE> struct GroupConstants {
    using Codes = CODES;
    static constexpr int STEP = SIZE;
};

// Calls body(constants) with the GroupConstants of a weight.
template <class Body> INLINE void with_constant_layout(const GroupWeight& w, const Body& body) {
    if (w.bits == 8) {
        body(GroupConstants<EightBits, 32>{});
    } else if (w.bits == 6) {
        body(GroupConstants<SixBits, 16>{});
    } else if (w.table != nullptr) {
        body(GroupConstants<TableCodes, 32>{});
    } else if (w.group == 16) {
        body(GroupConstants<FourBits<1>, 16>{});
    } else if (w.rounded == 32) {
        body(GroupConstants<FourBits<1>, 32>{});
    } else if (w.rounded == 64) {
        body(GroupConstants<FourBits<MAX_UPPER>, 64>{});
    } else {
        body(GroupConstants<FourBits<MAX_UPPER>, 128>{});
    }
}

template <class T> void multiply_items(const GroupLinear& p, int64_t begin, int64_t end) {
    alignas(64) float sums[MAX_TILE_ROWS * PANEL];
    MatrixUnit matrix_unit;
    const int64_t blocks = blocks_of(p.rows, p.row_bytes);
    RowSteps row_steps;
    RoundedRows block{};
    with_constant_layout(p.w, [&](auto constants) {
        using Constants = decltype(constants);
        for_panels(p.rows, blocks, p.w.columns, begin, end, [&](int64_t first, int64_t last, int64_t panel) {
            if (const uint8_t* x = p.x + first * p.row_bytes; block.x != x) {
                block = row_steps.compute<typename Constants::Codes, Constants::STEP>(x, p.row_bytes, last - first, p.w);
            }
            const uint8_t* weights = p.w.weight + panel * panel_bytes(p.w);
            for_tiles(first, last, group_tile_rows(), [&](int64_t row, int64_t rows, int64_t tile, int64_t tiles) {
                prefetch_epilogue<T>(p.epilogue, row, rows, panel * PANEL);
                multiply_rows<typename Constants::Codes, Constants::STEP>(matrix_unit, block.from(row - first), rows,
                                                                          p.w, weights, tile, tiles, sums);
                apply_epilogue<T>(StoredSums{sums}, p.epilogue, row, rows, panel * PANEL);
            });
        });
    });
}

// Work items are the panels of each block of rows, see `for_panels`.
void group_linear(DType dtype, const GroupLinear& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? multiply_items<float>(p, begin, end) : multiply_items<bfloat16>(p, begin, end);
}

// Products of the rows of one expert with panels of its weight, see `FloatPanels`.
template <class T> class GroupPanels {
public:
    GroupPanels(const GroupLinear& p, int64_t width) : linear_(p), width_(width) {}

    template <class RowOf> void read(int64_t rows, const RowOf& row_of) {
        x_.resize(rows * linear_.row_bytes);
        for (int64_t row = 0; row < rows; row++) {
            const BlockQuantization one{row_of(row), 0, &x_[row * linear_.row_bytes], linear_.row_bytes, 1, width_,
                                        linear_.w.padded, linear_.w.rounded};
            quantize_rows_in_blocks<T>(one, 0, 1);
        }
        with_constant_layout(linear_.w, [&](auto constants) {
            using Constants = decltype(constants);
            rows_ = row_steps_.compute<typename Constants::Codes, Constants::STEP>(x_.data(), linear_.row_bytes, rows,
                                                                             linear_.w);
        });
    }

    static int64_t tile_rows() { return group_tile_rows(); }

    INLINE void multiply(int64_t first, int64_t rows, int64_t panel, int64_t tile, int64_t tiles, float* sums) {
        const uint8_t* weights = linear_.w.weight + panel * panel_bytes(linear_.w);
        with_constant_layout(linear_.w, [&](auto constants) {
            using Constants = decltype(constants);
            multiply_rows<typename Constants::Codes, Constants::STEP>(matrix_unit_, rows_.from(first), rows, linear_.w,
                                                                      weights, tile, tiles, sums);
        });
    }

private:
    GroupLinear linear_;
    int64_t width_;
    std::vector<uint8_t> x_;
    RowSteps row_steps_;
    RoundedRows rows_{};
    MatrixUnit matrix_unit_;
};

template <class T> void unpack_groups(const GroupRows& p, int64_t begin, int64_t end) {
    const GroupWeight& w = p.w;
    BlockScales scales;
    for (int64_t i = begin; i < end; i++) {
        const int64_t channel = p.index[i] % PANEL, half = channel / 16;
        const uint8_t* at = w.weight + p.index[i] / PANEL * panel_bytes(w);
        T* out = static_cast<T*>(p.out) + i * p.width;
        for (int64_t k = 0; k < p.width; k++) {
            const int64_t in_block = k % w.block, group = in_block / w.group, quad = in_block / 4;
            const uint8_t* header = at + k / w.block * block_bytes(w);
            if (in_block == 0) read_scales(w, header, scales);
            const uint8_t* codes = header + w.header_bytes + channel % 16 * 4 + k % 4;
            int32_t code;
            if (w.bits == 4) {
                code = codes[quad * 64] >> 4 * half & 15;
            } else if (w.bits == 6) {
                const uint8_t* pair = codes + quad / 2 * 192;
                code = (pair[quad % 2 * 64] >> 4 * half & 15) | (pair[128] >> (4 * (quad % 2) + 2 * half) & 3) << 4;
            } else {
                code = codes[quad * 128 + 64 * half];
            }
            const float scale = scales.scales[group][channel];
            if (w.table != nullptr) {
                narrow(scale * static_cast<float>(w.table[code]), out[k]);
            } else if (has_minimums(w)) {
                narrow(scale * static_cast<float>(code) - scales.minimums[group][channel], out[k]);
            } else {
                narrow(scale * static_cast<float>(code - (1 << (w.bits - 1))), out[k]);
            }
        }
    }
}

// Dequantises output channels index[begin..end-1] of a packed weight.
void unpack_group_rows(DType dtype, const GroupRows& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? unpack_groups<float>(p, begin, end) : unpack_groups<bfloat16>(p, begin, end);
}
