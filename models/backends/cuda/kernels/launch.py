"""Launches Triton kernels with little Python, and computes sizes of tiles and numbers of warps.

Triton compiles a kernel anew for each combination of dtypes, constants, and divisibility by 16 of pointers and numbers.
Arguments that change from step to step are therefore listed as `do_not_specialize`: a compilation while the server runs
would stop all streams.
All launches set `enable_fp_fusion`, so that rounding does not depend on the default of a version of Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from models.backends.kernel_preparation import PREPARATION

_MAX_INT32 = (1 << 31) - 1


class Kernel:
    """A Triton kernel, launched as `kernel[grid](*arguments, **options)`.

    Triton looks up the compiled kernel in each launch. This takes 46 microseconds of Python on the host of an H200,
    longer than most kernels run. This class therefore keeps the compiled kernels in a separate dictionary. Its key has
    the constants and the properties of the arguments for which Triton compiles a kernel anew.

    arguments: one tensor or number for each parameter that is not a constant of the kernel, in order. A parameter gets
        the same kind of argument in all launches: tensor, integer or float.
    options: the constants of the kernel, and settings such as `num_warps`. All launches name the same options in the
        same order.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[tuple[Any, ...], CompiledKernel] = {}
        self._constants: list[str] = []
        self._specialized: list[bool] = []
        if isinstance(kernel, JITFunction):  # otherwise Triton interprets the kernel
            self._constants = [param.name for param in kernel.params if param.is_constexpr]
            self._specialized = [not param.do_not_specialize for param in kernel.params if not param.is_constexpr]
        # Indices of four kinds of arguments: tensors, tensors whose alignment matters, integers, and integers whose
        # value matters.
        self._places: tuple[list[int], list[int], list[int], list[int]] | None = None

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: Sequence[int], *arguments: Tensor | float, **options: Any) -> None:
        if not self._specialized:
            self._kernel[tuple(grid)](*arguments, **options)
            return
        if self._places is None:
            self._places = self._places_of(arguments)
        tensors, aligned, integers, counts = self._places
        values: list[Any] = list(arguments)
        for place in tensors:
            values[place] = arguments[place].data_ptr()  # type: ignore[union-attr]
        key = (
            arguments[tensors[0]].get_device(),  # type: ignore[union-attr]
            *options.values(),
            *[arguments[place].dtype for place in tensors],  # type: ignore[union-attr]
            *[values[place] & 15 == 0 for place in aligned],
            *[values[place] > _MAX_INT32 for place in integers],
            *[1 if values[place] == 1 else values[place] & 15 == 0 and 16 for place in counts],
        )
        compiled = self._compiled.get(key)
        if compiled is not None:
            values += [options[name] for name in self._constants]
            compiled[(*grid, 1, 1)[:3]](*values)
            return
        with PREPARATION.one():
            compiled = self._kernel[tuple(grid)](*arguments, **options)
        if compiled is not None:  # None if kernels are only compiled, for another device
            self._compiled[key] = compiled

    def _places_of(self, arguments: Sequence[Tensor | float]) -> tuple[list[int], list[int], list[int], list[int]]:
        tensors = [place for place, argument in enumerate(arguments) if isinstance(argument, Tensor)]
        integers = [place for place, argument in enumerate(arguments) if isinstance(argument, int)]
        aligned, counts = ([place for place in places if self._specialized[place]] for places in (tensors, integers))
        return tensors, aligned, integers, counts


def kernel(do_not_specialize: Sequence[str] = ()) -> Callable[[Callable[..., None]], Kernel]:
    """Decorator that turns a function into a `Kernel`.

    do_not_specialize: parameters that change from step to step. Triton compiles no variants for their values.
    """
    return lambda function: Kernel(triton.jit(do_not_specialize=list(do_not_specialize))(function))


SMALLEST_TILE = 16
"""Smallest number of rows, columns or inputs of a matrix product (`tl.dot`)."""


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


def tile_width(number: int) -> int:
    """Smallest width of a tile that holds `number` columns: a power of two, at least SMALLEST_TILE."""
    return max(SMALLEST_TILE, power_of_two(number))


def warps(elements: int, per_warp: int = 512, most: int = 16) -> int:
    """Number of warps of a program that holds `elements` numbers at once. A power of two.

    per_warp: desired number of elements per warp. most: largest result.
    """
    return min(most, max(1, power_of_two(-(-elements // per_warp))))


def is_float32(dtype: torch.dtype) -> bool:
    """Whether `dtype` is float32. Products of float32 run without matrix units, and their tiles need more registers."""
    return dtype == torch.float32


def pipeline_stages(elements: int, dtype: torch.dtype, is_paged: bool) -> int:
    """Stages of the loop over tiles of keys. With two or more, a tile is loaded while the previous tile is computed.

    elements: size of one key tile, in elements. Tiles of more than 16 KB get one stage: two key tiles and two value
        tiles would need more than 99 KB of shared memory.
    is_paged: whether the loop also loads the addresses of the keys. Triton then needs one more stage; otherwise it
        pipelines nothing.
    """
    if elements * dtype.itemsize > 16 * 1024:
        return 1
    return 3 if is_paged else 2
