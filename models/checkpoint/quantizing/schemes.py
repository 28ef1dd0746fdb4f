"""The scheme of each matrix of a quantised checkpoint (bits, group, float or integer), for the requested precision."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from torch import Tensor

from models.backends.cpu.rounding import rounding_of
from models.backends.linear_weights import int4_group
from models.backends.torch.quantization import (
    quantize_fp8,
    quantize_int4,
    quantize_int6,
    quantize_int8,
    quantize_int8_groups,
)
from models.backends.torch.rounding import GROUP
from models.checkpoint.quantizing.scale_search import round_groups
from models.layers.attention import Attention
from models.layers.feed_forward import FeedForward
from models.layers.latent_attention import LatentAttention
from models.layers.linear import Linear
from models.transformer import Transformer
from weights.quantized.fp8 import TABLE
from weights.quantized.write_compressed_tensors import Scheme
from weights.quantized_matrix import QuantizedMatrix

Precision = Literal["int8", "int6", "int4", "int8-fast", "int4-128", "fp8"]
_LARGEST_GROUP = 128
"""Largest number of inputs that share a scale in `int4-128`."""


def scheme_of(precision: Precision, width: int, is_sensitive: bool) -> Scheme:
    """The scheme of a matrix.

    width: number of inputs. is_sensitive: whether the matrix is one of `sensitive_linears`.
    """
    match precision:
        case "int8":
            return Scheme(8, GROUP)
        case "int6":
            return Scheme(6, GROUP)
        case "int4":
            return Scheme(6 if is_sensitive else 4, GROUP)
        case "int4-128":
            return Scheme(4, int4_group(width, _LARGEST_GROUP))
        case "int8-fast":
            return Scheme(8, None)
        case "fp8":
            return Scheme(8, None, is_float=True)


def rounded(weight: Tensor, precision: Precision, scheme: Scheme) -> QuantizedMatrix:
    """Round a matrix without texts.

    weight: [out, in], any float dtype. scheme: the scheme that `scheme_of` gives for the precision.
    """
    if scheme.group is None:
        codes, scales = quantize_fp8(weight) if scheme.is_float else quantize_int8(weight)
        return QuantizedMatrix(codes, 8, weight.shape[1], scales[:, None], table=TABLE if scheme.is_float else None)
    if scheme.bits == 4:
        return round_groups(weight, scheme) if precision == "int4" else quantize_int4(weight, scheme.group)
    round_whole = quantize_int6 if scheme.bits == 6 else quantize_int8_groups
    return round_whole(weight, rounding_of(weight))


def sensitive_linears(transformer: Transformer) -> Collection[str]:
    """Names of the weights that get 6 bits with the precision `int4`. These are the same as with `--quantize int4`.

    transformer: not packed yet; may be on the meta device.
    """
    found: set[str] = set()
    for path, module in transformer.named_modules():
        names: tuple[str, ...] = ()
        if isinstance(module, Attention) and not isinstance(module, LatentAttention):
            names = ("query", "key", "value", "gate")
        elif isinstance(module, FeedForward):
            names = ("down",)
        found.update(f"{path}.{name}.weight" for name in names if isinstance(getattr(module, name, None), Linear))
    return found
