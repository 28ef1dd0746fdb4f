// Top-k of each row of logits, the logarithm of the sum of exponentials, and whether all logits are finite.
//
// One pass over memory, in chunks that stay in the first-level cache. Sums are rescaled when a larger logit is found
// (Milakov and Gimelshein 2018, arXiv:1805.02867). The results of a row depend on that row alone.
#pragma once

#include "numbers.h"
#include "vectors.h"

constexpr int64_t TOP_K_CHUNK = 256, TOP_K_STRIP = 16;

// The `count` largest numbers so far, in descending order. Of equal numbers the earlier one comes first.
struct Largest {
    float* values;
    int64_t* ids;
    int64_t count, found;

    INLINE bool accepts(float x) const { return found < count ? x == x : x > values[count - 1]; }

    INLINE void insert(float x, int64_t id) {
        int64_t place = found < count ? found++ : count - 1;
        for (; place > 0 && values[place - 1] < x; place--) {
            values[place] = values[place - 1];
            ids[place] = ids[place - 1];
        }
        values[place] = x;
        ids[place] = id;
    }
};

INLINE void insert_larger(const float* x, int64_t length, int64_t first_id, Largest& largest) {
    for (int64_t start = 0; start < length; start += TOP_K_STRIP) {
        const int64_t end = std::min(start + TOP_K_STRIP, length);
        if (largest.found == largest.count) {
            const float threshold = largest.values[largest.count - 1];
            int32_t any = 0;
#pragma omp simd reduction(| : any)
            for (int64_t i = start; i < end; i++) any |= x[i] > threshold;
            if (!any) continue;
        }
        for (int64_t i = start; i < end; i++) {
            if (largest.accepts(x[i])) largest.insert(x[i], first_id + i);
        }
    }
}

INLINE void top_k_of_row(const float* x, int64_t width, Largest& largest, float* log_sum, uint8_t* finite) {
    float row_max = -INFINITY;
    double total = 0.0;
    Words non_finite = {};
    for (int64_t start = 0; start < width; start += TOP_K_CHUNK) {
        const float* chunk = x + start;
        const int64_t length = std::min(TOP_K_CHUNK, width - start);
        const int64_t whole = length / WIDTH * WIDTH;
        Floats maxima = broadcast(-INFINITY);
        for (int64_t i = 0; i < whole; i += WIDTH) {
            const Floats numbers = load(chunk + i);
            maxima = max_of(numbers, maxima);
            // x - x is zero for finite numbers and NaN for others.
            non_finite |= reinterpret_cast<Words>(numbers - numbers);
        }
        float chunk_max = max_lane(maxima);
        for (int64_t i = whole; i < length; i++) {
            chunk_max = chunk[i] > chunk_max ? chunk[i] : chunk_max;
            non_finite[0] |= __builtin_bit_cast(uint32_t, chunk[i] - chunk[i]);
        }
        if (largest.accepts(chunk_max)) insert_larger(chunk, length, start, largest);
        // A chunk of -inf adds nothing, and -inf - -inf would be NaN.
        if (log_sum == nullptr || chunk_max == -INFINITY) continue;
        if (chunk_max > row_max) {
            total *= std::exp(static_cast<double>(row_max) - chunk_max);
            row_max = chunk_max;
        }
        Floats sums = {};
        for (int64_t i = 0; i < whole; i += WIDTH) sums += power_of_two((load(chunk + i) - row_max) * LOG2_E);
        float sum = sum_lanes(sums);
        for (int64_t i = whole; i < length; i++) sum += exp_negative(chunk[i] - row_max);
        total += sum;
    }
    // Fewer than `count` numbers that are not NaN: fill up with -inf.
    for (; largest.found < largest.count; largest.found++) {
        largest.values[largest.found] = -INFINITY;
        largest.ids[largest.found] = 0;
    }
    if (log_sum != nullptr) *log_sum = static_cast<float>(std::log(total));
    uint32_t any = 0;
    for (int64_t i = 0; i < WIDTH; i++) any |= non_finite[i];
    *finite = any == 0;
}

void logits_top_k(DType, const LogitsTopK& task, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        Largest largest{task.values + row * task.count, task.ids + row * task.count, task.count, 0};
        top_k_of_row(task.logits + row * task.stride, task.width, largest,
                   task.logsumexp == nullptr ? nullptr : task.logsumexp + row, task.is_finite + row);
    }
}
