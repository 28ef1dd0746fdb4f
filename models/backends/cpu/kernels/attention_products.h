// Products of attention: by the matrix unit where the instruction set has one, else by vector instructions.
#pragma once

#ifdef AMX
#include "attention_amx.h"
#else
#include "attention_values.h"
#include "attention_direct_products.h"
#include "attention_tiled_products.h"
#endif
