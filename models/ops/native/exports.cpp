// What Python calls: each function shares its work among threads and hands it to the best kernels for this processor.
#include "kernels.h"
#include "threads.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

const Kernels& best() {
#ifdef HAS_GENERATIONS
    if (__builtin_cpu_supports("x86-64-v4")) {
        return __builtin_cpu_supports("avx512vnni") ? kernels_v4_vnni : kernels_v4;
    }
    if (__builtin_cpu_supports("x86-64-v3")) return kernels_v3;
#endif
    return kernels_baseline;
}

const Kernels& kernels = best();

// Work of less than this many numbers is not worth a second thread.
constexpr int64_t GRAIN = 32768;

int64_t items_of(int64_t numbers_of_an_item) { return std::max<int64_t>(1, GRAIN / numbers_of_an_item); }

}  // namespace

// x: [rows, width], rows `stride` numbers apart. weight: [width]. out: [rows, width], contiguous.
EXPORT void triptych_rms_norm(int32_t dtype, const void* x, int64_t stride, const void* weight, void* out,
                              int64_t rows, int64_t width, float eps) {
    parallel(rows, items_of(width), [&](int64_t begin, int64_t end) {
        kernels.rms_norm(DType(dtype), x, stride, weight, out, width, eps, begin, end);
    });
}

// x: [tokens, heads, head_dim], tokens `stride` numbers apart. cos, sin: [tokens, half], float32. out: contiguous.
EXPORT void triptych_rotate(int32_t dtype, const void* x, int64_t stride, const float* cos, const float* sin, void* out,
                            int64_t tokens, int64_t heads, int64_t head_dim, int64_t half, int32_t interleaved) {
    parallel(tokens, items_of(heads * head_dim), [&](int64_t begin, int64_t end) {
        kernels.rotate(DType(dtype), x, stride, cos, sin, out, heads, head_dim, half, interleaved != 0, begin, end);
    });
}

// Copy row i of `key` and of `value`, `key_stride` and `value_stride` bytes apart, to row slots[i] of the caches, whose
// rows are `width` bytes.
EXPORT void triptych_write_slots(const char* key, int64_t key_stride, const char* value, int64_t value_stride,
                                 char* key_cache, char* value_cache, const int64_t* slots, int64_t tokens,
                                 int64_t width) {
    for (int64_t i = 0; i < tokens; i++) {
        std::memcpy(key_cache + slots[i] * width, key + i * key_stride, width);
        std::memcpy(value_cache + slots[i] * width, value + i * value_stride, width);
    }
}

// Copy the leading slots of whole blocks within each of some caches. slot_bytes: of each cache, whose blocks have
// `block_size` slots. copies: [count][3], source block, destination block, slots; no destination is a source.
EXPORT void triptych_copy_blocks(char* const* caches, const int64_t* slot_bytes, int64_t num_caches, int64_t block_size,
                                 const int64_t* copies, int64_t count) {
    parallel(num_caches * count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t bytes = slot_bytes[i / count], *copy = copies + i % count * 3;
            char* cache = caches[i / count];
            std::memcpy(cache + copy[1] * block_size * bytes, cache + copy[0] * block_size * bytes, copy[2] * bytes);
        }
    });
}

EXPORT void triptych_paged_attention(int32_t dtype, const PagedAttention* task) {
    const PagedAttention& p = *task;
    // Memory is read in the order it lies in where there are queries enough to keep every thread busy.
    const int64_t heads_of_unit = p.queries >= 4 * num_threads() ? p.kv_heads : 1;
    parallel(p.queries * (p.kv_heads / heads_of_unit), 1, [&](int64_t begin, int64_t end) {
        kernels.attend(DType(dtype), p, heads_of_unit, begin, end);
    });
}

// weight: int8 [columns, width] -> packed in panels, see int8_linear.h, and offsets [columns].
EXPORT void triptych_int8_pack(const int8_t* weight, int64_t columns, int64_t width, int8_t* packed, int32_t* offsets) {
    constexpr int64_t PANEL = 32, QUAD = 4;
    const int64_t padded = (width + QUAD - 1) / QUAD * QUAD, panels = (columns + PANEL - 1) / PANEL;
    std::memset(packed, 0, panels * PANEL * padded);
    parallel(columns, items_of(width), [&](int64_t begin, int64_t end) {
        for (int64_t column = begin; column < end; column++) {
            int8_t* panel = packed + column / PANEL * PANEL * padded + column % PANEL * QUAD;
            int32_t sum = 0;
            for (int64_t k = 0; k < width; k++) {
                panel[k / QUAD * PANEL * QUAD + k % QUAD] = weight[column * width + k];
                sum += weight[column * width + k];
            }
            offsets[column] = 128 * sum;
        }
    });
}

// x: [rows, width], rows `stride` numbers apart -> out: [rows, columns], contiguous, the dtype of x.
// scratch: rows * (width rounded up to 4) bytes. scales: [rows], float32, written here.
EXPORT void triptych_int8_linear(int32_t dtype, const void* x, int64_t stride, const int8_t* packed,
                                 const float* weight_scales, const int32_t* offsets, const float* bias,
                                 uint8_t* scratch, float* scales, void* out, int64_t rows, int64_t width,
                                 int64_t columns) {
    const int64_t padded = (width + 3) / 4 * 4, panels = (columns + 31) / 32;
    parallel(rows, items_of(width), [&](int64_t begin, int64_t end) {
        kernels.quantise(DType(dtype), x, stride, scratch, scales, width, padded, begin, end);
    });
    const Int8Linear product{scratch, scales, rows, padded, packed, weight_scales, offsets, bias, columns, out};
    parallel(panels, items_of(padded * 32), [&](int64_t begin, int64_t end) {
        kernels.multiply_panels(DType(dtype), product, begin, end);
    });
}

EXPORT void triptych_survey(const Survey* task, int64_t rows) {
    parallel(rows, items_of(task->width), [&](int64_t begin, int64_t end) { kernels.survey(*task, begin, end); });
}

EXPORT void triptych_draw(const Draw* task, int64_t rows) {
    parallel(rows, items_of(task->width), [&](int64_t begin, int64_t end) { kernels.draw(*task, begin, end); });
}
