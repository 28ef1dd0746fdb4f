// Memory of attention that is reused by later calls.
#pragma once

#include "kernels.h"

// Numbers in memory that is kept. Page faults of new memory would take longer than the attention itself.
template <class Number> struct ScratchBuffer {
    // Aligned, because a vector that crosses two cache lines takes twice as long to load.
    struct alignas(64) Line {
        Number numbers[64 / sizeof(Number)];
    };
    std::vector<Line> lines;

    Number* of(int64_t count) {
        const size_t size = (count * sizeof(Number) + sizeof(Line) - 1) / sizeof(Line);
        if (lines.size() < size) lines = std::vector<Line>(size);
        return lines.data()->numbers;
    }
};

struct Scratch {
    ScratchBuffer<float> queries, sums, scores, factors, keys, values;
};
