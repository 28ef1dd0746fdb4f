// Runs a program: a list of operations, in order, by one team of threads. An operation begins when all pieces of the
// previous one are done. Any thread may take any piece, so a thread that waits for a core does not delay the others.
//
// An operation is a record of 64-bit words: its code (`Operation`), its DType, the number of words of its parameters,
// then the parameters, a struct of kernels.h.
#pragma once

#include <atomic>
#include <chrono>
#include <sched.h>

#include "operations.h"
#include "threads.h"

// Progress of one operation. A share is a range of consecutive pieces. If there are more than MAX_SHARES threads, some
// of them begin with the same share. `done` and 15 counters fill one cache line.
// done: number of finished pieces. taken: for each share, number of attempts to take a piece; it may be larger than the
// number of pieces.
struct alignas(64) Progress {
    static constexpr int64_t MAX_SHARES = 15;

    std::atomic<int32_t> done{0};
    std::atomic<int32_t> taken[MAX_SHARES]{};
};

class Team {
public:
    Team(int64_t threads, int64_t thread, Progress* progress)
        : threads_(threads), thread_(thread), progress_(progress) {}

    // Calls body(begin, end) for pieces of 0..count-1, of at least `grain` items each. Returns when all are done.
    //
    // has_shares: if true, a thread takes all pieces of its own share first, and then pieces of other shares. So it reads
    // mostly consecutive bytes, which the processor prefetches. If false, all threads take pieces from one common list,
    // so that they compute neighbouring pieces at the same time and use the same cached data.
    template <class Body> void share(int64_t count, int64_t grain, bool has_shares, const Body& body) {
        const int64_t pieces = std::max<int64_t>(1, std::min(4 * threads_, count / std::max<int64_t>(1, grain)));
        const int64_t shares = has_shares ? std::min(threads_, Progress::MAX_SHARES) : 1;
        int32_t done = 0;
        for (int64_t i = 0; i < shares; i++) {
            const int64_t share = (thread_ + i) % shares;
            const int64_t first = pieces * share / shares, end = pieces * (share + 1) / shares;
            std::atomic<int32_t>& taken = progress_->taken[share];
            for (int64_t piece; (piece = first + taken.fetch_add(1, std::memory_order_relaxed)) < end; done++) {
                body(count * piece / pieces, count * (piece + 1) / pieces);
            }
        }
        if (done > 0) progress_->done.fetch_add(done, std::memory_order_acq_rel);
        for (int64_t turns = 0; progress_->done.load(std::memory_order_acquire) < pieces; turns++) {
            // Yields the core, because the thread with the missing piece may be waiting for it.
            turns < SPINS ? pause() : static_cast<void>(sched_yield());
        }
        progress_++;
    }

private:
    static constexpr int64_t SPINS = 4000;

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    const int64_t threads_, thread_;
    Progress* progress_;
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Runs `count` operations. seconds: [count], time spent on each, added to the values there; or null.
// Returns false where an index lies outside its table; the operations from there on are not run.
bool run_program(const int64_t* words, int64_t count, double* seconds) {
    const int64_t threads = num_threads();
    std::vector<Progress> progress(count);
    std::atomic<bool> is_complete{true};
    run_team(threads, [&] {
        // The runtime may start fewer threads than requested.
        Team team(team_size(), team_index(), progress.data());
        const int64_t* record = words;
        const bool is_timed = seconds != nullptr && team_index() == 0;
        double before = is_timed ? now() : 0.0;
        for (int64_t i = 0; i < count; i++) {
            // Every thread checks the same indices, so that all of them stop at the same operation.
            if (!run_operation(Operation(record[0]), DType(record[1]), record + 3, team)) {
                is_complete.store(false, std::memory_order_relaxed);
                break;
            }
            record += 3 + record[2];
            if (is_timed) {
                const double after = now();
                seconds[i] += after - before;
                before = after;
            }
        }
    });
    return is_complete.load();
}
