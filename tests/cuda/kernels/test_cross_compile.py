"""Compile all kernels for devices that are not there: no spilled registers, and loads of 16 bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cuda.kernels.cross_compile import CASES, PLANTED, Compiled

CAPABILITIES = (80, 90)
MAX_SHARED_BYTES = 163 * 1024
"""Shared memory that a program can have on compute capability 8.0."""


def spills(compiled: list[Compiled]) -> list[Compiled]:
    """Kernels that spill registers, or need more shared memory than there is."""
    return [one for one in compiled if one.stack or one.local or one.shared > MAX_SHARED_BYTES]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    # A process of its own: Triton interprets in this one.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    command = [sys.executable, "-m", "tests.cuda.kernels.cross_compile", ",".join(map(str, CAPABILITIES))]
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [Compiled(**one) for one in json.loads(output)]


def test_all_cases_are_compiled(compiled: list[Compiled]) -> None:
    assert {(one.case, one.capability) for one in compiled} == {
        (case, capability) for case in (*CASES, PLANTED) for capability in CAPABILITIES
    }


def test_no_kernel_spills_but_the_planted_one(compiled: list[Compiled]) -> None:
    assert {one.case for one in spills(compiled)} == {PLANTED}
    assert len(spills(compiled)) == len(CAPABILITIES)


def test_kernels_load_16_bytes_at_once(compiled: list[Compiled]) -> None:
    assert not [one for one in compiled if not one.has_wide_loads]
