// All kernels, compiled for the generation that the including file has chosen: GENERATION is the name of its table.
#include "kernels.h"

namespace {

#include "numbers.h"
#include "vectors.h"

#include "activations.h"
#include "finish.h"
#include "tiles.h"
#include "panels.h"

#include "float_linear.h"
#include "int8_linear.h"
#include "norms.h"
#include "paged_attention.h"
#include "rotary.h"

}  // namespace

extern const Kernels GENERATION;
const Kernels GENERATION = {rms_norm, rotate, attend, quantise, int8_linear, pack_panels, unpack_channels, float_linear};
