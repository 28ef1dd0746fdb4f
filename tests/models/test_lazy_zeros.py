"""Large caches of zeros take memory only for the parts that are written."""

from __future__ import annotations

import psutil
import pytest
import torch

from models.backends.lazy_zeros import MIN_LAZY_BYTES, give_back_pages, lazy_zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("rows", [1, MIN_LAZY_BYTES])
def test_all_numbers_are_zero_and_can_be_written(dtype: torch.dtype, rows: int) -> None:
    found = lazy_zeros((rows, 2, 3), dtype, CPU)
    assert found.shape == (rows, 2, 3) and found.dtype == dtype and found.is_contiguous()
    assert not found.any()
    found[-1, 1] = 5
    assert found.sum(dtype=torch.float64) == 15


def test_memory_is_taken_by_writing() -> None:
    process, size = psutil.Process(), 256 << 20
    before = process.memory_info().rss
    found = lazy_zeros((16, size // 16), torch.int8, CPU)
    assert process.memory_info().rss - before < size // 4
    found[3] = 1
    written = process.memory_info().rss - before
    assert size // 16 <= written < size // 4
    del found
    assert process.memory_info().rss - before < size // 16


def test_memory_is_given_back_while_the_tensor_lives() -> None:
    process, size = psutil.Process(), 64 << 20
    found = lazy_zeros((16, size // 16), torch.int8, CPU)
    found.fill_(1)
    written = process.memory_info().rss
    give_back_pages(found)
    assert written - process.memory_info().rss > size * 3 // 4
    assert not found.any()
    found[3] = 1
    assert found.sum(dtype=torch.int64) == size // 16
    small = lazy_zeros((16, 16), torch.int8, CPU)
    small.fill_(1)
    give_back_pages(small)
    assert small.all(), "pages of small tensors belong to others too"


def test_too_much_memory_is_an_error() -> None:
    with pytest.raises((OSError, RuntimeError)):
        lazy_zeros((1 << 50,), torch.int8, CPU)
