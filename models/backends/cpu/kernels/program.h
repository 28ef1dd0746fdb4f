// A program: operations in their order, run by one team of threads. An operation begins when all pieces of the one before
// it are done, whoever did them: a thread that lost its core to another process in between is not waited for.
//
// An operation is a record of 64-bit words: its kind, the dtype that it works in, the number of words of its
// parameters, then these, which are a struct of kernels.h. What is filled in before a run has a word of its own there;
// smaller fields, which never change, may share one.

// Where the threads find their pieces of an operation, and where they wait until all are done.
struct alignas(64) Gate {
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> done{0};
};

class Team {
public:
    Team(int64_t threads, Gate* gates) : threads_(threads), gate_(gates) {}

    // body(begin, end) over pieces of 0..count, at least `grain` items each; returns when all pieces are done.
    template <class Body> void share(int64_t count, int64_t grain, const Body& body) {
        const int64_t pieces = std::max<int64_t>(1, std::min(4 * threads_, count / std::max<int64_t>(1, grain)));
        int64_t done = 0;
        for (int64_t piece; (piece = gate_->next.fetch_add(1, std::memory_order_relaxed)) < pieces; done++) {
            body(count * piece / pieces, count * (piece + 1) / pieces);
        }
        if (done > 0) gate_->done.fetch_add(done, std::memory_order_acq_rel);
        for (int64_t turns = 0; gate_->done.load(std::memory_order_acquire) < pieces; turns++) {
            // A thread that is not running needs the core that the others would spin on.
            turns < SPINS ? pause() : static_cast<void>(sched_yield());
        }
        gate_++;
    }

private:
    static constexpr int64_t SPINS = 4000;

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    const int64_t threads_;
    Gate* gate_;
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void run_program(const int64_t* words, int64_t operations, double* seconds) {
    const int64_t threads = num_threads();
    std::vector<Gate> gates(operations);
    run_team(threads, [&] {
        // Fewer threads may have come than were asked for.
        Team team(team_size(), gates.data());
        const int64_t* record = words;
        const bool watching = seconds != nullptr && is_first_thread();
        double before = watching ? now() : 0.0;
        for (int64_t i = 0; i < operations; i++) {
            run_operation(Kind(record[0]), DType(record[1]), record + 3, team);
            record += 3 + record[2];
            if (watching) {
                const double after = now();
                seconds[i] += after - before;
                before = after;
            }
        }
    });
}
