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
def _exact_interpreter() -> Iterator[None]:
    """Correct two properties of Triton's interpreter that a device does not have.

    Products are summed in float64, so that their bits do not depend on the place of a row: the float32 product of
    OpenBLAS, which numpy calls, rounds a row differently at another place of the same matrix on some processors (its
    kernels for Haswell and Zen). Numbers of bfloat16, which numpy does not have, are converted with correct rounding,
    and multiplied as numbers; the interpreter truncates them, and multiplies their bits as integers.
    """
    if not _HAS_TRITON:
        yield
        return
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    product, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def as_floats(x: Any) -> Any:
        if x.dtype.scalar == tl.bfloat16:
            return (x.data.astype(np.uint32) << 16).view(np.float32)
        return x.data

    def create_dot(builder: Any, a: Any, b: Any, sums: Any, *others: Any) -> Any:
        one, other = as_floats(a), as_floats(b)
        if one.dtype not in (np.float16, np.float32):
            return product(builder, a, b, sums, *others)
        total = np.matmul(one.astype(np.float64), other.astype(np.float64))
        return TensorHandle(total.astype(sums.data.dtype) + sums.data, sums.dtype.scalar)

    def cast_impl(builder: Any, x: Any, to: Any) -> Any:
        source, target = x.dtype.scalar, to.scalar
        if source == target or tl.bfloat16 not in (source, target):
            return cast(builder, x, to)
        wide = as_floats(x).astype(np.float32)
        if source == tl.bfloat16:
            return cast(builder, TensorHandle(wide, tl.float32), to)
        # By numpy, because the tests of captured steps forbid torch to convert numbers on the host.
        bits = wide.view(np.uint32)
        nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return TensorHandle(np.where(np.isnan(wide), 0x7FC0, nearest).astype(np.uint16), tl.bfloat16)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", create_dot)
        patch.setattr(InterpreterBuilder, "cast_impl", cast_impl)
        yield
