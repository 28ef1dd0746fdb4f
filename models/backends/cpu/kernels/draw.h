// Draw one token per row at random. The filters (top-k, top-p, min-p, typical) are thresholds on the scaled logits,
// as in the reference implementation in torch. The drawn token is that at which the running sum of the remaining
// weights exceeds the share `uniforms` of their total.
//
// Rows are not sorted. The k-th largest number, the end of the nucleus and the least typical token are found by
// counting into bins; only one bin is sorted.
#pragma once

#include "logits_top_k.h"
#include "numbers.h"

constexpr int64_t DRAW_CHUNK = 256, BINS = 1024, MAX_SORTED = 256, MAX_INSERTED = 64;

template <class Number> struct Weighted {
    Number value, weight;
};

// Largest value v such that all entries >= v together weigh at least `min_weight`. If rounding leaves no such value,
// the smallest value. The list must not be empty. Entries that cannot be the result are removed from it.
template <class Number> Number threshold_of_weight(std::vector<Weighted<Number>>& list, double min_weight) {
    using One = Weighted<Number>;
    while (static_cast<int64_t>(list.size()) > MAX_SORTED) {
        Number low = list[0].value, high = low;
        for (const One& one : list) {
            low = std::min(low, one.value);
            high = std::max(high, one.value);
        }
        if (low == high) return low;
        const Number scale = static_cast<Number>(BINS) / (high - low);
        // Values too far apart or too close together for bins are sorted instead.
        if (!(high - low < 3e38f && scale < 3e38f)) break;
        const auto bin_of = [&](Number value) {
            return std::min(BINS - 1, static_cast<int64_t>((high - value) * scale));
        };
        double sums[BINS] = {}, above = 0.0;
        for (const One& one : list) sums[bin_of(one.value)] += static_cast<double>(one.weight);
        const int64_t last = bin_of(low);
        int64_t bin = 0;
        for (; bin < last && above + sums[bin] < min_weight; bin++) above += sums[bin];
        min_weight -= above;
        size_t kept = 0;
        for (const One& one : list) {
            list[kept] = one;
            kept += bin_of(one.value) == bin;
        }
        // Rounding can leave the last bin empty: the remaining entries have no weight.
        if (kept == 0) return low;
        list.resize(kept);
    }
    std::sort(list.begin(), list.end(), [](const One& a, const One& b) { return a.value > b.value; });
    double reached = 0.0;
    for (const One& one : list) {
        reached += static_cast<double>(one.weight);
        if (reached >= min_weight) return one.value;
    }
    return list.back().value;
}

// Memory that all rows reuse. chunks: the maximum of each chunk of the row.
struct DrawScratch {
    std::vector<float> scaled, chunks;
    std::vector<double> sums;
    std::vector<Weighted<float>> list;
    std::vector<Weighted<double>> distances;
};

// Range of the scaled logits that may be drawn.
struct Bounds {
    float lowest, highest;

    INLINE bool contain(float x) const { return x >= lowest && x <= highest; }
};

inline float kth_largest(DrawScratch& scratch, int64_t width, int64_t k) {
    if (k <= MAX_INSERTED) {
        float values[MAX_INSERTED];
        int64_t ids[MAX_INSERTED];
        uint8_t finite;
        Largest largest{values, ids, k, 0};
        top_k_of_row(scratch.scaled.data(), width, largest, nullptr, &finite);
        return values[k - 1];
    }
    scratch.list.clear();
    for (int64_t i = 0; i < width; i++) {
        if (scratch.scaled[i] > -INFINITY) scratch.list.push_back({scratch.scaled[i], 1.0f});
    }
    if (static_cast<int64_t>(scratch.list.size()) < k) return -INFINITY;
    return threshold_of_weight(scratch.list, static_cast<double>(k));
}

// Weights e^(scaled - row_max) of one chunk, zero out of bounds. Returns their sum.
INLINE double weigh(const float* scaled, int64_t length, float row_max, Bounds bounds, float* weights) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < length; i++) {
        const float weight = exp_negative(scaled[i] - row_max);
        weights[i] = bounds.contain(scaled[i]) ? weight : 0.0f;
        sum += static_cast<double>(weights[i]);
    }
    return sum;
}

inline float nucleus(DrawScratch& scratch, int64_t width, float row_max, float lowest, double probability) {
    float weights[DRAW_CHUNK];
    double total = 0.0;
    scratch.list.clear();
    for (int64_t start = 0; start < width; start += DRAW_CHUNK) {
        if (scratch.chunks[start / DRAW_CHUNK] < lowest) continue;
        const float* scaled = scratch.scaled.data() + start;
        const int64_t length = std::min(DRAW_CHUNK, width - start);
        total += weigh(scaled, length, row_max, {lowest, INFINITY}, weights);
        for (int64_t i = 0; i < length; i++) {
            if (weights[i] > 0.0f) scratch.list.push_back({scaled[i], weights[i]});
        }
    }
    return scratch.list.empty() ? lowest : threshold_of_weight(scratch.list, probability * total);
}

// The distance between the surprise of a token and the entropy equals the distance between its logit and the weighted
// mean of all logits. Computed in double: in a flat row all distances are nearly equal.
inline Bounds typical(DrawScratch& scratch, int64_t width, float row_max, float lowest, double probability) {
    double weights[DRAW_CHUNK], total = 0.0, moment = 0.0;
    scratch.distances.clear();
    for (int64_t start = 0; start < width; start += DRAW_CHUNK) {
        if (scratch.chunks[start / DRAW_CHUNK] < lowest) continue;
        const float* scaled = scratch.scaled.data() + start;
        const int64_t length = std::min(DRAW_CHUNK, width - start);
#pragma omp simd
        for (int64_t i = 0; i < length; i++) weights[i] = exp_negative(static_cast<double>(scaled[i]) - row_max);
        for (int64_t i = 0; i < length; i++) {
            if (!(scaled[i] >= lowest && weights[i] > 0.0)) continue;
            const double below = static_cast<double>(scaled[i]) - row_max;
            total += weights[i];
            moment += weights[i] * below;
            scratch.distances.push_back({below, weights[i]});
        }
    }
    if (scratch.distances.empty()) return {lowest, INFINITY};
    const double mean = moment / total;
    for (Weighted<double>& one : scratch.distances) one.value = -std::fabs(one.value - mean);
    const double min_value = threshold_of_weight(scratch.distances, probability * total);
    float low = INFINITY, high = -INFINITY;
#pragma omp simd reduction(min : low) reduction(max : high)
    for (int64_t i = 0; i < width; i++) {
        const float x = scratch.scaled[i];
        const bool inside = x >= lowest && -std::fabs(static_cast<double>(x) - row_max - mean) >= min_value;
        low = std::min(low, inside ? x : INFINITY);
        high = std::max(high, inside ? x : -INFINITY);
    }
    return {low, high};
}

inline int64_t draw_row(DrawScratch& scratch, int64_t width, float row_max, Bounds bounds, double uniform) {
    float weights[DRAW_CHUNK];
    double total = 0.0;
    for (int64_t start = 0; start < width; start += DRAW_CHUNK) {
        double& sum = scratch.sums[start / DRAW_CHUNK];
        sum = scratch.chunks[start / DRAW_CHUNK] < bounds.lowest
                  ? 0.0
                  : weigh(scratch.scaled.data() + start, std::min(DRAW_CHUNK, width - start), row_max, bounds, weights);
        total += sum;
    }
    const double target = std::min(uniform * total, std::nextafter(total, 0.0));
    double reached = 0.0;
    int64_t token = 0;
    for (int64_t start = 0; start < width; start += DRAW_CHUNK) {
        const double sum = scratch.sums[start / DRAW_CHUNK];
        if (sum == 0.0) continue;
        const int64_t length = std::min(DRAW_CHUNK, width - start);
        if (reached + sum <= target && start + length < width) {
            reached += sum;
            continue;
        }
        weigh(scratch.scaled.data() + start, length, row_max, bounds, weights);
        for (int64_t i = 0; i < length; i++) {
            if (weights[i] <= 0.0f) continue;
            token = start + i;
            reached += static_cast<double>(weights[i]);
            if (reached > target) return token;
        }
    }
    // `weigh` adds the weights in another order, and rounding can make its sum larger than `reached`. The target then
    // lies above all weights: return the last token whose weight is not zero.
    return token;
}

void draw(DType, const Draw& task, int64_t begin, int64_t end) {
    const int64_t width = task.width, chunks = (width + DRAW_CHUNK - 1) / DRAW_CHUNK;
    DrawScratch scratch{std::vector<float>(width), std::vector<float>(chunks), std::vector<double>(chunks), {}, {}};
    for (int64_t row = begin; row < end; row++) {
        const float* logits = task.logits + row * task.stride;
        const float temperature = task.temperatures[row];
        float row_max = -INFINITY;
        for (int64_t start = 0; start < width; start += DRAW_CHUNK) {
            float chunk_max = -INFINITY;
            const int64_t stop = std::min(start + DRAW_CHUNK, width);
#pragma omp simd reduction(max : chunk_max)
            for (int64_t i = start; i < stop; i++) {
                const float scaled = logits[i] / temperature;
                scratch.scaled[i] = scaled;
                chunk_max = scaled > chunk_max ? scaled : chunk_max;
            }
            scratch.chunks[start / DRAW_CHUNK] = chunk_max;
            row_max = std::max(row_max, chunk_max);
        }
        Bounds bounds{-INFINITY, INFINITY};
        float& lowest = bounds.lowest;
        task.tokens[row] = 0;
        if (row_max > -INFINITY) {
            const int64_t k = task.top_ks[row];
            if (k > 0 && k < width) lowest = kth_largest(scratch, width, k);
            if (task.top_ps[row] < 1.0) {
                lowest = std::max(lowest, nucleus(scratch, width, row_max, lowest, task.top_ps[row]));
            }
            lowest = std::max(lowest, row_max + task.log_min_ps[row]);
            if (task.typical_ps[row] < 1.0) bounds = typical(scratch, width, row_max, lowest, task.typical_ps[row]);
            task.tokens[row] = draw_row(scratch, width, row_max, bounds, task.uniforms[row]);
        }
        task.lowest[row] = lowest;
        task.highest[row] = bounds.highest;
    }
}
