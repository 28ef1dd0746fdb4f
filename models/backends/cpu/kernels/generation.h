// All kernels, compiled for the generation that the including file has chosen: GENERATION is the name of its table.
#include "kernels.h"

namespace {

#include "numbers.h"
#include "vectors.h"

#include "tiles.h"

#include "attention.h"
#include "activations.h"
#include "finish.h"
#include "panels.h"

#include "float_linear.h"
#include "int8_linear.h"
#include "norms.h"
#include "rotary.h"
#include "sums.h"
#include "survey.h"
#include "tables.h"

#include "draw.h"

}  // namespace

extern const Kernels GENERATION;
const Kernels GENERATION = {rms_norm,    rms_norm_from_one, layer_norm,           rotate,       add,    scale,
                            row_sum,     span_mean,         attend,               quantise,     int8_linear,
                            pack_panels, unpack_channels,   unpack_int8_channels, float_linear, survey, draw};
