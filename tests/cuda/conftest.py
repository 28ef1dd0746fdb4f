"""Fixtures of the tests of the CUDA backend, which are skipped where triton is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

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
