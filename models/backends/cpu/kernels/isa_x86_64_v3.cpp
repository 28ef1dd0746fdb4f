// Kernels for x86-64 processors with AVX2 and FMA.
#ifdef __x86_64__
#define AVX2
#define ISA_KERNELS kernels_x86_64_v3
#define ISA_FEATURES "avx2,bmi,bmi2,fma"
#include "isa.h"
#endif
