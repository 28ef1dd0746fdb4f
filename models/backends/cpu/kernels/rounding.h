// Scales of groups of 32 numbers that are rounded to 4 or 6 bits, found by a search, and the codes of the numbers. The
// formulas are those of models/backends/torch/two_levels.py and quantization.py, with sums in another order.
#pragma once

#include <cstring>

#include "vectors.h"

constexpr int64_t ROUNDED_GROUP = 32;

// WIDTH groups side by side: vector i has number i of each group.
struct Groups {
    Floats of[ROUNDED_GROUP];
};

// Groups begin.. of `count`; zeros after the last one.
INLINE Groups load_groups(const float* x, int64_t begin, int64_t count) {
    alignas(64) float copy[WIDTH * ROUNDED_GROUP];
    const float* from = x + begin * ROUNDED_GROUP;
    if (count - begin < WIDTH) {
        std::memset(copy, 0, sizeof(copy));
        std::memcpy(copy, from, (count - begin) * ROUNDED_GROUP * sizeof(float));
        from = copy;
    }
    Groups groups;
    for (int64_t first = 0; first < ROUNDED_GROUP; first += WIDTH) {
        Floats square[WIDTH];
        for (int64_t g = 0; g < WIDTH; g++) square[g] = load(from + g * ROUNDED_GROUP + first);
        transpose(square);
        for (int64_t i = 0; i < WIDTH; i++) groups.of[first + i] = square[i];
    }
    return groups;
}

// Writes a number of each group, as far as there are groups.
INLINE void store_groups(float* out, int64_t begin, int64_t count, Floats x) {
    if (count - begin >= WIDTH) {
        store(out + begin, x);
    } else {
        for (int64_t g = 0; g < count - begin; g++) out[begin + g] = x[g];
    }
}

INLINE Floats magnitude(Floats x) { return x > -x ? x : -x; }

INLINE Floats divisor_of(Floats step) { return step == broadcast(0.0f) ? broadcast(1.0f) : step; }

// The multiple of a step that is next to x, ties to even; at least `least` and at most `most`. NaN becomes 0.
INLINE Floats code_of(Floats x, Floats divisor, float least, float most) {
    constexpr float ROUNDS = 12582912.0f;  // The last bit of its sum with a small number has the value 1.
    Floats code = x / divisor;
    code = code == code ? code : broadcast(0.0f);
    code = code > broadcast(least) ? code : broadcast(least);
    code = code < broadcast(most) ? code : broadcast(most);
    return (code + broadcast(ROUNDS)) - broadcast(ROUNDS);
}

// Scale and minimum of each of `count` groups, for codes from 0 to 15.
void search_two_levels(const float* x, int64_t count, float* scales, float* minimums) {
    constexpr int64_t CANDIDATES = 5;
    constexpr float LARGEST = 15.0f;
    const Floats zero = broadcast(0.0f);
    for (int64_t begin = 0; begin < count; begin += WIDTH) {
        const Groups numbers = load_groups(x, begin, count);
        Floats low = zero, high = numbers.of[0], squares = zero, strange = zero;
        for (const Floats number : numbers.of) {
            low = number < low ? number : low;
            high = number > high ? number : high;
            squares += number * number;
            strange += number - number;  // NaN for NaN and infinity
        }
        const Floats mean = squares / broadcast(float(ROUNDED_GROUP));
        Floats root;
        for (int64_t g = 0; g < WIDTH; g++) root[g] = __builtin_sqrtf(mean[g]);
        Floats total = zero, sum_x = zero;
        for (const Floats number : numbers.of) {
            const Floats weight = root + magnitude(number);
            total += weight;
            sum_x += weight * number;
        }
        // Where no candidate is better than none: all zero.
        Floats best = broadcast(__builtin_inff()), scale = (high - low) / broadcast(LARGEST), minimum = -low;
        for (int64_t i = 0; i < CANDIDATES; i++) {
            const Floats divisor =
                divisor_of((high - low) / broadcast(LARGEST - 1.0f + 2.0f * float(i) / (CANDIDATES - 1)));
            Groups codes;
            Floats sum_codes = zero, sum_squares = zero, sum_products = zero;
            for (int64_t k = 0; k < ROUNDED_GROUP; k++) {
                const Floats number = numbers.of[k], code = code_of(number - low, divisor, 0.0f, LARGEST);
                const Floats weighted = (root + magnitude(number)) * code;
                codes.of[k] = code;
                sum_codes += weighted;
                sum_squares += weighted * code;
                sum_products += weighted * number;
            }
            const Floats determinant = total * sum_squares - sum_codes * sum_codes;
            Floats one = (total * sum_products - sum_x * sum_codes) / determinant;
            Floats offset = (sum_squares * sum_x - sum_codes * sum_products) / determinant;
            // A minimum above zero cannot be stored.
            one = offset > zero ? sum_products / sum_squares : one;
            offset = offset > zero ? zero : offset;
            Floats error = zero;
            for (int64_t k = 0; k < ROUNDED_GROUP; k++) {
                const Floats number = numbers.of[k], distance = one * codes.of[k] + offset - number;
                error += (root + magnitude(number)) * distance * distance;
            }
            // Two comparisons: a group with a determinant of zero has an error that is not a number.
            const Floats found = determinant > zero ? error : broadcast(__builtin_inff());
            scale = found < best ? one : scale;
            minimum = found < best ? -offset : minimum;
            best = found < best ? found : best;
        }
        store_groups(scales, begin, count, scale + strange);
        store_groups(minimums, begin, count, minimum + strange);
    }
}

// Scale of each of `count` groups, for codes from -32 to 31.
void search_six_bits(const float* x, int64_t count, float* scales) {
    constexpr float LARGEST_CODES[] = {32.0f, 31.625f, 31.25f, 30.875f, 30.5f};
    const Floats zero = broadcast(0.0f);
    for (int64_t begin = 0; begin < count; begin += WIDTH) {
        const Groups numbers = load_groups(x, begin, count);
        Floats largest = zero, strange = zero;
        for (const Floats number : numbers.of) {
            largest = magnitude(number) > magnitude(largest) ? number : largest;
            strange += number - number;  // NaN for NaN and infinity
        }
        Floats best = zero, scale = largest / broadcast(-32.0f);
        for (const float most : LARGEST_CODES) {
            const Floats divisor = divisor_of(largest / broadcast(-most));
            Floats products = zero, squares = zero;
            for (const Floats number : numbers.of) {
                const Floats code = code_of(number, divisor, -32.0f, 31.0f), weighted = number * number * code;
                products += weighted * number;
                squares += weighted * code;
            }
            const Floats gain = products * products / squares;
            scale = gain > best ? products / squares : scale;
            best = gain > best ? gain : best;
        }
        store_groups(scales, begin, count, scale + strange);
    }
}

// Codes of the numbers of `count` groups. minimums: added to the numbers first; null for none.
void round_groups(const float* x, int64_t count, const float* scales, const float* minimums, float least, float most,
                  int8_t* codes) {
    for (int64_t g = 0; g < count; g++) {
        const Floats divisor = divisor_of(broadcast(scales[g]));
        const Floats minimum = broadcast(minimums == nullptr ? 0.0f : minimums[g]);
        alignas(64) float lanes[ROUNDED_GROUP];
        for (int64_t k = 0; k < ROUNDED_GROUP; k += WIDTH) {
            store(lanes + k, code_of(load(x + g * ROUNDED_GROUP + k) + minimum, divisor, least, most));
        }
        for (int64_t k = 0; k < ROUNDED_GROUP; k++) codes[g * ROUNDED_GROUP + k] = static_cast<int8_t>(lanes[k]);
    }
}
