"""AWQ checkpoints of AutoAWQ, version `gemm`, with 4 bits (Lin et al. 2023, arXiv:2306.00978).

A matrix is stored transposed, as `qweight` [in, out / 8], `qzeros` [groups, out / 8] and `scales` [groups, out].
A 32-bit word has the codes of eight neighbouring output features, in the order 0, 2, 4, 6, 1, 3, 5, 7.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from weights.quantized.parts import Description, Parts, by_output, combine, groups_text, layout, part_of_module, unpack
from weights.quantized.settings import QuantizationSettings
from weights.quantized_matrix import QuantizedMatrix
from weights.stored import Stored, StoredTensor

_PARTS = ("qweight", "qzeros", "scales")
_BITS = 4
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""For each of the eight output features of a word, in order: the index of its code in the word."""


class Awq:
    """Reads the matrices of an AWQ checkpoint. Implements `QuantizedFormat`.

    settings: the object `quantization_config`. Raises WeightsError for an unsupported setting.
    """

    def __init__(self, settings: QuantizationSettings) -> None:
        for name in ("bits", "w_bit"):
            settings.refuse_unless(name, _BITS)
        name = "version" if settings.get("version") is not None else "format"
        version = settings.get(name)
        if version is not None and str(version).lower() != "gemm":
            settings.refuse(
                name, f"{version!r} is not supported, only 'gemm': convert the checkpoint, or use its GPTQ form"
            )
        settings.choice("zero_point", (True,), True)
        self._group = settings.group_size("q_group_size", settings.group_size())
        self.description = f"AWQ, {_BITS} bits, {groups_text(self._group)}"

    unused = ""

    def matrices(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Stored]:
        return combine(stored, _role, ("qweight",), self._describe)

    def _describe(self, parts: Parts) -> Description:
        width, words = parts.shape("qweight", 2)
        parts.check("qweight", (torch.int32,))
        out = words * 32 // _BITS
        group = width if self._group == -1 else self._group
        groups = -(-width // group)
        parts.check_floats("scales", (groups, out))
        parts.check("qzeros", (torch.int32,), (groups, words))

        def read() -> QuantizedMatrix:
            codes = _in_order(parts.read("qweight")).T.contiguous()
            scales = parts.read("scales").float()
            minimums = scales * _in_order(parts.read("qzeros"))
            return QuantizedMatrix(codes, _BITS, group, by_output(scales, None), by_output(minimums, None))

        return layout((out, width), _BITS, group, minimums=True), read


def _role(name: str, tensor: StoredTensor) -> tuple[str, str] | None:
    return part_of_module(name, _PARTS)


def _in_order(words: Tensor) -> Tensor:
    """Unpack codes in the order of the output features: [rows, words] to [rows, 8 * words]."""
    codes = unpack(words, _BITS, words.shape[1] * 8)
    return codes.view(len(words), -1, 8)[:, :, _PLACES].flatten(1)
