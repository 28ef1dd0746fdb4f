// For processors with AVX-512 with its products of bytes (VNNI) and of bfloat16.
#include "kernels.h"

#ifdef HAS_GENERATIONS
#include <immintrin.h>

#define VNNI
#define BF16_PRODUCTS
#pragma GCC target("arch=x86-64-v4,avx512vnni,avx512bf16,prefer-vector-width=512")
#define AVX512
#define GENERATION kernels_v4_bf16
#include "generation.h"
#endif
