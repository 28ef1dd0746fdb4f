// Kernels for x86-64 processors with AVX-512 and its int8 (VNNI) and bfloat16 dot products.
#ifdef __x86_64__
#define AVX512
#define VNNI
#define BF16_PRODUCTS
#define ISA_KERNELS kernels_x86_64_v4_bf16
#define ISA_FEATURES "avx2,bmi,bmi2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx512bf16"
#include "isa.h"
#endif
