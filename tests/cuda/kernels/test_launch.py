"""Launches find the compiled kernel by what Triton compiles it for, and give it addresses and numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton.language as tl
from triton.runtime.jit import JITFunction

from models.backends.cuda.kernels.launch import Kernel
from models.backends.kernel_preparation import PREPARATION


def _add(x, y, count, step, scale, TILE: tl.constexpr):
    pass


class Compiled:
    """Stands for a kernel compiled by Triton, and records its launches."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *values: self.launches.append((grid, *values))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Compiled]:
    """The kernels that Triton was asked for. It launches them itself."""
    found: list[Compiled] = []

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Compiled:
        found.append(Compiled())
        return found[-1]

    monkeypatch.setattr(JITFunction, "run", run)
    return found


def _kernel() -> Kernel:
    return Kernel(JITFunction(_add, do_not_specialize=["y", "step"]))


X = torch.zeros(64)


def test_a_second_launch_gives_addresses_and_constants(compiled: list[Compiled]) -> None:
    kernel, other = _kernel(), torch.ones(64)
    kernel[(3,)](X, X, 32, 5, 0.5, TILE=16, num_warps=4)
    kernel[2, 7](other, X, 48, 6, 0.25, TILE=16, num_warps=4)
    (one,) = compiled
    assert one.launches == [((2, 7, 1), other.data_ptr(), X.data_ptr(), 48, 6, 0.25, 16)]


def test_a_kernel_is_prepared_at_its_first_launch(compiled: list[Compiled]) -> None:
    kernel, before = _kernel(), PREPARATION.num_kernels
    for _ in range(3):
        kernel[(3,)](X, X, 32, 5, 0.5, TILE=16, num_warps=4)
    assert PREPARATION.num_kernels == before + 1 and PREPARATION.since is None
    kernel[(3,)](X, X, 32, 5, 0.5, TILE=32, num_warps=4)
    assert PREPARATION.num_kernels == before + 2


@pytest.mark.parametrize(
    ("arguments", "constants"),
    [
        ((X.half(), X, 32, 5, 0.5), {}),
        ((X[1:], X, 32, 5, 0.5), {}),
        ((X, X, 33, 5, 0.5), {}),
        ((X, X, 1, 5, 0.5), {}),
        ((X, X, 1 << 32, 5, 0.5), {}),
        ((X, X, 32, 1 << 32, 0.5), {}),
        ((X, X, 32, 5, 0.5), {"TILE": 32}),
        ((X, X, 32, 5, 0.5), {"num_warps": 8}),
    ],
    ids=["dtype", "alignment", "no multiple of 16", "one", "64 bits", "64 bits, not specialised", "tile", "warps"],
)
def test_another_kernel_is_compiled(compiled: list[Compiled], arguments: tuple, constants: dict[str, int]) -> None:
    kernel, options = _kernel(), {"TILE": 16, "num_warps": 4}
    kernel[(1,)](X, X, 32, 5, 0.5, **options)
    kernel[(1,)](*arguments, **(options | constants))
    assert len(compiled) == 2
    kernel[(1,)](*arguments, **(options | constants))
    assert len(compiled) == 2 and len(compiled[1].launches) == 1


def test_arguments_that_change_from_step_to_step_compile_nothing(compiled: list[Compiled]) -> None:
    kernel = _kernel()
    for y, step in ((X, 5), (X[1:], 16), (X[2:], 1)):
        kernel[(1,)](X, y, 32, step, 0.5, TILE=16, num_warps=4)
    assert len(compiled) == 1 and len(compiled[0].launches) == 2
