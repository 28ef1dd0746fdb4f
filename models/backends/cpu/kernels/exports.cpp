// What Python calls: each function shares its work among threads and hands it to the best kernels for this processor.
#include <atomic>
#include <chrono>
#include <sched.h>

#include "kernels.h"
#include "threads.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Generation {
    const char* name;
    const Kernels* kernels;
    bool (*runs)();
};

#ifdef __x86_64__
// Each function checks the `ISA_FEATURES` of the isa_*.cpp of its name. Features are checked one by one because g++ 11
// and clang 14 do not accept the names of levels, such as "x86-64-v3".
bool runs_v3() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("fma");
}

bool runs_v4() {
    return runs_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

bool runs_v4_vnni() { return runs_v4() && __builtin_cpu_supports("avx512vnni"); }

bool runs_v4_bf16() { return runs_v4_vnni() && __builtin_cpu_supports("avx512bf16"); }
#endif

// From the oldest on.
const Generation generations[] = {
    {"baseline", &kernels_baseline, [] { return true; }},
#ifdef __x86_64__
    {"v3", &kernels_x86_64_v3, runs_v3},
    {"v4", &kernels_x86_64_v4, runs_v4},
    {"v4_vnni", &kernels_x86_64_v4_vnni, runs_v4_vnni},
    {"v4_bf16", &kernels_x86_64_v4_bf16, runs_v4_bf16},
#endif
};

const Kernels& best() {
    const Kernels* found = nullptr;
    for (const Generation& one : generations) {
        if (one.runs()) found = one.kernels;
    }
    return *found;
}

Kernels kernels = best();

// Work of less than this many numbers is not worth a second thread.
constexpr int64_t GRAIN = 32768;

int64_t items_of(int64_t numbers_of_an_item) { return std::max<int64_t>(1, GRAIN / numbers_of_an_item); }

bool are_within(const int64_t* index, int64_t count, int64_t size) {
    return std::all_of(index, index + count, [&](int64_t i) { return i >= 0 && i < size; });
}

void write_slots(const SlotWrite& p, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        std::memcpy(p.key_cache + p.slots[i] * p.width, p.key + i * p.key_stride, p.width);
        std::memcpy(p.value_cache + p.slots[i] * p.width, p.value + i * p.value_stride, p.width);
    }
}

void take_rows(const RowChoice& p, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) std::memcpy(p.out + i * p.width, p.x + p.index[i] * p.stride, p.width);
}

#include "operations.h"
#include "program.h"

// Those that torch has, called for one operation.
struct TorchThreads {
    template <class Body> void share(int64_t count, int64_t grain, const Body& body) { parallel(count, grain, body); }
};

}  // namespace

// Do one operation. kind, task: see operations.h.
EXPORT void triptych_operation(int64_t kind, int32_t dtype, const void* task) {
    TorchThreads threads;
    run_operation(Kind(kind), DType(dtype), task, threads);
}

// Copy the leading slots of whole blocks within each of some caches. slot_bytes: of each cache, whose blocks have
// `block_size` slots. copies: [count][3], source block, destination block, slots; no destination is a source.
EXPORT void triptych_copy_blocks(char* const* caches, const int64_t* slot_bytes, int64_t num_caches, int64_t block_size,
                                 const int64_t* copies, int64_t count) {
    parallel(num_caches * count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t bytes = slot_bytes[i / count], *copy = copies + i % count * 4;
            char* cache = caches[i / count];
            std::memcpy(cache + (copy[1] * block_size + copy[2]) * bytes, cache + (copy[0] * block_size + copy[2]) * bytes,
                        (copy[3] - copy[2]) * bytes);
        }
    });
}

// Use the kernels of that generation from now on: for tests. Returns whether there are such that this processor runs.
EXPORT int32_t triptych_choose_generation(const char* name) {
    for (const Generation& one : generations) {
        if (std::strcmp(one.name, name) == 0 && one.runs()) {
            kernels = *one.kernels;
            return 1;
        }
    }
    return 0;
}

// weight: int8 [columns, width] -> packed in panels, see int8_linear.h, and offsets [columns].
EXPORT void triptych_int8_pack(const int8_t* weight, int64_t columns, int64_t width, int8_t* packed, int32_t* offsets) {
    const int64_t padded = (width + QUAD - 1) / QUAD * QUAD;
    std::memset(packed, 0, panels_of(columns) * PANEL * padded);
    parallel(columns, items_of(width), [&](int64_t begin, int64_t end) {
        for (int64_t column = begin; column < end; column++) {
            const auto channel = Channel<QUAD, int8_t>::of(packed, width, column);
            int32_t sum = 0;
            for (int64_t k = 0; k < width; k++) {
                channel[k] = weight[column * width + k];
                sum += weight[column * width + k];
            }
            offsets[column] = 128 * sum;
        }
    });
}

// Channels `index` of an int8 weight [columns, width] in panels, times their scales, -> out: [count, width]. Returns
// whether there are such.
EXPORT int32_t triptych_int8_unpack(int32_t dtype, const int8_t* packed, const float* scales, int64_t columns,
                                    int64_t width, const int64_t* index, int64_t count, void* out) {
    if (!are_within(index, count, columns)) return 0;
    parallel(count, items_of(width), [&](int64_t begin, int64_t end) {
        kernels.unpack_int8_channels(DType(dtype), packed, scales, width, index, out, begin, end);
    });
    return 1;
}

// weight: [columns, width] -> packed, see panels.h.
EXPORT void triptych_float_pack(int32_t dtype, const void* weight, int64_t columns, int64_t width, void* packed) {
    parallel(panels_of(columns), items_of(width * PANEL), [&](int64_t begin, int64_t end) {
        kernels.pack_panels(DType(dtype), weight, columns, width, packed, begin, end);
    });
}

// Channels `index` of a packed weight [columns, width] -> out: [count, width]. Returns whether there are such.
EXPORT int32_t triptych_float_unpack(int32_t dtype, const void* packed, int64_t columns, int64_t width,
                                     const int64_t* index, int64_t count, void* out) {
    if (!are_within(index, count, columns)) return 0;
    parallel(count, items_of(8 * width), [&](int64_t begin, int64_t end) {
        kernels.unpack_channels(DType(dtype), packed, width, index, out, begin, end);
    });
    return 1;
}

// Returns whether the tables have the rows that are asked for; if not, nothing is done.
EXPORT int32_t triptych_row_sum(int32_t dtype, const RowSum* p) {
    for (const Lookup* part = p->parts; part < p->parts + p->count; part++) {
        if (part->index != nullptr && !are_within(part->index, p->rows, part->table_rows)) return 0;
    }
    parallel(p->rows, items_of(p->count * p->width),
             [&](int64_t begin, int64_t end) { kernels.row_sum(DType(dtype), *p, begin, end); });
    return 1;
}

// Run the operations that lie in `words`, see program.h.
EXPORT void triptych_run(const int64_t* words, int64_t operations, double* seconds) {
    run_program(words, operations, seconds);
}
