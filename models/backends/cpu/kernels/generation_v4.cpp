// For processors with AVX-512.
#include "kernels.h"

#ifdef HAS_GENERATIONS
#include <immintrin.h>

#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define AVX512
#define GENERATION kernels_v4
#include "generation.h"
#endif
