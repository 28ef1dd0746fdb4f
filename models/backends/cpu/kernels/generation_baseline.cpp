// For every processor that the compiler builds for by default.
#define GENERATION kernels_baseline
#include "generation.h"
