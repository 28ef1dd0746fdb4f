// Threads for the kernels: the thread pool of the OpenMP runtime that torch has loaded. Compiled for the baseline
// instruction set only.
//
// Parallel regions call the entry point of GNU OpenMP (libgomp) instead of using `#pragma omp parallel`. g++ compiles
// the pragma to the same call, but clang compiles it to calls of the LLVM runtime (libomp). In addition
// to torch's libgomp, that would be a second pool of threads. libomp exports `GOMP_parallel` too, for a torch that was
// built with it. The library is linked without a runtime; models/backends/cpu/openmp.py makes that of torch visible
// to it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

// Declared here because clang finds <omp.h> only where libomp is installed.
extern "C" {
int omp_get_max_threads(void);
int omp_get_num_threads(void);
int omp_get_thread_num(void);
int omp_in_parallel(void);
void GOMP_parallel(void (*body)(void*), void* data, unsigned num_threads, unsigned flags);
}

// Number of threads that a parallel region may have: the setting of torch, or 1 inside another region.
inline int64_t num_threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

// Number of threads of the calling parallel region. The runtime may provide fewer than requested.
inline int64_t team_size() { return omp_get_num_threads(); }

// Number of the calling thread in its parallel region, from 0.
inline int64_t team_index() { return omp_get_thread_num(); }

// Calls body() once on each of up to `threads` threads. Returns when all calls have returned.
template <class Body> void run_team(int64_t threads, const Body& body) {
    const auto call = [](void* data) { (*static_cast<const Body*>(data))(); };
    GOMP_parallel(call, const_cast<Body*>(&body), static_cast<unsigned>(threads), 0);
}

// Calls body(begin, end) for parts of 0..count-1 with at least `grain` items each, on up to num_threads() threads.
// There are up to four parts per thread, taken in order by whichever thread is free, so that uneven work ends at the
// same time.
template <class Body> void parallel(int64_t count, int64_t grain, const Body& body) {
    const int64_t max_parts = count / std::max<int64_t>(1, grain), threads = std::min(num_threads(), max_parts);
    if (threads > 1) {
        const int64_t parts = std::min(4 * threads, max_parts);
        std::atomic<int64_t> next{0};
        run_team(threads, [&] {
            for (int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) {
                body(count * part / parts, count * (part + 1) / parts);
            }
        });
    } else if (count > 0) {
        body(static_cast<int64_t>(0), count);
    }
}
