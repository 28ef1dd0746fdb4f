// Runs one operation of the list in kernels.h, its items shared among threads.
#pragma once

#include "kernels.h"

// The kernels for this processor, chosen in exports.cpp.
extern Kernels kernels;

// Smallest number of items for a thread. cost_of_an_item: from the list of operations.
inline int64_t items_of(int64_t cost_of_an_item) {
    return std::max<int64_t>(1, GRAIN / std::max<int64_t>(1, cost_of_an_item));
}

inline bool are_within(const int64_t* index, int64_t count, int64_t size) {
    return std::all_of(index, index + count, [&](int64_t i) { return i >= 0 && i < size; });
}

// Whether every index lies in its table. Like the number of items, this reads no memory that a program writes: a thread
// that comes late finds later operations' data there.
template <class Parameters> bool is_valid(const Parameters&) { return true; }

inline bool is_valid(const RowSum& p) {
    return std::all_of(p.lookups, p.lookups + p.count, [&](const TableLookup& one) {
        return one.index == nullptr || are_within(one.index, p.rows, one.table_rows);
    });
}

inline bool is_valid(const WeightRows& p) { return are_within(p.index, p.count, p.columns); }

inline bool is_valid(const GroupRows& p) { return are_within(p.index, p.count, p.w.columns); }

// Whether an operation is a matrix product. With few rows, most of its time is spent reading weights, and neighbouring
// items read neighbouring bytes.
template <class Parameters> constexpr bool IS_MATRIX_PRODUCT = false;
template <> constexpr bool IS_MATRIX_PRODUCT<FloatLinear> = true;
template <> constexpr bool IS_MATRIX_PRODUCT<Int8Linear> = true;
template <> constexpr bool IS_MATRIX_PRODUCT<GroupLinear> = true;
template <> constexpr bool IS_MATRIX_PRODUCT<FloatExperts> = true;
template <> constexpr bool IS_MATRIX_PRODUCT<Int8Experts> = true;
template <> constexpr bool IS_MATRIX_PRODUCT<GroupExperts> = true;

// `workers.share(count, grain, has_shares, body)` calls body(begin, end) for pieces of 0..count, of at least `grain`
// items each. has_shares: whether a thread should take neighbouring pieces.
// Returns false, with nothing computed, where an index lies outside its table.
template <class Workers> bool run_operation(Operation operation, DType dtype, const void* parameters, Workers& workers) {
    switch (operation) {
#define X(name, Parameters, items, cost)                                                                      \
    case OPERATION_##name: {                                                                                  \
        const auto& p = *static_cast<const Parameters*>(parameters);                                          \
        if (!is_valid(p)) return false;                                                                       \
        workers.share(items, items_of(cost), IS_MATRIX_PRODUCT<Parameters>,                                   \
                      [&](int64_t begin, int64_t end) { kernels.name(dtype, p, begin, end); });               \
        return true;                                                                                          \
    }
        TRIPTYCH_OPERATIONS(X)
#undef X
    }
    return false;
}
