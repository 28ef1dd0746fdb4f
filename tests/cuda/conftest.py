"""Fixtures of the tests of the CUDA backend. Without triton, all these tests are skipped."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.conftest import _exact_float32_on_one_thread, device, pairs

__all__ = ["_exact_float32_on_one_thread", "device", "pairs"]

_HAS_TRITON = importlib.util.find_spec("triton") is not None


class ModuleWithoutTriton(pytest.Module):
    """A module of tests that cannot be imported."""

    def collect(self) -> list[pytest.Item]:
        pytest.skip(
            "triton is not installed; it is part of the extra `dev` on Linux with x86-64", allow_module_level=True
        )


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if _HAS_TRITON or module_path.stem == "test_without_triton":
        return None
    return ModuleWithoutTriton.from_parent(parent, path=module_path)


@pytest.fixture(scope="session", autouse=True)
def _exact_products() -> Iterator[None]:
    """Make Triton's interpreter sum products in float64, so that their bits do not depend on the place of a row.

    The float32 product of OpenBLAS, which numpy calls, rounds a row differently at another place of the same matrix on
    some processors (its kernels for Haswell and Zen). A device does not, and tests of the kernels compare bits.
    """
    if not _HAS_TRITON:
        yield
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    original = InterpreterBuilder.create_dot

    def create_dot(builder: Any, a: Any, b: Any, sums: Any, *others: Any) -> Any:
        if a.data.dtype not in (np.float16, np.float32):
            return original(builder, a, b, sums, *others)
        product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
        return TensorHandle(product.astype(sums.data.dtype) + sums.data, sums.dtype.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", create_dot)
        yield
