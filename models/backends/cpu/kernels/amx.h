// Matrix products by the matrix unit of a processor (AMX), up to 32 rows and one panel at a time.
//
// The unit has eight registers of 16 lines of 64 bytes. A step multiplies up to 64 bytes of each row, which are 32
// bfloat16 or 64 int8 numbers, by up to 16 lines of a panel. It adds its products up from zero and then adds the result
// to the sums. Vector instructions add in another order, so bfloat16 products of all numbers of rows use the unit, and
// a row gives the same bits in every batch. int8 sums are exact in both. Source: Intel 64 and IA-32 Architectures
// Software Developer's Manual, volume 2, TDPBF16PS, TDPBUSD, TDPBSUD and LDTILECFG.
#pragma once

#include "tiles.h"
#include "vectors.h"

#ifdef AMX

constexpr int64_t AMX_LINES = 16, AMX_LINE_BYTES = 64, PANEL_LINE_BYTES = 4 * PANEL;
static_assert(PANEL_LINE_BYTES == 2 * AMX_LINE_BYTES);

// Must be called before the unit reads memory at `written` that was just written: g++ does not know that the
// instructions of the unit read all of it, and could drop the writes or move them behind.
INLINE void finish_stores(const void* written) { asm volatile("" : : "r"(written) : "memory"); }

// The matrix unit of the calling thread. A thread may use only one object at a time, because another one would change
// or release its registers.
//
// Rows are in two parts of at most 16. Registers 0 and 1: sums of the first part with the two halves of the panel.
// Registers 2 and 3: the same for the second part. Registers 4 and 5: the parts of the rows. Registers 6 and 7: the
// halves of the panel.
class MatrixUnit {
public:
    MatrixUnit() = default;
    // A copy starts without shapes. It sets its own, and its destructor releases only those.
    MatrixUnit(const MatrixUnit&) {}
    MatrixUnit& operator=(const MatrixUnit&) = delete;

    // Registers without data are not saved at a context switch.
    ~MatrixUnit() {
        if (rows_ != 0) _tile_release();
    }

    // Sets the shapes of the registers for `rows` rows and `lines` lines of a panel per step, unless they are set
    // already: setting and releasing them takes as long as four steps.
    INLINE void set_shapes(int64_t rows, int64_t lines) {
        if (rows == rows_ && lines == lines_) return;
        rows_ = rows, lines_ = lines;
        Shapes shapes;
        for (int i = 0; i < 8; i++) {
            const int64_t part = i < 2 || i == 4 ? first_rows(rows) : std::max<int64_t>(1, rows - first_rows(rows));
            shapes.lines[i] = static_cast<uint8_t>(i < 6 ? part : lines);
            shapes.line_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? 4 * lines : AMX_LINE_BYTES);
        }
        finish_stores(&shapes);
        _tile_loadconfig(&shapes);
    }

    // Rows of the first part.
    static INLINE int64_t first_rows(int64_t rows) { return rows <= AMX_LINES ? rows : (rows + 1) / 2; }

private:
    // The layout that LDTILECFG reads.
    struct alignas(64) Shapes {
        uint8_t palette = 1, first_line = 0, reserved[14] = {};
        uint16_t line_bytes[16] = {};
        uint8_t lines[16] = {};
    };

    int64_t rows_ = 0, lines_ = 0;
};

// The lines of a panel that one step reads. first: first line of the first half. half_bytes: bytes from the first half
// to the second. line_bytes: bytes from one line to the next.
struct AmxLines {
    const char* first;
    int64_t half_bytes = AMX_LINE_BYTES, line_bytes = PANEL_LINE_BYTES;
};

// Adds the products of one step to the sums. T: bfloat16 for rows and weights; uint8_t for unsigned rows and signed
// weights; int8_t for signed rows and unsigned weights. HAS_SECOND: whether the second part has rows.
// first, second: first bytes of the parts, whose rows are `row_bytes` apart.
template <class T, bool HAS_SECOND>
INLINE void add_amx_step(const char* first, const char* second, int64_t row_bytes, const AmxLines& panel) {
    _tile_loadd(6, panel.first, panel.line_bytes);
    _tile_loadd(7, panel.first + panel.half_bytes, panel.line_bytes);
    _tile_loadd(4, first, row_bytes);
    if constexpr (HAS_SECOND) _tile_loadd(5, second, row_bytes);
// A macro, because the intrinsics need register numbers as literals.
#define ADD_AMX_PRODUCTS(instruction)  \
    instruction(0, 4, 6);              \
    instruction(1, 4, 7);              \
    if constexpr (HAS_SECOND) {        \
        instruction(2, 5, 6);          \
        instruction(3, 5, 7);          \
    }
    if constexpr (std::is_same<T, bfloat16>::value) {
        ADD_AMX_PRODUCTS(_tile_dpbf16ps)
    } else if constexpr (std::is_same<T, uint8_t>::value) {
        ADD_AMX_PRODUCTS(_tile_dpbusd)
    } else {
        ADD_AMX_PRODUCTS(_tile_dpbsud)
    }
#undef ADD_AMX_PRODUCTS
}

// Makes all sums zero.
INLINE void clear_amx_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// Memory of the sums of up to 32 rows and 32 columns, 32 bits each. `load` copies it to registers 0 to 3, and `store`
// copies them back. first, second: first row of each part. row_bytes: bytes from one row to the next.
struct AmxSums {
    void *first, *second;
    int64_t row_bytes;

    template <bool HAS_SECOND> INLINE void load() const {
        _tile_loadd(0, first, row_bytes);
        _tile_loadd(1, half(first), row_bytes);
        if constexpr (HAS_SECOND) {
            _tile_loadd(2, second, row_bytes);
            _tile_loadd(3, half(second), row_bytes);
        }
    }
    template <bool HAS_SECOND> INLINE void store() const {
        _tile_stored(0, first, row_bytes);
        _tile_stored(1, half(first), row_bytes);
        if constexpr (HAS_SECOND) {
            _tile_stored(2, second, row_bytes);
            _tile_stored(3, half(second), row_bytes);
        }
    }

private:
    static INLINE char* half(void* part) { return static_cast<char*>(part) + AMX_LINE_BYTES; }
};

// Sums of a tile in contiguous memory: [rows][PANEL].
INLINE AmxSums amx_sums(void* sums, int64_t first_rows) {
    return {sums, static_cast<char*>(sums) + first_rows * PANEL_LINE_BYTES, PANEL_LINE_BYTES};
}

template <class T, bool HAS_SECOND>
void multiply_amx_parts(MatrixUnit& matrix_unit, const T* x, int64_t stride, int64_t rows, int64_t lines,
                        const void* weights, Prefetch prefetch, void* sums) {
    const int64_t first_rows = MatrixUnit::first_rows(rows), row_bytes = stride * int64_t{sizeof(T)};
    const auto* first = reinterpret_cast<const char*>(x);
    const char *second = first + first_rows * row_bytes, *panel = static_cast<const char*>(weights);
    finish_stores(x);
    matrix_unit.set_shapes(rows, AMX_LINES);
    clear_amx_sums();
    int64_t line = 0;
    for (; line + AMX_LINES <= lines; line += AMX_LINES) {
        prefetch.fetch_step();
        add_amx_step<T, HAS_SECOND>(first + 4 * line, second + 4 * line, row_bytes,
                                    {panel + line * PANEL_LINE_BYTES});
    }
    if (line < lines) {
        alignas(64) char row_rest[MAX_TILE_ROWS * AMX_LINE_BYTES] = {}, panel_rest[AMX_LINES * PANEL_LINE_BYTES] = {};
        for (int64_t row = 0; row < rows; row++) {
            std::memcpy(row_rest + row * AMX_LINE_BYTES, first + row * row_bytes + 4 * line, 4 * (lines - line));
        }
        std::memcpy(panel_rest, panel + line * PANEL_LINE_BYTES, (lines - line) * PANEL_LINE_BYTES);
        finish_stores(row_rest);
        finish_stores(panel_rest);
        const char* second_rest = row_rest + first_rows * AMX_LINE_BYTES;
        add_amx_step<T, HAS_SECOND>(row_rest, second_rest, AMX_LINE_BYTES, {panel_rest});
    }
    amx_sums(sums, first_rows).template store<HAS_SECOND>();
}

// Products of rows and one panel. x: rows `stride` numbers apart. rows: at most MAX_TILE_ROWS. lines: number of
// lines of the panel; each has the weights for 32 bits of a row. weights: the panel, or its repacked copy. read: the
// panel in memory, to prefetch it. sums: [rows][PANEL], float32, or int32 for int8 products.
template <class T>
INLINE void multiply_amx(MatrixUnit& matrix_unit, const T* x, int64_t stride, int64_t rows, int64_t lines,
                         const void* weights, const PanelRead& read, void* sums) {
    const auto prefetch = Prefetch::of_steps(read, (lines + AMX_LINES - 1) / AMX_LINES);
    if (rows <= AMX_LINES) {
        multiply_amx_parts<T, false>(matrix_unit, x, stride, rows, lines, weights, prefetch, sums);
    } else {
        multiply_amx_parts<T, true>(matrix_unit, x, stride, rows, lines, weights, prefetch, sums);
    }
}

#else

struct MatrixUnit {};

#endif
