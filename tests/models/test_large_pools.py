"""Blocks and states after the first 2^31 elements of a pool are right. A 32-bit offset would overflow there.

The pools are mapped without reserving memory, so that only the pages that are used take memory.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence

import pytest
import torch

from models.backends.choice import backend
from models.backends.operands import DeltaNumbers, SpaceNumbers
from models.backends.rounded_slots import RoundedSlots
from models.backends.torch.backend import TORCH
from tests.models.test_cpu_attention import CPU, Case, close, kernels

__all__ = ["kernels"]

LIMIT = 1 << 31
MAP_NORESERVE = 0x4000
"""Flag of mmap that reserves no memory. From asm-generic/mman-common.h; the module `mmap` has it since Python 3.13."""
ROWS = [(0, 8, 9), (1, 0, 40), (2, 60, 70)]

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs mappings that reserve nothing"),
]


def zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros whose pages take no memory until they are written."""
    size = torch.Size(shape).numel() * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)


class HighCase(Case):
    """A case whose blocks are the last ones of a large pool.

    The first blocks, where a 32-bit offset would wrap to, differ.
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__(torch.bfloat16, shape, (9, 40, 70), {})
        self.small, low = self.caches, self.tables
        self.first = LIMIT // (self.block_size * self.kv_heads * self.dim) + 7
        self.num_blocks = self.first + self.small.shape[1]
        self.expected = self.paged(ROWS)
        self.tables = low + self.first

    @property
    def slots(self) -> torch.Tensor:
        return torch.arange(self.first * self.block_size, self.num_blocks * self.block_size)

    def write(self, sides: Sequence[object]) -> None:
        """Write the keys and values of the small pool to the last blocks of the large pool.

        sides: the two tensors of the large pool, for keys and for values.
        """
        backend(self.query).write_slots(*sides, self.slots, *(side.flatten(0, 1) for side in self.small))


@pytest.mark.parametrize("shape", [(4, 2, 64), (8, 1, 128)])
def test_blocks_of_a_pool(shape: tuple[int, int, int]) -> None:
    case = HighCase(shape)
    case.caches = zeros((2, case.num_blocks, *case.small.shape[2:]), torch.bfloat16)
    assert case.caches[0].numel() > LIMIT
    wrapped = case.small.shape[1] + 7
    case.caches[:, :wrapped] = 3.0
    case.write(case.caches)
    assert torch.equal(case.caches[:, case.first :], case.small) and bool((case.caches[:, :wrapped] == 3.0).all())
    assert torch.equal(case.paged(ROWS), case.expected)
    close(case.paged(ROWS, TORCH.paged_attention), case.expected)
    backend(case.query).copy_blocks([*case.caches], [(case.first, case.first - 3, 0, case.block_size)])
    assert torch.equal(case.caches[:, case.first - 3], case.small[:, 0])


def test_blocks_of_an_int8_pool() -> None:
    case = HighCase((4, 2, 64))
    num_blocks, size, heads, dim = case.num_blocks, case.block_size, case.kv_heads, case.dim
    low = [RoundedSlots.zeros(case.small.shape[1], size, heads, dim, CPU) for _ in range(2)]
    backend(case.query).write_slots(*low, case.slots - case.first * size, *(side.flatten(0, 1) for side in case.small))
    case.caches, case.tables = low, case.tables - case.first
    expected = case.paged(ROWS)
    case.caches = [
        RoundedSlots(
            zeros((num_blocks, size, heads, dim), torch.int8), zeros((num_blocks, heads, size), torch.bfloat16), size
        )
        for _ in range(2)
    ]
    assert case.caches[0].codes.numel() > LIMIT
    case.write(case.caches)
    case.tables = case.tables + case.first
    assert torch.equal(case.paged(ROWS), expected)


@pytest.mark.parametrize("kind", ["delta", "space"])
def test_states_of_hybrids(kind: str) -> None:
    heads, dim, rows = 4, 64, 3
    first = LIMIT // (heads * dim * dim) + 5
    low, high = torch.randn(rows, heads, dim, dim), zeros((first + rows, heads, dim, dim), torch.float32)
    high[: rows + 5], high[first:] = 9.0, low
    slots = torch.arange(rows)
    few = torch.randn(heads)
    if kind == "delta":
        arguments = torch.randn(rows, 3 * heads * dim), torch.rand(rows, heads), torch.randn(rows, heads)
        numbers = DeltaNumbers(few, -few.abs(), heads)
        step = backend(low).gated_delta_step
    else:
        arguments = torch.randn(rows, heads * dim + 2 * dim), torch.rand(rows, heads)
        numbers = SpaceNumbers(few, -few.abs(), few, 1, 1.0, (0.0, 100.0))
        step = backend(low).state_space_step
    assert high.numel() > LIMIT
    expected = step(*arguments, numbers, low, slots)
    assert torch.equal(step(*arguments, numbers, high, slots + first), expected)
    assert torch.equal(high[first:], low) and bool((high[: rows + 5] == 9.0).all())
