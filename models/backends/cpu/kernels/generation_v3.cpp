// For processors with AVX2 and FMA.
#include "kernels.h"

#ifdef HAS_GENERATIONS
#pragma GCC target("arch=x86-64-v3")
#define AVX2
#define GENERATION kernels_v3
#include "generation.h"
#endif
