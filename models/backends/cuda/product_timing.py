"""Measures how long products with quantised weights take on a CUDA device, for `product_choice`."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Literal

import torch
from torch import Tensor

from models.backends.cuda.kernels.expert_tiles import ExpertTiles, group_by_expert
from models.backends.cuda.kernels.experts import expert_linear
from models.backends.cuda.kernels.matrices import ByteMatrix, Int4Matrix
from models.backends.cuda.kernels.quantized_linear import quantized_linear
from models.backends.cuda.kernels.rounded_rows import RoundedRows, round_rows

WeightKind = Literal["int8", "int8-fast", "int4", "fp8"]
"""Kinds of weights whose products may round their rows: to 8 bits for int8-fast, to 15 bits for int8 and int4, and to
fp8 for fp8."""
_SIZE = 4096
"""Number of inputs, and number of outputs, of each timed weight. Experts share the outputs of their weight equally."""
_EXPERTS = 8
"""Number of experts in the weights that are timed."""
_WEIGHTS = 8
"""Number of weights that are multiplied in turn, so that no weight is read from the cache of the device."""
_REPEATS = 5


class ProductTimer:
    """Times products with one kind of weight. The weights are made at the first use, and freed with this object.

    of_experts: whether to time products of experts. All experts then have the same number of rows.
    """

    def __init__(self, device: torch.device, kind: WeightKind, of_experts: bool) -> None:
        self._device, self._kind, self._of_experts = device, kind, of_experts

    def seconds(self, rows: int, rounds: bool) -> float:
        """The shortest measured time of one product, in seconds. Each run multiplies all weights in turn.

        rows: number of rows; with experts, of each expert.
        rounds: whether to round the rows. The time includes this.
        """
        count = rows * _EXPERTS if self._of_experts else rows
        x = torch.randn(count, _SIZE, device=self._device, dtype=torch.bfloat16)
        tiles = None
        if self._of_experts:
            tiles = group_by_expert(torch.arange(count, device=self._device)[:, None] % _EXPERTS, _EXPERTS)
        product = partial(self._multiply, x, tiles, rounds)
        for weight in self._weights:  # compiles the kernels
            product(weight)
        best = float("inf")
        for _ in range(_REPEATS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            for weight in self._weights:
                product(weight)
            end.record()
            end.synchronize()
            best = min(best, start.elapsed_time(end) / 1000 / len(self._weights))
        return best

    def _multiply(self, x: Tensor, tiles: ExpertTiles | None, rounds: bool, weight: ByteMatrix | Int4Matrix) -> Tensor:
        terms = 2 if self._kind in ("int8", "int4") else 1
        rows: Tensor | RoundedRows = x
        if rounds:
            rows = round_rows(x, "fp8" if self._kind == "fp8" else "int8", terms)
        if tiles is not None:
            return expert_linear(rows, weight, None, tiles, dtype=x.dtype)
        return quantized_linear(rows, weight, None, x.new_empty(x.shape[0], _SIZE))

    @cached_property
    def _weights(self) -> list[ByteMatrix | Int4Matrix]:
        return [self._weight(torch.Generator(self._device).manual_seed(number)) for number in range(_WEIGHTS)]

    def _weight(self, generator: torch.Generator) -> ByteMatrix | Int4Matrix:
        shape = (_EXPERTS, _SIZE // _EXPERTS) if self._of_experts else (_SIZE,)

        def scales(group: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.full((*shape, _SIZE // group), 0.01, device=self._device, dtype=dtype)

        def codes(low: int, high: int, inputs: int, dtype: torch.dtype) -> Tensor:
            return torch.randint(low, high, (*shape, inputs), device=self._device, dtype=dtype, generator=generator)

        if self._kind == "int4":
            own = scales(32, torch.float16)
            return Int4Matrix(codes(0, 256, _SIZE // 2, torch.uint8), own, own, 32)
        signed = codes(-100, 100, _SIZE, torch.int8)
        if self._kind == "fp8":
            return ByteMatrix(signed.view(torch.uint8), scales(128), 128)
        return ByteMatrix(signed, scales(_SIZE), _SIZE)
