// For processors with AVX-512 with its products of bytes (VNNI).
#include "kernels.h"

#ifdef HAS_GENERATIONS
#include <immintrin.h>

#define VNNI
#define AVX512
#pragma GCC target("arch=x86-64-v4,avx512vnni,prefer-vector-width=512")
#define AVX512
#define GENERATION kernels_v4_vnni
#include "generation.h"
#endif
