// Threads for the kernels: those that torch has. Outside of any generation's code.
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

// Threads that a parallel region may have, as torch was told.
inline int64_t num_threads() {
#ifdef _OPENMP
    return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
    return 1;
#endif
}

// Threads of the parallel region that this is called in.
inline int64_t team_size() {
#ifdef _OPENMP
    return omp_get_num_threads();
#else
    return 1;
#endif
}

inline bool is_first_thread() {
#ifdef _OPENMP
    return omp_get_thread_num() == 0;
#else
    return true;
#endif
}

// body(begin, end) over pieces of 0..count of at least `grain` items, on as many threads as torch has. Threads take
// pieces as they get free, four each where there are enough, so that uneven work ends together.
template <class Body> void parallel(int64_t count, int64_t grain, const Body& body) {
#ifdef _OPENMP
    const int64_t threads = std::min(num_threads(), count / std::max<int64_t>(1, grain));
    if (threads > 1) {
        const int64_t pieces = std::min(4 * threads, count / std::max<int64_t>(1, grain));
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast<int>(threads))
        for (int64_t piece = 0; piece < pieces; piece++) body(count * piece / pieces, count * (piece + 1) / pieces);
        return;
    }
#endif
    if (count > 0) body(static_cast<int64_t>(0), count);
}
