// Linear with group-wise quantized weights (group_layout.h). Activations are rounded to int8 in blocks of 32, 64 or
// 128 with a scale each. The sums of a group are exact in int32; they are scaled and added up in float32 in the order
// of the inputs, so a row gives the same bits in every batch.

// Scale of a block of activations, and the sums of the first and of the second half of its rounded values.
struct RoundedBlock {
    float scale;
    int16_t sums[2];
};

template <int ROUNDED, class T>
INLINE void quantize_block(const T* x, int64_t count, int8_t* out, RoundedBlock& block) {
    alignas(64) float numbers[ROUNDED] = {};
    for (int64_t i = 0; i < count; i++) numbers[i] = widen(x[i]);
    // The same as in `quantize_row` of int8_linear.h.
    int32_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (int i = 0; i < ROUNDED; i++) {
        largest = std::max(largest, __builtin_bit_cast(int32_t, numbers[i]) & 0x7fffffff);
    }
    if (largest >= 0x7f800000) {
        std::memset(out, 0, ROUNDED);
        block = {__builtin_nanf(""), {0, 0}};
        return;
    }
    const float size = __builtin_bit_cast(float, largest), scale = size > 1e-36f ? size / 127.0f : 1.0f;
    const float inverse = 1.0f / scale;
    int32_t rounded[ROUNDED];
#pragma omp simd
    for (int i = 0; i < ROUNDED; i++) rounded[i] = static_cast<int32_t>(std::nearbyint(numbers[i] * inverse));
#pragma omp simd
    for (int i = 0; i < ROUNDED; i++) out[i] = static_cast<int8_t>(rounded[i]);
    int32_t sums[2] = {};
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < ROUNDED / 2; i++) sums[half] += rounded[half * ROUNDED / 2 + i];
    }
    block = {scale, {static_cast<int16_t>(sums[0]), static_cast<int16_t>(sums[1])}};
}

template <int ROUNDED, class T> void quantize_row_blocks(const BlockQuantization& p, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        const T* x = static_cast<const T*>(p.x) + row * p.stride;
        auto* out = reinterpret_cast<int8_t*>(p.out + row * p.row_bytes);
        auto* blocks = reinterpret_cast<RoundedBlock*>(p.out + row * p.row_bytes + p.padded);
        for (int64_t k = 0; k < p.padded; k += ROUNDED) {
            const int64_t count = std::max<int64_t>(0, std::min<int64_t>(ROUNDED, p.width - k));
            if (count == ROUNDED) {
                quantize_block<ROUNDED>(x + k, ROUNDED, out + k, blocks[k / ROUNDED]);
            } else {
                quantize_block<ROUNDED>(x + k, count, out + k, blocks[k / ROUNDED]);
            }
        }
    }
}

template <class T> void quantize_rows_in_blocks(const BlockQuantization& p, int64_t begin, int64_t end) {
    switch (p.rounded) {
    case 128: return quantize_row_blocks<128, T>(p, begin, end);
    case 64: return quantize_row_blocks<64, T>(p, begin, end);
    default: return quantize_row_blocks<MIN_ROUNDED, T>(p, begin, end);
    }
}

void quantize_blocks(DType dtype, const BlockQuantization& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? quantize_rows_in_blocks<float>(p, begin, end) : quantize_rows_in_blocks<bfloat16>(p, begin, end);
}

// Rows of a tile. Each has sums of int32 and of float32, so that fewer rows fill the registers than in other products.
constexpr int GROUP_TILE_ROWS = TILE_ROWS * 2 / 3;

// Products of ROWS rows and one panel. BITS: bits of a code. STEP: inputs that are summed exactly: 16, or the
// activations that share a scale.
// x: rows of rounded activations, `row_bytes` apart. tile, tiles: number of this tile and the number of tiles that
// share the panel. sums: [ROWS][PANEL], float32.
template <int BITS, int STEP, int ROWS>
void multiply_tile(const uint8_t* x, int64_t row_bytes, const GroupWeight& w, const uint8_t* panel, int64_t tile,
                   int64_t tiles, float* sums) {
    using Layout = Codes<BITS>;
    constexpr int64_t ROUNDED = STEP < MIN_ROUNDED ? MIN_ROUNDED : STEP;
    constexpr bool IS_FEW = ROWS < GROUP_TILE_ROWS / 2;
    // Distance in bytes at which a tile of few rows prefetches its own panel. Other tiles prefetch the next panel.
    constexpr int64_t DISTANCE_BYTES = 4096;
    constexpr int LOCALITY = IS_FEW ? 0 : 3, INPUTS = 4 * Layout::QUADS;
    // Few rows have two chains of dependent products per register of channels, because one alone would stall.
    constexpr int CHAINS = ROWS <= 2 ? 2 : 1;
    const bool minimums = has_minimums(w);
    const int64_t next_panel = panel_bytes(w);
    const auto block_of = [&](int row, int64_t k) ALWAYS_INLINE -> const RoundedBlock& {
        return reinterpret_cast<const RoundedBlock*>(x + row * row_bytes + w.padded)[k / ROUNDED];
    };
    const auto sum_of = [](const RoundedBlock& block, int64_t k) ALWAYS_INLINE -> int32_t {
        return STEP == ROUNDED ? block.sums[0] + block.sums[1] : block.sums[k / STEP % 2];
    };
    BlockScales scales;
    for (int64_t first = 0; first < PANEL / 2; first += LANES) {
        Sums total[ROWS][2] = {};
        const uint8_t* at = panel;
        int64_t turn = 0;
        for (int64_t k = 0; k < w.padded; turn++) {
            const int64_t ahead = IS_FEW ? DISTANCE_BYTES : turn % tiles == tile ? next_panel : 0;
            for (int64_t line = 0; line < w.header_bytes; line += 64) __builtin_prefetch(at + line + ahead, 0, LOCALITY);
            read_scales(w, at, scales);
            at += w.header_bytes;
            for (int64_t group = 0; group < w.block / w.group; group++) {
                const float *scale = &scales.scales[group][first], *minimum = &scales.minimums[group][first];
                const Sums scale_of[2] = {load_sums(scale), load_sums(scale + 16)};
                for (const int64_t end = k + w.group; k < end; k += STEP) {
                    Counts exact[CHAINS][ROWS][2] = {};
                    if (!minimums) {
#pragma GCC unroll 16
                        for (int row = 0; row < ROWS; row++) {
                            exact[0][row][0] = exact[0][row][1] = Counts{} - (sum_of(block_of(row, k), k) << (BITS - 1));
                        }
                    }
                    const auto add = [&](auto& chain, const Units(&codes)[2], int64_t input) ALWAYS_INLINE {
#pragma GCC unroll 16
                        for (int row = 0; row < ROWS; row++) {
                            int32_t numbers;
                            std::memcpy(&numbers, x + row * row_bytes + input, sizeof numbers);
                            chain[row][0] = add_products<BITS>(chain[row][0], codes[0], numbers);
                            chain[row][1] = add_products<BITS>(chain[row][1], codes[1], numbers);
                        }
                    };
                    for (int64_t input = k; input < k + STEP;) {
#pragma GCC unroll 2
                        for (int chain = 0; chain < CHAINS; chain++) {
                            for (int line = 0; line < Layout::LINES; line++) {
                                __builtin_prefetch(at + 64 * line + ahead, 0, LOCALITY);
                            }
                            const Layout weights = Layout::of(at, 4 * first);
                            add(exact[chain], weights.codes[0], input);
                            if constexpr (Layout::QUADS == 2) add(exact[chain], weights.codes[1], input + 4);
                            input += INPUTS;
                            at += 64 * Layout::LINES;
                        }
                    }
#pragma GCC unroll 16
                    for (int row = 0; row < ROWS; row++) {
                        const float row_scale = block_of(row, k).scale;
                        for (int half = 0; half < 2; half++) {
                            Counts sum = exact[0][row][half];
                            if constexpr (CHAINS == 2) sum += exact[1][row][half];
                            total[row][half] += __builtin_convertvector(sum, Sums) * scale_of[half] * row_scale;
                        }
                    }
                    if (minimums) {
                        const Sums minimum_of[2] = {load_sums(minimum), load_sums(minimum + 16)};
#pragma GCC unroll 16
                        for (int row = 0; row < ROWS; row++) {
                            const RoundedBlock& block = block_of(row, k);
                            const float sum = static_cast<float>(sum_of(block, k)) * block.scale;
                            for (int half = 0; half < 2; half++) total[row][half] -= minimum_of[half] * sum;
                        }
                    }
                }
            }
        }
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
            for (int half = 0; half < 2; half++) {
                *reinterpret_cast<UnalignedSums*>(sums + row * PANEL + 16 * half + first) = total[row][half];
            }
        }
    }
}

// Calls body(bits, step) with the constants of a weight.
template <class Body> INLINE void with_constant_layout(const GroupWeight& w, const Body& body) {
    using std::integral_constant;
    if (w.bits == 8) {
        body(integral_constant<int, 8>{}, integral_constant<int, 32>{});
    } else if (w.bits == 6) {
        body(integral_constant<int, 6>{}, integral_constant<int, 16>{});
    } else if (w.group == 16) {
        body(integral_constant<int, 4>{}, integral_constant<int, 16>{});
    } else if (w.rounded == 32) {
        body(integral_constant<int, 4>{}, integral_constant<int, 32>{});
    } else if (w.rounded == 64) {
        body(integral_constant<int, 4>{}, integral_constant<int, 64>{});
    } else {
        body(integral_constant<int, 4>{}, integral_constant<int, 128>{});
    }
}

template <class T> void multiply_items(const GroupLinear& p, int64_t begin, int64_t end) {
    alignas(64) float sums[GROUP_TILE_ROWS * PANEL];
    const int64_t blocks = blocks_of(p.rows, p.row_bytes);
    with_constant_layout(p.w, [&](auto bits, auto step) {
        for_panels(p.rows, blocks, p.w.columns, begin, end, [&](int64_t first, int64_t last, int64_t panel) {
            const uint8_t* weights = p.w.weight + panel * panel_bytes(p.w);
            for_tiles(first, last, GROUP_TILE_ROWS, [&](int64_t row, int64_t rows, int64_t tile, int64_t tiles) {
                prefetch_epilogue<T>(p.epilogue, row, rows, panel * PANEL);
                with_constant_rows<GROUP_TILE_ROWS>(rows, [&](auto count) {
                    multiply_tile<bits.value, step.value, count.value>(
                        p.x + row * p.row_bytes, p.row_bytes, p.w, weights, tile, tiles, sums);
                });
                apply_epilogue<T>(sums, p.epilogue, row, rows, panel * PANEL);
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
    }

    INLINE void multiply(int64_t first, int64_t rows, int64_t panel, int64_t tile, int64_t tiles, float* sums) const {
        const uint8_t* weights = linear_.w.weight + panel * panel_bytes(linear_.w);
        with_constant_layout(linear_.w, [&](auto bits, auto step) {
            for_tiles(0, rows, GROUP_TILE_ROWS, [&](int64_t row, int64_t count, int64_t part, int64_t parts) {
                with_constant_rows<GROUP_TILE_ROWS>(count, [&](auto size) {
                    multiply_tile<bits.value, step.value, size.value>(
                        &x_[(first + row) * linear_.row_bytes], linear_.row_bytes, linear_.w, weights,
                        tile * parts + part, tiles * parts, sums + row * PANEL);
                });
            });
        });
    }

private:
    GroupLinear linear_;
    int64_t width_;
    std::vector<uint8_t> x_;
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
            if (has_minimums(w)) {
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
