"""Compile all kernels for devices that are not there: no spilled registers, and loads of 16 bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.kernels.cross_compile import CASES, HAVE_NO_MATRIX_PRODUCTS, PLANTED, Compiled

pytestmark = pytest.mark.cross_compile

CASES_OF = {80: [*CASES, PLANTED], 90: [name for name in (*CASES, PLANTED) if name not in HAVE_NO_MATRIX_PRODUCTS]}

MAX_SHARED_BYTES = 163 * 1024
"""Shared memory that a program can have on compute capability 8.0."""

READS_LITTLE = {("top k of logits", "_merge_kernel")}
"""Kernels that read a few kilobytes per row, in no particular order."""


def spills(compiled: list[Compiled]) -> set[str]:
    """Cases with a kernel that spills registers, or needs more shared memory than there is."""
    return {one.case for one in compiled if one.stack or one.local or one.shared > MAX_SHARED_BYTES}


@pytest.fixture(scope="module", params=CASES_OF, ids="sm_{}".format)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    # A process of its own: Triton interprets in this one.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    command = [sys.executable, "-m", "tests.cuda.kernels.cross_compile", str(request.param), *CASES_OF[request.param]]
    root = Path(__file__).parents[3]
    output = subprocess.run(command, env=environment, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout
    results = [Compiled(**one) for one in json.loads(output)]
    assert {one.case for one in results} == set(CASES_OF[request.param])
    return results


def test_no_kernel_spills_but_the_planted_one(compiled: list[Compiled]) -> None:
    assert spills(compiled) == {PLANTED}


def test_kernels_load_16_bytes_at_once(compiled: list[Compiled]) -> None:
    assert {(one.case, one.kernel) for one in compiled if not one.has_wide_loads} <= READS_LITTLE
