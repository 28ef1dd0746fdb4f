"""Memory in huge pages: contents, sizes, lifetime, and the pages themselves if the system has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from models.backends.huge_pages import HUGE_PAGE_BYTES, empty_in_huge_pages, map_in_huge_pages

POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_bytes(address):
    """Number of bytes in huge pages of the memory mapping that contains an address, from /proc/self/smaps."""
    is_here, found = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first:
            start, end = (int(text, 16) for text in first.split("-"))
            is_here = start <= address < end
        elif is_here and first in ("AnonHugePages:", "ShmemPmdMapped:"):
            found += int(rest[0]) << 10
    return found


def is_mapped(address):
    spans = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(start, 16) <= address < int(end, 16) for start, end in spans)


@pytest.mark.parametrize("count", [1, 1000, HUGE_PAGE_BYTES // 2, HUGE_PAGE_BYTES // 2 + 7, 3 * HUGE_PAGE_BYTES - 1])
def test_empty_memory(count):
    found = empty_in_huge_pages(count, torch.empty(0), torch.int16).fill_(3)
    assert found.shape == (count,) and found.dtype == torch.int16 and (found == 3).all()
    assert found.data_ptr() % 64 == 0 and empty_in_huge_pages(5, torch.empty(0, device="meta")).is_meta


@pytest.mark.skipif(not POLICY.exists() or "[never]" in POLICY.read_text(), reason="the system has no huge pages")
def test_the_pages_that_a_weight_fills_are_huge():
    torch.ones(6 * HUGE_PAGE_BYTES, dtype=torch.uint8)  # afterwards the allocator has memory in small pages
    found = empty_in_huge_pages(4 * HUGE_PAGE_BYTES + 5, torch.empty(0), torch.uint8).fill_(1)
    assert huge_bytes(found.data_ptr()) >= 4 * HUGE_PAGE_BYTES


def tensors_of_a_region(size):
    """Allocate tensors of `size` bytes until a new region is full. Returns the tensors of that region.

    A new region does not begin exactly where a tensor of the previous one ends, because unmapped memory lies between.
    """
    tensors = [empty_in_huge_pages(size, torch.empty(0), torch.uint8)]

    def begins_a_region():
        return tensors[-1].data_ptr() != tensors[-2].data_ptr() + size

    def add():
        tensors.append(empty_in_huge_pages(size, torch.empty(0), torch.uint8))

    add()
    while not begins_a_region():
        add()
    del tensors[:-1]
    add()
    while not begins_a_region():
        add()
    return tensors[:-1]


@pytest.mark.skipif(not POLICY.exists() or "[never]" in POLICY.read_text(), reason="the system has no huge pages")
def test_small_weights_lie_in_huge_pages_together():
    size = HUGE_PAGE_BYTES // 4
    weights = tensors_of_a_region(size)[:24]  # six huge pages
    for number, weight in enumerate(weights):
        weight.fill_(number)
    assert all((weight == number).all() for number, weight in enumerate(weights))
    assert huge_bytes(weights[0].data_ptr()) >= 6 * HUGE_PAGE_BYTES


def test_a_region_stays_until_its_last_tensor_is_gone():
    tensors = tensors_of_a_region(9 * HUGE_PAGE_BYTES)
    address = tensors[0].data_ptr()
    while len(tensors) > 1:
        del tensors[0]
        assert is_mapped(address)
    tensors[0].fill_(1)
    tensors.clear()
    assert not is_mapped(address)


@pytest.mark.parametrize("size", [1, 5000, 2 * HUGE_PAGE_BYTES, 2 * HUGE_PAGE_BYTES + 5000])
def test_a_mapped_file(size):
    descriptor = os.memfd_create("weights")
    content = torch.randint(256, (size,), dtype=torch.uint8)
    os.write(descriptor, content.numpy().tobytes())
    mapped = map_in_huge_pages(descriptor, size)
    os.close(descriptor)
    tensor = torch.frombuffer(mapped, dtype=torch.uint8, count=size)
    address = tensor.data_ptr()
    del mapped
    assert torch.equal(tensor, content) and is_mapped(address)
    del tensor
    assert not is_mapped(address)


def test_a_file_that_cannot_be_mapped():
    with pytest.raises(OSError, match="cannot be mapped"):
        map_in_huge_pages(-1, 4096)
