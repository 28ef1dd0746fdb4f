// Mixture of experts: routing, products of each expert with its rows, and the weighted sum per row.
//
// The pairs of a row and one of its experts are sorted by expert and cut into tasks, so that threads share the panels
// of all experts. How many rows an expert has affects no bit of a row.
#pragma once

#include "activations.h"
#include "epilogue.h"
#include "float_linear.h"
#include "group_linear.h"
#include "int8_linear.h"
#include "numbers.h"
#include "tiles.h"
#include "vectors.h"

// Writes the indices of the `count` largest keys to `best`, the largest first. Equal keys are ordered by index.
inline void best_of(const float* keys, int64_t size, int64_t count, int64_t* best) {
    for (int64_t index = 0, found = 0; index < size; index++) {
        if (found == count && !(keys[index] > keys[best[found - 1]])) continue;
        int64_t at = found < count ? found++ : found - 1;
        for (; at > 0 && keys[index] > keys[best[at - 1]]; at--) best[at] = best[at - 1];
        best[at] = index;
    }
}

// Memory that all rows of a router reuse.
struct RouterScratch {
    std::vector<float> logits, scores, keys, group_keys;
    std::vector<int64_t> best;

    explicit RouterScratch(const Routing& p)
        : logits(p.num_experts), scores(p.num_experts), keys(p.num_experts), group_keys(p.groups),
          best(std::max(p.groups_per_row, p.group_members)) {}
};

// Lowers the keys of the experts that the row cannot use, because their groups are not among its best ones.
inline void keep_best_groups(const Routing& p, RouterScratch& s) {
    const int64_t members = p.num_experts / p.groups;
    for (int64_t group = 0; group < p.groups; group++) {
        const float* keys = s.keys.data() + group * members;
        best_of(keys, members, p.group_members, s.best.data());
        s.group_keys[group] = 0.0f;
        for (int64_t i = 0; i < p.group_members; i++) s.group_keys[group] += keys[s.best[i]];
    }
    best_of(s.group_keys.data(), p.groups, p.groups_per_row, s.best.data());
    const auto end = s.best.begin() + p.groups_per_row;
    for (int64_t expert = 0; expert < p.num_experts; expert++) {
        if (std::find(s.best.begin(), end, expert / members) == end) s.keys[expert] = -INFINITY;
    }
}

// Chooses experts one after the other. The share of each is its probability among the remaining experts whose logits
// are near its own.
inline void mix_sparsely(const Routing& p, RouterScratch& s, int64_t* experts, float* shares) {
    const float limit = static_cast<float>(2.0 * p.tolerance);
    best_of(s.logits.data(), p.num_experts, p.choices, experts);
    for (int64_t choice = 0; choice < p.choices; choice++) {
        const float largest = s.logits[experts[choice]];
        float sum = 0.0f;
        for (int64_t expert = 0; expert < p.num_experts; expert++) {
            if (std::find(experts, experts + choice, expert) != experts + choice) continue;
            const float logit = s.logits[expert];
            const bool is_far = (largest - logit) / std::max(largest, std::fabs(logit)) > limit;
            if (!is_far) sum += exp_negative(logit - largest);
        }
        shares[choice] = 1.0f / sum;
    }
}

// Chooses the experts of rows begin..end-1: the best scores, the smaller index first among equal ones.
template <class T> void route_rows(const Routing& p, int64_t begin, int64_t end) {
    RouterScratch s(p);
    for (int64_t row = begin; row < end; row++) {
        const T* logits = static_cast<const T*>(p.logits) + row * p.stride;
        int64_t* experts = p.experts + row * p.choices;
        float* shares = p.shares + row * p.choices;
        // A row that is not finite gets shares that are not finite: NaN may be anywhere among its logits.
        float largest = -INFINITY, not_finite = 0.0f, total = 1.0f, chosen = 0.0f;
        for (int64_t i = 0; i < p.num_experts; i++) {
            s.logits[i] = widen(logits[i]);
            largest = s.logits[i] > largest ? s.logits[i] : largest;
            not_finite += s.logits[i] - s.logits[i];
        }
        if (p.score == SPARSE_MIXER_SCORE) {
            mix_sparsely(p, s, experts, shares);
            for (int64_t i = 0; i < p.choices; i++) shares[i] = shares[i] * static_cast<float>(p.scale) + not_finite;
            continue;
        }
        if (p.score == SIGMOID_SCORE) {
            for (int64_t i = 0; i < p.num_experts; i++) s.scores[i] = sigmoid(s.logits[i]);
        } else {
            total = 0.0f;
            for (int64_t i = 0; i < p.num_experts; i++) total += s.scores[i] = exp_negative(s.logits[i] - largest);
        }
        // The scores are not divided by their sum before the shares are, to round once.
        if (p.correction == nullptr && p.groups == 1) {
            best_of(s.logits.data(), p.num_experts, p.choices, experts);
        } else {
            for (int64_t i = 0; i < p.num_experts; i++) {
                s.keys[i] = s.scores[i] / total + (p.correction == nullptr ? 0.0f : p.correction[i]);
            }
            if (p.groups > 1) keep_best_groups(p, s);
            best_of(s.keys.data(), p.num_experts, p.choices, experts);
        }
        for (int64_t i = 0; i < p.choices; i++) chosen += s.scores[experts[i]];
        const float divisor = p.is_normalized ? chosen + static_cast<float>(p.epsilon) * total : total;
        for (int64_t i = 0; i < p.choices; i++) {
            shares[i] = s.scores[experts[i]] / divisor * static_cast<float>(p.scale) + not_finite;
        }
    }
}

void route(DType dtype, const Routing& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? route_rows<float>(p, begin, end) : route_rows<bfloat16>(p, begin, end);
}

// Sorts the pairs by expert, in the order of their rows, and cuts them into tasks.
void group_by_expert(DType, const ExpertGroups& p, int64_t begin, int64_t end) {
    // Rows of one task, which stay in a core's cache while they are multiplied by one panel after another.
    constexpr int64_t MAX_TASK_ROWS = 8 * TILE_ROWS;
    if (begin == end) return;
    const int64_t pairs = p.rows * p.choices;
    std::vector<int64_t> next(p.num_experts + 1);
    for (int64_t pair = 0; pair < pairs; pair++) next[p.experts[pair] + 1]++;
    int64_t* task = p.tasks;
    for (int64_t expert = 0; expert < p.num_experts; expert++) {
        const int64_t first = next[expert], rows = next[expert + 1];
        const int64_t count = (rows + MAX_TASK_ROWS - 1) / MAX_TASK_ROWS;
        for (int64_t i = 0; i < count; i++, task += 3) {
            task[0] = expert;
            task[1] = first + rows * i / count;
            task[2] = first + rows * (i + 1) / count;
        }
        next[expert + 1] += first;
    }
    p.num_tasks[0] = (task - p.tasks) / 3;
    for (int64_t pair = 0; pair < pairs; pair++) {
        const int64_t place = next[p.experts[pair]]++;
        p.order[place] = pair;
        p.places[pair] = place;
    }
}

// act(clipped gates) * (clipped values + offset) of one panel. gates, values: [rows][PANEL], T. f: describes the result.
template <class T>
INLINE void multiply_clipped(const ExpertRows& p, const Epilogue& f, int64_t rows, const T* gates, const T* values) {
    constexpr int LINE = PANEL / WIDTH;
    const Floats limit = broadcast(static_cast<float>(p.limit)), offset = broadcast(static_cast<float>(p.offset));
    const int64_t count = std::min(PANEL, f.columns);
    for (int64_t row = 0; row < rows; row++) {
        Vectors<LINE> gate, value;
        for (int i = 0; i < LINE; i++) {
            gate.of[i] = load(gates + row * PANEL + i * WIDTH);
            value.of[i] = load(values + row * PANEL + i * WIDTH);
            gate.of[i] = gate.of[i] > limit ? limit : gate.of[i];
            value.of[i] = value.of[i] > limit ? limit : value.of[i];
            value.of[i] = value.of[i] < -limit ? -limit : value.of[i];
        }
        gate = activate<T>(static_cast<int32_t>(f.activation), gate);
        T line[PANEL];
        for (int i = 0; i < LINE; i++) {
            store(line + i * WIDTH, rounded_to<T>(gate.of[i]) * rounded_to<T>(value.of[i] + offset));
        }
        std::copy(line, line + count, static_cast<T*>(f.out) + row * f.out_stride);
    }
}

// Computes a part of the products of experts: items `begin` to `end` of the largest possible number. Only this
// function knows the number of items of this step. To tell other threads, it would have to outlive the operation, see
// `is_valid`.
//
// panels: the rows and the weight in their layout, an object like FloatPanels. T: dtype of inputs and results.
template <class T, class Linear, class Panels>
void multiply_experts(const ExpertRows& p, const Linear& linear, Panels panels, int64_t begin, int64_t end) {
    const Epilogue& epilogue = linear.epilogue;
    const int64_t panels_of_result = panels_of(epilogue.columns), parts = p.is_gated ? 2 : 1;
    const int64_t items = p.num_tasks[0] * panels_of_result, most = max_expert_items(linear.rows, p, epilogue);
    if (most == 0) return;
    begin = items * begin / most;
    end = items * end / most;
    alignas(64) float sums[MAX_TILE_ROWS * PANEL];
    alignas(64) T gate[MAX_TILE_ROWS * PANEL], values[MAX_TILE_ROWS * PANEL];
    const bool is_clipped = p.limit < INFINITY || p.offset != 0.0;
    int64_t task_read = -1;
    for (int64_t item = begin; item < end; item++) {
        const int64_t* task = p.tasks + item / panels_of_result * 3;
        const int64_t expert = task[0], first = task[1], rows = task[2] - first, panel = item % panels_of_result;
        if (task_read != first) {
            panels.read(rows, [&](int64_t i) {
                const int64_t row = p.order == nullptr ? first + i : p.order[first + i] / p.choices;
                return static_cast<const T*>(p.inputs) + row * p.input_stride;
            });
            task_read = first;
        }
        const int64_t first_panel = (expert * panels_of_result + panel) * parts;
        for_tiles(0, rows, Panels::tile_rows(), [&](int64_t row, int64_t tile_rows, int64_t tile, int64_t tiles) {
            // The epilogue of this tile and this panel, as if they were the first ones.
            Epilogue f = epilogue;
            f.columns -= panel * PANEL;
            f.out = static_cast<T*>(f.out) + (first + row) * f.out_stride + panel * PANEL;
            if (f.bias != nullptr) f.bias += first_panel * PANEL;
            prefetch_epilogue<T>(f, 0, tile_rows, 0);
            panels.multiply(row, tile_rows, first_panel, tile, tiles, sums);
            if (p.is_gated) {
                Epilogue part = f;
                part.out = gate;
                part.out_stride = PANEL;
                if (is_clipped) part.activation = NONE;
                apply_epilogue<T>(StoredSums{sums}, part, 0, tile_rows, 0);
                if (f.bias != nullptr) f.bias += PANEL;
                panels.multiply(row, tile_rows, first_panel + 1, tile, tiles, sums);
                if (is_clipped) {
                    part.bias = f.bias;
                    part.out = values;
                    apply_epilogue<T>(StoredSums{sums}, part, 0, tile_rows, 0);
                    multiply_clipped(p, f, tile_rows, gate, values);
                    return;
                }
                f.activation = NONE;
                f.multiplier = gate;
                f.multiplier_stride = PANEL;
            }
            apply_epilogue<T>(StoredSums{sums}, f, 0, tile_rows, 0);
        });
    }
}

void float_experts(DType dtype, const FloatExperts& p, int64_t begin, int64_t end) {
    if (dtype == FLOAT32) {
        multiply_experts<float>(p.experts, p.linear, FloatPanels<float>(p.linear), begin, end);
    } else {
        multiply_experts<bfloat16>(p.experts, p.linear, FloatPanels<bfloat16>(p.linear), begin, end);
    }
}

void int8_experts(DType dtype, const Int8Experts& p, int64_t begin, int64_t end) {
    if (dtype == FLOAT32) {
        multiply_experts<float>(p.experts, p.linear, Int8Panels<float>(p.linear, p.width), begin, end);
    } else {
        multiply_experts<bfloat16>(p.experts, p.linear, Int8Panels<bfloat16>(p.linear, p.width), begin, end);
    }
}

void group_experts(DType dtype, const GroupExperts& p, int64_t begin, int64_t end) {
    if (dtype == FLOAT32) {
        multiply_experts<float>(p.experts, p.linear, GroupPanels<float>(p.linear, p.width), begin, end);
    } else {
        multiply_experts<bfloat16>(p.experts, p.linear, GroupPanels<bfloat16>(p.linear, p.width), begin, end);
    }
}

// Weighted sums of rows begin..end-1, in float32 in the order of the choices. Each later step rounds to the dtype, as
// separate operations would.
template <class T> void sum_rows_of_experts(const ExpertSum& p, int64_t begin, int64_t end) {
    constexpr int64_t COLUMNS_AT_ONCE = 64;
    for (int64_t row = begin; row < end; row++) {
        T gate{};
        if (p.shared_gate != nullptr) {
            const float logit = widen(static_cast<const T*>(p.shared_gate)[row]);
            const float e = exp_negative(-std::fabs(logit));
            narrow(logit == logit ? (logit < 0.0f ? e : 1.0f) / (1.0f + e) : logit, gate);
        }
        for (int64_t column = 0; column < p.width; column += COLUMNS_AT_ONCE) {
            const int64_t count = std::min(COLUMNS_AT_ONCE, p.width - column);
            float sums[COLUMNS_AT_ONCE] = {};
            for (int64_t choice = row * p.choices; choice < (row + 1) * p.choices; choice++) {
                const T* x = static_cast<const T*>(p.x) + p.places[choice] * p.width + column;
                const float share = p.shares[choice];
#pragma omp simd
                for (int64_t i = 0; i < count; i++) sums[i] += share * widen(x[i]);
            }
            T* out = static_cast<T*>(p.out) + row * p.width + column;
#pragma omp simd
            for (int64_t i = 0; i < count; i++) narrow(sums[i], out[i]);
            if (p.shared != nullptr) {
                const T* shared = static_cast<const T*>(p.shared) + row * p.width + column;
                T part[COLUMNS_AT_ONCE];
#pragma omp simd
                for (int64_t i = 0; i < count; i++) {
                    p.shared_gate == nullptr ? static_cast<void>(part[i] = shared[i])
                                             : narrow(widen(gate) * widen(shared[i]), part[i]);
                }
#pragma omp simd
                for (int64_t i = 0; i < count; i++) narrow(widen(out[i]) + widen(part[i]), out[i]);
            }
            if (p.residual != nullptr) {
                const T* residual = static_cast<const T*>(p.residual) + row * p.residual_stride + column;
#pragma omp simd
                for (int64_t i = 0; i < count; i++) narrow(widen(residual[i]) + widen(out[i]), out[i]);
            }
        }
    }
}

void sum_of_experts(DType dtype, const ExpertSum& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? sum_rows_of_experts<float>(p, begin, end) : sum_rows_of_experts<bfloat16>(p, begin, end);
}
