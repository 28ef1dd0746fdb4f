// Prefetching of keys and values for `attention_direct.h`.
//
// Blocks are scattered in memory, so the hardware prefetcher cannot predict them. Zen 5 drops prefetches while too many
// are outstanding, which begins at one line in about six cycles. So the kernels prefetch a few lines with every few
// products, in the order of the addresses.
#pragma once

#include "attention_lanes.h"
#include "vectors.h"

// Tokens first..last-1 of a batch row. Of each, `numbers` adjacent elements are read.
template <class T> struct TokenRange {
    KvView<T> view;
    int64_t first = 0, last = 0, numbers = 0;

    bool begins_like(const TokenRange& other) const {
        return first == other.first && numbers == other.numbers && view.tokens == other.view.tokens &&
               view.table == other.view.table;
    }
};

// What one thread reads next: the keys and values of a query, then the keys of the query after it.
template <class T> class ReadAhead {
public:
    // Starts to read a query. next: keys of the query after it, empty if not known. group: query heads that share a
    // key-value head.
    void begin(const TokenRange<T>& keys, const TokenRange<T>& values, const TokenRange<T>& next, int64_t group) {
        const bool goes_on = range_ == NEXT && ranges_[NEXT].begins_like(keys);
        ranges_[0] = keys, ranges_[1] = values, ranges_[NEXT] = next;
        range_ = 0;
        // With AVX-512, one query needs so few operations for a head in float32 that prefetches cost more than they save.
        enabled_ = group > 1 || SIZE < 4 || WIDTH < 16;
        if (goes_on || !enabled_) return;
        at_ = end_ = nullptr, pieces_ = 0, token_ = keys.first, allowed_ = 0;
        fetch_at_once(DIRECT_KEYS * keys.numbers * SIZE + MIN_LEAD);
    }

    // Allows `bytes` more to be prefetched. A negative number takes back an earlier allowance.
    INLINE void allow(int64_t bytes) {
        if (enabled_) allowed_ += bytes;
    }

    // Whether the kernels have to call `fetch` between their products.
    bool enabled() const { return enabled_; }

    // Prefetches LINES cache lines, if they are allowed.
    template <int LINES> INLINE void fetch() {
        if (allowed_ < LINES * LINE) return;
        allowed_ -= LINES * LINE;
        if (at_ >= end_ && pieces_ > 0) begin_piece();
        if (end_ - at_ >= LINES * LINE) {
            bypasses_ ? prefetch<LINES, 0>() : prefetch<LINES, 3>();
        } else {
            fetch_lines(LINES);
        }
    }

    // Prefetches `bytes` at once.
    INLINE void fetch_at_once(int64_t bytes) {
        allow(bytes);
        if (allowed_ < LINE) return;
        fetch_lines(allowed_ / LINE);
        allowed_ %= LINE;
    }

private:
    static constexpr int64_t SIZE = sizeof(T), LINE = 64;
    // Prefetches are this many bytes ahead, plus one step: a step reads all its keys for one head after the other.
    static constexpr int64_t MIN_LEAD = 8192;
    static constexpr int NEXT = 2, RANGES = 3;

    __attribute__((noinline)) void fetch_lines(int64_t lines) {
        for (; lines > 0; lines--) {
            if (at_ >= end_) {
                if (pieces_ == 0 && !next_block()) return;
                begin_piece();
            }
            bypasses_ ? prefetch<1, 0>() : prefetch<1, 3>();
        }
    }

    // LOCALITY: argument of __builtin_prefetch: 3 for all caches, 0 for the first-level cache.
    template <int LINES, int LOCALITY> INLINE void prefetch() {
#pragma GCC unroll 16
        for (int i = 0; i < LINES; i++) __builtin_prefetch(at_ + i * LINE, 0, LOCALITY);
        at_ += LINES * LINE;
    }

    INLINE void begin_piece() {
        pieces_--;
        at_ = piece_ - reinterpret_cast<uintptr_t>(piece_) % LINE, end_ = piece_ + piece_bytes_;
        piece_ += stride_;
    }

    // Goes on to the next tokens in one block. If whole tokens are read, they are one piece.
    bool next_block() {
        for (; range_ < RANGES; token_ = ++range_ < RANGES ? ranges_[range_].first : 0) {
            const TokenRange<T>& range = ranges_[range_];
            if (token_ >= range.last) continue;
            const int64_t run = range.view.run(token_, range.last);
            const bool whole = range.numbers == range.view.stride;
            piece_ = reinterpret_cast<const char*>(range.view.at(token_));
            stride_ = range.view.stride * SIZE;
            piece_bytes_ = (whole ? run : 1) * range.numbers * SIZE;
            pieces_ = whole ? 1 : run;
            token_ += run;
            return true;
        }
        return false;
    }

    TokenRange<T> ranges_[RANGES];
    int range_ = RANGES;          // range of the next block
    int64_t token_ = 0;           // first token of the next block
    const char* piece_ = nullptr;  // next piece, and its size, distance to the one after it, and number of pieces left
    int64_t piece_bytes_ = 0, stride_ = 0, pieces_ = 0;
    const char *at_ = nullptr, *end_ = nullptr;  // rest of the present piece
    int64_t allowed_ = 0;                        // bytes
    bool enabled_ = false;
    // Whether the second-level cache keeps what Python needs between two steps, as for weights. See `Prefetch` in tiles.h.
    const bool bypasses_ = max_first_level_bytes > 0;
};

// Stands for `ReadAhead` where there is nothing to prefetch.
struct NoReadAhead {
    template <int LINES> INLINE void fetch() {}
};
