"""Times products with quantised weights on a CUDA device, for `product_choice`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from models.backends.cuda.kernels.matrices import ByteMatrix, Int4Matrix
from models.backends.cuda.kernels.quantized_linear import byte_linear, int4_linear
from models.backends.cuda.kernels.rounded_linear import round_rows, rounded_byte_linear, rounded_int4_linear

WeightKind = Literal["int8", "int8-fast", "int4", "fp8"]
"""Kinds of weights for which the way of their products is chosen. With int8-fast, rows are rounded to 8 bits, otherwise
to 15 bits; with fp8, to fp8."""
_SIZE = 4096
"""Numbers of inputs and outputs of the timed products."""
_WEIGHTS = 8
"""Number of weights that are multiplied in turn, so that no weight is read from the cache of the device."""
_REPEATS = 5

Product = Callable[[Tensor], Tensor]


def time_product(device: torch.device, kind: WeightKind, rows: int, rounds: bool) -> float:
    """Seconds of one product: the least time of some runs over several weights."""
    x = torch.randn(rows, _SIZE, device=device, dtype=torch.bfloat16)
    products = _products(device, kind, rounds)
    for product in products:  # compiles the kernels
        product(x)
    best = float("inf")
    for _ in range(_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for product in products:
            product(x)
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1000 / len(products))
    return best


@cache
def _products(device: torch.device, kind: WeightKind, rounds: bool) -> tuple[Product, ...]:
    return tuple(_product(_weight(device, kind, number), kind, rounds) for number in range(_WEIGHTS))


@cache
def _weight(device: torch.device, kind: WeightKind, number: int) -> ByteMatrix | Int4Matrix:
    generator = torch.Generator(device).manual_seed(number)
    if kind == "int4":
        codes = torch.randint(0, 256, (_SIZE, _SIZE // 2), device=device, dtype=torch.uint8, generator=generator)
        scales = torch.full((_SIZE, _SIZE // 32), 0.01, device=device, dtype=torch.float16)
        return Int4Matrix(codes, scales, scales, 32)
    signed = torch.randint(-100, 100, (_SIZE, _SIZE), device=device, dtype=torch.int8, generator=generator)
    if kind == "fp8":
        return ByteMatrix(signed.view(torch.uint8), torch.full((_SIZE, _SIZE // 128), 0.01, device=device), 128)
    return ByteMatrix(signed, torch.full((_SIZE, 1), 0.01, device=device), _SIZE)


def _product(weight: ByteMatrix | Int4Matrix, kind: WeightKind, rounds: bool) -> Product:
    terms = 2 if kind in ("int8", "int4") else 1

    def multiply(x: Tensor) -> Tensor:
        if not rounds:
            return byte_linear(x, weight, None) if isinstance(weight, ByteMatrix) else int4_linear(x, weight, None)
        out = x.new_empty(x.shape[0], _SIZE)
        rounded = round_rows(x, "fp8" if kind == "fp8" else "int8", terms)
        if isinstance(weight, ByteMatrix):
            return rounded_byte_linear(rounded, weight, None, out)
        return rounded_int4_linear(rounded, weight, None, out)

    return multiply
