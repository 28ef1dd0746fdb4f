// Kernels for every processor of the architecture that the compiler builds for.
#define ISA_KERNELS kernels_baseline
#include "isa.h"
