// Scales and start values of products with group-wise quantized weights. A product sums a row in steps of 16 to 128
// inputs (these are not the steps of the engine). The sum of a step is exact in int32, and is then scaled.
#pragma once

#include "byte_products.h"
#include "group_layout.h"
#include "rounded_blocks.h"

// The numbers that a product needs for one step besides the rounded activations. `RowSteps` computes them.
struct RowStep {
    float scale;        // of the activations
    int32_t starts[2];  // start values of the exact sums of the lower and the upper 16 channels of a panel, because codes
                        // are unsigned
    float sum;          // of the activations, for weights with minimums
};

// Rounded activations of consecutive rows, and their steps. from(row): the same, beginning at row `row`.
struct RoundedRows {
    const uint8_t* x;  // rows, `row_bytes` apart: `padded` activations, then a RoundedBlock for each block of them
    int64_t row_bytes;
    const RowStep* steps;  // [rows, steps_per_row]
    int64_t steps_per_row;

    INLINE RoundedRows from(int64_t row) const {
        return {x + row * row_bytes, row_bytes, steps + row * steps_per_row, steps_per_row};
    }
};

// Computes the `RowStep`s of a block of rows. Each piece of work does so once per block and uses them for all of its
// panels. Computing them again for each panel took 2 to 22% of the time of a product.
class RowSteps {
public:
    // x: rows of rounded activations for weight w. Codes, STEP: see `GroupTile`. The result is valid until the next
    // call.
    template <class Codes, int STEP>
    RoundedRows compute(const uint8_t* x, int64_t row_bytes, int64_t rows, const GroupWeight& w) {
        // A block of activations has two sums. Steps of half a block use one each.
        constexpr int64_t ROUNDED = STEP < MIN_ROUNDED ? MIN_ROUNDED : STEP;
        const int32_t start_per_activation =
            CodeProducts<Codes::LARGEST>::SHIFT - (has_minimums(w) ? 0 : Codes::MIDDLE);
        const int64_t count = w.padded / STEP;
        steps_.resize(rows * count);
        for (int64_t row = 0; row < rows; row++) {
            const auto* blocks = reinterpret_cast<const RoundedBlock*>(x + row * row_bytes + w.padded);
            for (int64_t i = 0; i < count; i++) {
                const RoundedBlock& block = blocks[i * STEP / ROUNDED];
                const int32_t sum = STEP == ROUNDED ? block.sums[0] + block.sums[1] : block.sums[i % 2];
                // If UPPER is not 1, the code of a lower channel plus UPPER times that of an upper one is multiplied at
                // once. The sum of the upper channel then contains that of the lower one.
                const int32_t factor = Codes::UPPER == 1 ? 1 : 1 + Codes::UPPER;
                const int32_t lower = start_per_activation * sum, upper = factor * lower;
                steps_[row * count + i] = {block.scale, {lower, upper}, static_cast<float>(sum) * block.scale};
            }
        }
        return {x, row_bytes, steps_.data(), count};
    }

private:
    std::vector<RowStep> steps_;
};
