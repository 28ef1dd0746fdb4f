"""Fixtures of the tests of the compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from models.backends import choice
from models.backends.cpu import library
from models.backends.cpu import operations as cpu_ops

ISAS = ("baseline", "v3", "v4", "v4_vnni", "v4_bf16", "v4_amx")
RUNNABLE_ISAS = [name for name in ISAS if cpu_ops.available() and library.choose_isa(name)]


@pytest.fixture
def kernels() -> None:
    """Fail the test if the kernels are not compiled."""
    assert cpu_ops.available(), "build the kernels: pip install -e ."


@pytest.fixture(params=RUNNABLE_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once with the kernels of each instruction set that the processor supports."""
    assert library.choose_isa(request.param)
    with choice.using("cpu"):
        yield request.param
    assert library.choose_isa(RUNNABLE_ISAS[-1])


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Run the test once with each dtype of the kernels."""
    return request.param
