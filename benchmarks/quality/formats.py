"""The type of each matrix in llama.cpp's file formats.

Source: `llama_tensor_get_type` in `src/llama-quant.cpp` of https://github.com/ggml-org/llama.cpp (2026-11), for models
that are no mixture of experts and have no importance matrix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gguf import GGMLQuantizationType as Type

FORMATS: Mapping[str, Type] = {
    "Q8_0": Type.Q8_0,
    "Q6_K": Type.Q6_K,
    "Q5_K_M": Type.Q5_K,
    "Q4_K_M": Type.Q4_K,
    "Q4_0": Type.Q4_0,
}
"""Type of most matrices, by the name of the format."""

_FALLBACKS = {Type.Q4_K: Type.Q5_0, Type.Q5_K: Type.Q5_1, Type.Q6_K: Type.Q8_0}
"""The types that need a multiple of 256 inputs, and the type that replaces each for other matrices."""


def type_of(format_name: str, tensor: str, width: int, layers: int, has_head: bool) -> Type:
    """The type of a matrix in a format.

    tensor: name of the matrix in the file. width: number of its inputs. layers: number of layers of the model.
    has_head: whether the output head is a separate matrix, not tied to the token table.
    """
    kind = FORMATS[format_name]
    if tensor == ("output.weight" if has_head else "token_embd.weight"):
        kind = kind if kind == Type.Q8_0 else Type.Q6_K
    elif format_name.endswith("_M") and re.search(r"attn_v\.weight|ffn_down(_exps)?\.weight", tensor):
        matched = re.search(r"blk\.(\d+)\.", tensor)
        assert matched is not None
        kind = Type.Q6_K if _has_more_bits(int(matched[1]), layers) else kind
    return _FALLBACKS.get(kind, kind) if width % 256 else kind


def _has_more_bits(layer: int, layers: int) -> bool:
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
