// Kernels for x86-64 processors with AVX2, FMA and conversions of float16 (F16C).
#ifdef __x86_64__
#define AVX2
#define ISA_KERNELS kernels_x86_64_v3
#define ISA_FEATURES "avx2,bmi,bmi2,f16c,fma"
#include "isa.h"
#endif
