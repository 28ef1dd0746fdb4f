// All kernels, compiled for one instruction set. Each isa_*.cpp includes this file once, after defining these macros:
//
// ISA_KERNELS: name of the resulting table of kernels.
// ISA_FEATURES: string of processor features to compile for; undefined for the compiler's default.
// AVX2, AVX512, VNNI, BF16_PRODUCTS, AMX: which of the hand-written variants the features allow.
// ISA_CHANGES(X): list of the kernels that differ from those of the less capable instruction set; undefined if all do.
//     The table then has no others, which saves half of the compilation.
// VECTOR_KERNELS: table of the kernels that `attend` calls for cases that the matrix unit does not support; with AMX only.
#pragma once

#include "kernels.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

// The pragma comes after the headers above. Their templates, for example of std::vector, are shared by all isa_*.cpp
// in the linked library and must run on every processor. A -march option for the whole file would break that.
#ifdef ISA_FEATURES
#define PRAGMA(...) _Pragma(#__VA_ARGS__)
#define EXPANDED_PRAGMA(...) PRAGMA(__VA_ARGS__)
#ifdef __clang__
EXPANDED_PRAGMA(clang attribute push(__attribute__((target(ISA_FEATURES))), apply_to = function))
#else
EXPANDED_PRAGMA(GCC target(ISA_FEATURES, "prefer-vector-width=512"))
#endif
#endif

#ifdef VECTOR_KERNELS
extern const Kernels VECTOR_KERNELS;
#endif

namespace {

#include "numbers.h"
#include "vectors.h"

#include "tiles.h"
#include "amx.h"

#include "attention.h"
#include "int8_slots.h"
#include "quads.h"
#include "attention_int8.h"
#include "activations.h"
#include "epilogue.h"
#include "elementwise.h"
#include "panels.h"
#include "rounding.h"

#include "byte_products.h"
#include "float_linear.h"
#include "int8_linear.h"
#include "group_layout.h"
#include "rounded_blocks.h"
#include "row_steps.h"
#include "group_linear.h"
#include "experts.h"
#include "norms.h"
#include "mixers.h"
#include "rotary.h"
#include "logits_top_k.h"
#include "tables.h"

#include "draw.h"

}  // namespace

extern const Kernels ISA_KERNELS;
#ifdef ISA_CHANGES
constexpr Kernels changed_kernels() {
    Kernels kernels{};
#define X(name) kernels.name = name;
    ISA_CHANGES(X)
#undef X
    return kernels;
}
const Kernels ISA_KERNELS = changed_kernels();
#else
const Kernels ISA_KERNELS = {
#define X(name, ...) name,
    TRIPTYCH_OPERATIONS(X) LOADING_KERNELS(X)
#undef X
};
#endif

#if defined(ISA_FEATURES) && defined(__clang__)
#pragma clang attribute pop
#endif
