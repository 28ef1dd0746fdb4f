"""The compiled kernels compute with the threads of torch, in the OpenMP runtime that torch has loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.backends.cpu import library, openmp
from tests.e2e.conftest import REPOSITORY
from tests.models import openmp_pool


def check_one_pool(python: Path | str, root: Path) -> Path:
    """Check that a new process has a single OpenMP runtime. Returns the path of its kernel library.

    python: interpreter of the process. root: directory from which it imports `models`.
    """
    done = subprocess.run(
        [python, openmp_pool.__file__],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["runtimes"]) == 1, "one OpenMP runtime, which is that of torch"
    after_torch, after_kernels = found["threads"]
    assert after_torch == after_kernels >= openmp_pool.THREADS, "the kernels started threads of their own"
    return Path(found["kernels"])


@pytest.mark.skipif(library.load() is None, reason="no compiled kernels")
def test_torch_and_the_kernels_have_one_pool_of_threads() -> None:
    assert check_one_pool(sys.executable, REPOSITORY).is_relative_to(REPOSITORY)


def test_the_kernels_name_no_runtime() -> None:
    """The kernel library does not depend on an OpenMP runtime by name.

    With a dependency on `libgomp.so.1`, it would load a second runtime if that of torch has another name.
    """
    path = Path(library.loaded()._name)
    assert b"libgomp.so" not in path.read_bytes() and openmp.runtime_of_torch().exists()


def test_a_torch_without_a_runtime_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(OSError, match="no OpenMP runtime"):
        openmp.runtime_of_torch()
