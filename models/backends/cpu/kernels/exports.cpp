// The functions that Python calls. Each shares its work among threads and uses the best kernels for this processor.
#include <atomic>
#include <chrono>
#include <sched.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels.h"
#include "threads.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Family of the processor if AMD made it, as its manuals write it (for example 25 for Zen 3 and Zen 4); 0 otherwise.
int64_t amd_family() {
#ifdef __x86_64__
    uint32_t a, b, c, d;
    // "AuthenticAMD" in the order b, d, c.
    if (__get_cpuid(0, &a, &b, &c, &d) && b == 0x68747541 && d == 0x69746e65 && c == 0x444d4163) {
        __get_cpuid(1, &a, &b, &c, &d);
        return (a >> 8 & 15) + (a >> 20 & 255);
    }
#endif
    return 0;
}

// A table of kernels and the processors that run it. Null kernels: see isa.h.
struct Isa {
    const char* name;
    const Kernels* kernels;
    bool (*runs)();
};

#ifdef __x86_64__
// Each function checks the `ISA_FEATURES` of the isa_*.cpp of its name. Features are checked one by one because g++ 11
// and clang 14 do not accept the names of levels, such as "x86-64-v3".
bool runs_v3() {
    uint32_t a, b, c, d;
    // clang 14 does not know the name of F16C.
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

bool runs_v4() {
    return runs_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

bool runs_v4_vnni() { return runs_v4() && __builtin_cpu_supports("avx512vnni"); }

bool runs_v4_bf16() { return runs_v4_vnni() && __builtin_cpu_supports("avx512bf16"); }

// Whether the processor has a matrix unit for bfloat16 and int8, and the vector instructions of v4_bf16. g++ 11 and
// clang 14 do not know all names of these features.
bool has_amx() {
    constexpr uint32_t BF16 = 1u << 22, TILE = 1u << 24, INT8 = 1u << 25, ALL = BF16 | TILE | INT8;
    uint32_t a, b, c, d;
    return runs_v4_bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & ALL) == ALL;
}

// Asks Linux to permit the registers of AMX to this process. Returns whether it does.
bool may_use_amx() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

bool runs_v4_amx() { return has_amx() && may_use_amx(); }
#endif

// Sorted from the least to the most capable.
const Isa isas[] = {
    {"baseline", &kernels_baseline, [] { return true; }},
#ifdef __x86_64__
    {"v3", &kernels_x86_64_v3, runs_v3},
    {"v4", &kernels_x86_64_v4, runs_v4},
    {"v4_vnni", &kernels_x86_64_v4_vnni, runs_v4_vnni},
    {"v4_bf16", &kernels_x86_64_v4_bf16, runs_v4_bf16},
    {"v4_amx", &kernels_x86_64_v4_amx, runs_v4_amx},
#endif
};

// The kernels of an instruction set. Those that its table lacks are from the table before it.
Kernels kernels_of(const Isa& chosen) {
    Kernels found{};
    for (const Isa& one : isas) {
        const Kernels& own = *one.kernels;
#define X(name, ...) found.name = own.name == nullptr ? found.name : own.name;
        TRIPTYCH_OPERATIONS(X) LOADING_KERNELS(X)
#undef X
        if (&one == &chosen) break;
    }
    return found;
}

const Isa& best() {
    const Isa* found = nullptr;
    for (const Isa& one : isas) {
        if (one.runs()) found = &one;
    }
    return *found;
}

Kernels kernels = kernels_of(best());

#include "operations.h"
#include "program.h"

// Shares one operation among the threads of torch's OpenMP runtime. The threads take its pieces in order.
struct TorchThreads {
    template <class Body> void share(int64_t count, int64_t grain, bool /* has_shares */, const Body& body) {
        parallel(count, grain, body);
    }
};

constexpr int64_t STRUCT_BYTES[] = {
#define X(name, Parameters, ...) sizeof(Parameters),
    TRIPTYCH_OPERATIONS(X)
#undef X
};

}  // namespace

// Family 25: together with prefetches, dot products whose sums take more than 16 registers run at half their rate.
// Measured on model 17, int8: 234 G multiplications/s on one core in tiles of 8 rows, 110 in tiles of 12; bfloat16: 118
// and 110. Other processors: 12 rows fill the registers (measured on family 26).
extern const int64_t max_tile_rows = amd_family() == 25 ? 8 : 12;

// Family 25: 8 to 16 rows are up to 1.56 times as fast with prefetches into the second-level cache only. Family 26: with
// 16 rows they are 0 to 10% slower, and int4 with 12 rows 13%. Other processors were not measured. See decision 101.
extern const int64_t max_second_level_tiles = amd_family() == 25 ? 2 : 0;

// Processors of AMD read weights faster with such prefetches. On an Intel processor (family 6, model 207), they halve the
// rate. See decision 150.
extern const bool few_rows_bypass = amd_family() != 0;

// Family 26: half of the first-level cache. 16 streams of models of 124 and 135 million parameters in int8 are 3 to 7%
// faster over HTTP. Other processors were not measured. See decision 105.
extern const int64_t max_first_level_bytes = amd_family() == 26 ? 24 << 10 : 0;

// Hash of kernels.h at build time. Python compares it with the file that it reads.
EXPORT const char* triptych_interface_hash() { return TRIPTYCH_INTERFACE_HASH; }

// Size of an operation's parameters, for tests.
EXPORT int64_t triptych_struct_bytes(int64_t operation) { return STRUCT_BYTES[operation]; }

// Runs one operation. Returns whether all its indices lie in their tables; otherwise nothing is computed.
EXPORT int32_t triptych_run_operation(int64_t operation, int32_t dtype, const void* parameters) {
    TorchThreads threads;
    return run_operation(Operation(operation), DType(dtype), parameters, threads);
}

// Runs the operations recorded in `words`, see program.h.
EXPORT int32_t triptych_run_program(const int64_t* words, int64_t operations, double* seconds) {
    return run_program(words, operations, seconds);
}

// Copies slots within each of several caches. slot_bytes: [num_caches]. block_size: slots of a block.
// copies: [count, 4]: source block, destination block, first slot, end. No destination is a source.
EXPORT void triptych_copy_blocks(char* const* caches, const int64_t* slot_bytes, int64_t num_caches, int64_t block_size,
                                 const int64_t* copies, int64_t count) {
    parallel(num_caches * count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t bytes = slot_bytes[i / count], *copy = copies + i % count * 4;
            char* cache = caches[i / count];
            std::memcpy(cache + (copy[1] * block_size + copy[2]) * bytes,
                        cache + (copy[0] * block_size + copy[2]) * bytes, (copy[3] - copy[2]) * bytes);
        }
    });
}

// Selects the kernels of the named isa for all later calls, for tests. Returns false if the processor cannot run them.
EXPORT int32_t triptych_choose_isa(const char* name) {
    for (const Isa& one : isas) {
        if (std::strcmp(one.name, name) == 0 && one.runs()) {
            kernels = kernels_of(one);
            return 1;
        }
    }
    return 0;
}

// Whether the processor has a matrix unit that the system does not let this process use.
EXPORT int32_t triptych_is_amx_refused() {
#ifdef __x86_64__
    return has_amx() && !may_use_amx();
#else
    return 0;
#endif
}

// Packs an int8 weight [columns, width] in panels, see int8_linear.h. offsets: [columns], written too.
EXPORT void triptych_pack_int8(const int8_t* weight, int64_t columns, int64_t width, int8_t* packed, int32_t* offsets) {
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

// Packs a float weight [columns, width] in panels, see panels.h.
EXPORT void triptych_pack_floats(int32_t dtype, const void* weight, int64_t columns, int64_t width, void* packed) {
    parallel(panels_of(columns), items_of(width * PANEL), [&](int64_t begin, int64_t end) {
        kernels.pack_panels(DType(dtype), weight, columns, width, packed, begin, end);
    });
}

// Numbers of a group, as in rounding.h, and the groups that one thread rounds at least.
constexpr int64_t ROUNDED_GROUP = 32, ROUNDED_TOGETHER = 64;

// Scale and minimum of each of `count` groups of 32 numbers, see rounding.h.
EXPORT void triptych_search_two_levels(const float* x, int64_t count, float* scales, float* minimums) {
    parallel(count, ROUNDED_TOGETHER, [&](int64_t begin, int64_t end) {
        kernels.search_two_levels(x + begin * ROUNDED_GROUP, end - begin, scales + begin, minimums + begin);
    });
}

// Scale of each of `count` groups of 32 numbers, see rounding.h.
EXPORT void triptych_search_six_bits(const float* x, int64_t count, float* scales) {
    parallel(count, ROUNDED_TOGETHER, [&](int64_t begin, int64_t end) {
        kernels.search_six_bits(x + begin * ROUNDED_GROUP, end - begin, scales + begin);
    });
}

// Codes of `count` groups of 32 numbers, see rounding.h. minimums: null for none.
EXPORT void triptych_round_groups(const float* x, int64_t count, const float* scales, const float* minimums,
                                  float least, float most, int8_t* codes) {
    parallel(count, ROUNDED_TOGETHER, [&](int64_t begin, int64_t end) {
        kernels.round_groups(x + begin * ROUNDED_GROUP, end - begin, scales + begin,
                             minimums == nullptr ? nullptr : minimums + begin, least, most, codes + begin * ROUNDED_GROUP);
    });
}
