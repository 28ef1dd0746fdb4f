// Kernels for x86-64 processors with AVX-512, its dot products, and a matrix unit for int8 and bfloat16 (AMX).
#ifdef __x86_64__
#define AVX512
#define VNNI
#define BF16_PRODUCTS
#define AMX
#define ISA_CHANGES(X) \
    X(attend) X(float_linear) X(int8_linear) X(group_linear) X(float_experts) X(int8_experts) X(group_experts)
#define ISA_KERNELS kernels_x86_64_v4_amx
// The kernels for data types and head dimensions that the matrix unit does not support.
#define VECTOR_KERNELS kernels_x86_64_v4_bf16
#define ISA_FEATURES \
    "avx2,bmi,bmi2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx512bf16,amx-tile,amx-bf16,amx-int8"
#pragma GCC diagnostic ignored "-Wunused-function"
#include "isa.h"
#endif
