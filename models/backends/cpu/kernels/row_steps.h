// Steps of rows, for group_linear.h. A step is 16 to 128 inputs of one row. Their products are summed exactly in int32;
// then the sum is scaled.

// The numbers that a product needs for one step besides the rounded activations. `RowStepReader` computes them.
struct RowStep {
    float scale;        // of the activations
    int32_t starts[2];  // first value of the exact sums, lower and upper channels: subtracts the middle of the codes
    float sum;          // of the activations, for weights with minimums
};

// Rounded activations of the rows of a tile.
struct RoundedRows {
    const uint8_t* x;  // rows, `row_bytes` apart, see BlockQuantization
    int64_t row_bytes;
    const RowStep* steps;  // [rows, steps_per_row]
    int64_t steps_per_row;

    INLINE RoundedRows from(int64_t row) const {
        return {x + row * row_bytes, row_bytes, steps + row * steps_per_row, steps_per_row};
    }
};

// Computes the steps of rows once for all panels. In the loop over panels it took 2 to 22% of the time of a product.
class RowStepReader {
public:
    // x: rows of rounded activations for weight w. The result is valid until the next call.
    template <class Codes, int STEP>
    RoundedRows read(const uint8_t* x, int64_t row_bytes, int64_t rows, const GroupWeight& w) {
        constexpr int64_t ROUNDED = STEP < MIN_ROUNDED ? MIN_ROUNDED : STEP;
        const int32_t middle = CodeProducts<Codes::LARGEST>::SHIFT - (has_minimums(w) ? 0 : Codes::MIDDLE);
        const int64_t count = w.padded / STEP;
        steps_.resize(rows * count);
        for (int64_t row = 0; row < rows; row++) {
            const auto* blocks = reinterpret_cast<const RoundedBlock*>(x + row * row_bytes + w.padded);
            for (int64_t i = 0; i < count; i++) {
                const RoundedBlock& block = blocks[i * STEP / ROUNDED];
                const int32_t sum = STEP == ROUNDED ? block.sums[0] + block.sums[1] : block.sums[i % 2];
                const int32_t lower = middle * sum, upper = (Codes::UPPER == 1 ? 1 : 1 + Codes::UPPER) * lower;
                steps_[row * count + i] = {block.scale, {lower, upper}, static_cast<float>(sum) * block.scale};
            }
        }
        return {x, row_bytes, steps_.data(), count};
    }

private:
    std::vector<RowStep> steps_;
};
