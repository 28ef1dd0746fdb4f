// Kernels for x86-64 processors with AVX-512 and its int8 dot products (VNNI).
#ifdef __x86_64__
#define AVX512
#define VNNI
#define ISA_CHANGES(X) X(attend_int8) X(int8_linear) X(group_linear) X(int8_experts) X(group_experts)
#define ISA_KERNELS kernels_x86_64_v4_vnni
#define ISA_FEATURES "avx2,bmi,bmi2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni"
#pragma GCC diagnostic ignored "-Wunused-function"
#include "isa.h"
#endif
