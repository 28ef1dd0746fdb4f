// One token of each row at random: the filters are thresholds on the scaled logits, as `torch_sampling.py` has them, and
// the token is where the running sum of what is left passes a given share of it. No row is sorted: the k-th largest of a
// row and the end of its nucleus are found by sharing numbers out to bins, and only one bin is sorted.

constexpr int64_t DRAW_CHUNK = 256, BINS = 1024, FEW = 256, MOST_LISTED = 64;

struct Weighted {
    float value, weight;
};

// The largest value that together with all above it has a weight of at least `wanted`; the smallest where rounding leaves
// none. The list must not be empty, and loses what cannot be the answer.
inline float reach(std::vector<Weighted>& list, double wanted) {
    while (static_cast<int64_t>(list.size()) > FEW) {
        float low = list[0].value, high = low;
        for (const Weighted& one : list) {
            low = std::min(low, one.value);
            high = std::max(high, one.value);
        }
        if (low == high) return low;
        const float scale = static_cast<float>(BINS) / (high - low);
        // Numbers too far apart or too close for bins are sorted after all.
        if (!(high - low < 3e38f && scale < 3e38f)) break;
        const auto bin_of = [&](float value) {
            return std::min(BINS - 1, static_cast<int64_t>((high - value) * scale));
        };
        double sums[BINS] = {}, above = 0.0;
        for (const Weighted& one : list) sums[bin_of(one.value)] += static_cast<double>(one.weight);
        const int64_t last = bin_of(low);
        int64_t bin = 0;
        for (; bin < last && above + sums[bin] < wanted; bin++) above += sums[bin];
        wanted -= above;
        size_t kept = 0;
        for (const Weighted& one : list) {
            list[kept] = one;
            kept += bin_of(one.value) == bin;
        }
        // A last bin that is empty but for rounding: what is left has no weight.
        if (kept == 0) return low;
        list.resize(kept);
    }
    std::sort(list.begin(), list.end(), [](const Weighted& a, const Weighted& b) { return a.value > b.value; });
    double reached = 0.0;
    for (const Weighted& one : list) {
        reached += static_cast<double>(one.weight);
        if (reached >= wanted) return one.value;
    }
    return list.back().value;
}

// What a thread keeps from row to row. chunks: the largest number of each chunk.
struct DrawRoom {
    std::vector<float> scaled, chunks;
    std::vector<double> sums;
    std::vector<Weighted> list;
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

// Weights of one chunk, relative to that of the largest number; zero below the threshold. Returns their sum.
INLINE double weigh(const float* scaled, int64_t length, float top, float lowest, float* weights) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < length; i++) {
        const float weight = exp_negative(scaled[i] - top);
        weights[i] = scaled[i] >= lowest ? weight : 0.0f;
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
        total += weigh(scaled, length, top, lowest, weights);
        for (int64_t i = 0; i < length; i++) {
            if (weights[i] > 0.0f) room.list.push_back({scaled[i], weights[i]});
        }
    }
    return room.list.empty() ? lowest : reach(room.list, share * total);
}

inline int64_t draw_row(DrawRoom& room, int64_t width, float top, float lowest, double uniform) {
    float weights[DRAW_CHUNK];
    double total = 0.0;
    for (int64_t start = 0; start < width; start += DRAW_CHUNK) {
        double& sum = room.sums[start / DRAW_CHUNK];
        sum = room.chunks[start / DRAW_CHUNK] < lowest
                  ? 0.0
                  : weigh(room.scaled.data() + start, std::min(DRAW_CHUNK, width - start), top, lowest, weights);
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
        weigh(room.scaled.data() + start, length, top, lowest, weights);
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
    DrawRoom room{std::vector<float>(width), std::vector<float>(chunks), std::vector<double>(chunks), {}};
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
        float lowest = -INFINITY;
        task.tokens[row] = 0;
        if (top > -INFINITY) {
            const int64_t k = task.top_ks[row];
            if (k > 0 && k < width) lowest = kth_largest(room, width, k);
            if (task.top_ps[row] < 1.0) lowest = std::max(lowest, nucleus(room, width, top, lowest, task.top_ps[row]));
            lowest = std::max(lowest, top + task.log_min_ps[row]);
            task.tokens[row] = draw_row(room, width, top, lowest, task.uniforms[row]);
        }
        task.lowest[row] = lowest;
    }
}
