// All kernels, compiled for the generation that the including file has chosen: GENERATION is the name of its table.
#include "kernels.h"

namespace {

#include "numbers.h"
#include "vectors.h"

#include "int8_linear.h"
#include "norms.h"
#include "paged_attention.h"
#include "rotary.h"
#include "survey.h"

#include "draw.h"

}  // namespace

extern const Kernels GENERATION;
const Kernels GENERATION = {rms_norm, rotate, attend, quantise, multiply_panels, survey, draw};
