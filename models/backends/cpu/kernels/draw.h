// One token of each row at random: the filters are thresholds on the scaled logits, as `torch_sampling.py` has them, and
// the token is where the running sum of what is left passes a given share of it. No row is sorted: the k-th largest of a
// row, the end of its nucleus and the least typical of its typical tokens are found by sharing numbers out to bins, and
// only one bin is sorted.

constexpr int64_t DRAW_CHUNK = 256, BINS = 1024, FEW = 256, MOST_LISTED = 64;

template <class Number> struct Weighted {
    Number value, weight;
};

// The largest value that together with all above it has a weight of at least `wanted`; the smallest where rounding leaves
// none. The list must not be empty, and loses what cannot be the answer.
template <class Number> Number reach(std::vector<Weighted<Number>>& list, double wanted) {
    using One = Weighted<Number>;
    while (static_cast<int64_t>(list.size()) > FEW) {
        Number low = list[0].value, high = low;
        for (const One& one : list) {
            low = std::min(low, one.value);
            high = std::max(high, one.value);
        }
        if (low == high) return low;
        const Number scale = static_cast<Number>(BINS) / (high - low);
        // Numbers too far apart or too close for bins are sorted after all.
        if (!(high - low < 3e38f && scale < 3e38f)) break;
        const auto bin_of = [&](Number value) {
            return std::min(BINS - 1, static_cast<int64_t>((high - value) * scale));
        };
        double sums[BINS] = {}, above = 0.0;
        for (const One& one : list) sums[bin_of(one.value)] += static_cast<double>(one.weight);
        const int64_t last = bin_of(low);
        int64_t bin = 0;
        for (; bin < last && above + sums[bin] < wanted; bin++) above += sums[bin];
        wanted -= above;
        size_t kept = 0;
        for (const One& one : list) {
            list[kept] = one;
            kept += bin_of(one.value) == bin;
        }
        // A last bin that is empty but for rounding: what is left has no weight.
        if (kept == 0) return low;
        list.resize(kept);
    }
    std::sort(list.begin(), list.end(), [](const One& a, const One& b) { return a.value > b.value; });
    double reached = 0.0;
    for (const One& one : list) {
        reached += static_cast<double>(one.weight);
        if (reached >= wanted) return one.value;
    }
    return list.back().value;
}

// What a thread keeps from row to row. chunks: the largest number of each chunk.
struct DrawRoom {
    std::vector<float> scaled, chunks;
    std::vector<double> sums;
    std::vector<Weighted<float>> list;
    std::vector<Weighted<double>> far;
};

// The scaled logits that may be drawn.
struct Bounds {
    float lowest, highest;

    INLINE bool hold(float x) const { return x >= lowest && x <= highest; }
};

inline float kth_largest(DrawRoom& room, int64_t width, int64_t k) {
    if (k <= MOST_LISTED) {
        float values[MOST_LISTED];
        int64_t ids[MOST_LISTED];
        uint8_t finite;
        Largest largest{values, ids, k, 0};
        survey_row(room.scaled.data(), width, largest, nullptr, &finite);
        return values[k - 1];
    }
    room.list.clear();
    for (int64_t i = 0; i < width; i++) {
        if (room.scaled[i] > -INFINITY) room.list.push_back({room.scaled[i], 1.0f});
    }
    return static_cast<int64_t>(room.list.size()) < k ? -INFINITY : reach(room.list, static_cast<double>(k));
}

// Weights of one chunk, relative to that of the largest number; zero out of bounds. Returns their sum.
INLINE double weigh(const float* scaled, int64_t length, float top, Bounds bounds, float* weights) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < length; i++) {
        const float weight = exp_negative(scaled[i] - top);
        weights[i] = bounds.hold(scaled[i]) ? weight : 0.0f;
        sum += static_cast<double>(weights[i]);
    }
    return sum;
}

inline float nucleus(DrawRoom& room, int64_t width, float top, float lowest, double share) {
    float weights[DRAW_CHUNK];
    double total = 0.0;
    room.list.clear();
    for (int64_t start = 0; start < width; start += DRAW_CHUNK) {
        if (room.chunks[start / DRAW_CHUNK] < lowest) continue;
        const float* scaled = room.scaled.data() + start;
        const int64_t length = std::min(DRAW_CHUNK, width - start);
        total += weigh(scaled, length, top, {lowest, INFINITY}, weights);
        for (int64_t i = 0; i < length; i++) {
            if (weights[i] > 0.0f) room.list.push_back({scaled[i], weights[i]});
        }
    }
    return room.list.empty() ? lowest : reach(room.list, share * total);
}

// How far a token's surprise is from the entropy is how far its logit is from the mean of all, weighted as they are drawn.
// In double: where a row is flat, all distances are nearly the same.
inline Bounds typical(DrawRoom& room, int64_t width, float top, float lowest, double share) {
    double weights[DRAW_CHUNK], total = 0.0, moment = 0.0;
    room.far.clear();
    for (int64_t start = 0; start < width; start += DRAW_CHUNK) {
        if (room.chunks[start / DRAW_CHUNK] < lowest) continue;
        const float* scaled = room.scaled.data() + start;
        const int64_t length = std::min(DRAW_CHUNK, width - start);
#pragma omp simd
        for (int64_t i = 0; i < length; i++) weights[i] = exp_negative(static_cast<double>(scaled[i]) - top);
        for (int64_t i = 0; i < length; i++) {
            if (!(scaled[i] >= lowest && weights[i] > 0.0)) continue;
            const double below = static_cast<double>(scaled[i]) - top;
            total += weights[i];
            moment += weights[i] * below;
            room.far.push_back({below, weights[i]});
        }
    }
    if (room.far.empty()) return {lowest, INFINITY};
    const double mean = moment / total;
    for (Weighted<double>& one : room.far) one.value = -std::fabs(one.value - mean);
    const double bar = reach(room.far, share * total);
    float low = INFINITY, high = -INFINITY;
#pragma omp simd reduction(min : low) reduction(max : high)
    for (int64_t i = 0; i < width; i++) {
        const float x = room.scaled[i];
        const bool inside = x >= lowest && -std::fabs(static_cast<double>(x) - top - mean) >= bar;
        low = std::min(low, inside ? x : INFINITY);
        high = std::max(high, inside ? x : -INFINITY);
    }
    return {low, high};
}

inline int64_t draw_row(DrawRoom& room, int64_t width, float top, Bounds bounds, double uniform) {
    float weights[DRAW_CHUNK];
    double total = 0.0;
    for (int64_t start = 0; start < width; start += DRAW_CHUNK) {
        double& sum = room.sums[start / DRAW_CHUNK];
        sum = room.chunks[start / DRAW_CHUNK] < bounds.lowest
                  ? 0.0
                  : weigh(room.scaled.data() + start, std::min(DRAW_CHUNK, width - start), top, bounds, weights);
        total += sum;
    }
    const double target = std::min(uniform * total, std::nextafter(total, 0.0));
    double reached = 0.0;
    int64_t token = 0;
    for (int64_t start = 0; start < width; start += DRAW_CHUNK) {
        const double sum = room.sums[start / DRAW_CHUNK];
        if (sum == 0.0) continue;
        const int64_t length = std::min(DRAW_CHUNK, width - start);
        if (reached + sum <= target && start + length < width) {
            reached += sum;
            continue;
        }
        weigh(room.scaled.data() + start, length, top, bounds, weights);
        for (int64_t i = 0; i < length; i++) {
            if (weights[i] <= 0.0f) continue;
            token = start + i;
            reached += static_cast<double>(weights[i]);
            if (reached > target) return token;
        }
    }
    // The sum of a chunk, made in another order, was larger by a rounding: the last token that has any weight.
    return token;
}

void draw(const Draw& task, int64_t begin, int64_t end) {
    const int64_t width = task.width, chunks = (width + DRAW_CHUNK - 1) / DRAW_CHUNK;
    DrawRoom room{std::vector<float>(width), std::vector<float>(chunks), std::vector<double>(chunks), {}, {}};
    for (int64_t row = begin; row < end; row++) {
        const float* logits = task.logits + row * task.stride;
        const float temperature = task.temperatures[row];
        float top = -INFINITY;
        for (int64_t start = 0; start < width; start += DRAW_CHUNK) {
            float highest = -INFINITY;
            const int64_t stop = std::min(start + DRAW_CHUNK, width);
#pragma omp simd reduction(max : highest)
            for (int64_t i = start; i < stop; i++) {
                const float scaled = logits[i] / temperature;
                room.scaled[i] = scaled;
                highest = scaled > highest ? scaled : highest;
            }
            room.chunks[start / DRAW_CHUNK] = highest;
            top = std::max(top, highest);
        }
        Bounds bounds{-INFINITY, INFINITY};
        float& lowest = bounds.lowest;
        task.tokens[row] = 0;
        if (top > -INFINITY) {
            const int64_t k = task.top_ks[row];
            if (k > 0 && k < width) lowest = kth_largest(room, width, k);
            if (task.top_ps[row] < 1.0) lowest = std::max(lowest, nucleus(room, width, top, lowest, task.top_ps[row]));
            lowest = std::max(lowest, top + task.log_min_ps[row]);
            if (task.typical_ps[row] < 1.0) bounds = typical(room, width, top, lowest, task.typical_ps[row]);
            task.tokens[row] = draw_row(room, width, top, bounds, task.uniforms[row]);
        }
        task.lowest[row] = lowest;
        task.highest[row] = bounds.highest;
    }
}
