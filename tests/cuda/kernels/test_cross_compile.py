"""Compile the kernels for devices that are not there: no spilled registers, wide loads, no compilation in service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cuda.kernels.cross_compile import (
    CASES,
    NEEDS_FP8,
    OTHER_STEPS,
    PLANTED_NARROW_LOADS,
    PLANTED_SPILL,
    Compiled,
)

HAVE_NO_MATRIX_PRODUCTS = (
    "add and RMS norm",
    "add and layer norm",
    "rotation and cache write",
    "rotation",
    "cache write",
    "cache write, int8",
    "cache write, fp8",
    "gated activation",
    "top k of logits",
    "draw",
    "choice of beams",
    "slots of beams",
    "grouping by expert",
)
"""Cases that are compiled for one capability: matrix products differ most between generations."""

QUICK = ("decode, LLaMA 8B", "int4, one row", "fixed order, few rows", PLANTED_SPILL, PLANTED_NARROW_LOADS)
ALL = (*CASES, PLANTED_SPILL, PLANTED_NARROW_LOADS)

MAX_SHARED_BYTES = {80: 99 * 1024, 90: 227 * 1024}
"""Shared memory of a program. Kernels for compute capability 8.0 run on 8.6 and 8.9 too, which have 99 KB."""

MIN_WIDE_SHARE = 0.5
"""Smallest share of the bytes that the load instructions of a kernel read in loads of 16 bytes."""

READS_LITTLE = frozenset({"_order_kernel", "_cut_kernel", "_choose_kernel", "_follow_kernel", "_write_rounded_kernel"})
"""Kernels that read a few kilobytes, or one head of 256 bytes in each program, with one warp."""

READS_NUMBERS_ALONE = frozenset(
    {
        "encoder, T5",
        *(name for name in CASES if name.startswith(("decode", "prefill")) and "cache" in name),
    }
)
"""Cases that load some numbers alone and the others in wide loads: the bias of each score, or the scales of each key.
"""


def faults(one: Compiled) -> list[str]:
    """Resources of a kernel that would make it slow, or that no device has."""
    found = []
    if one.stack or one.local:
        found.append(f"spills {one.stack + one.local} bytes")
    if one.shared > MAX_SHARED_BYTES[one.capability]:
        found.append(f"needs {one.shared} bytes of shared memory")
    least = MIN_WIDE_SHARE / 2 if one.case in READS_NUMBERS_ALONE else MIN_WIDE_SHARE
    if one.wide_share < least and one.kernel not in READS_LITTLE:
        found.append(f"loads {one.wide_share:.0%} of its bytes in loads of 16 bytes")
    return found


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((80, QUICK), id="sm_80"),
        pytest.param((90, QUICK), id="sm_90"),
        pytest.param(
            (80, [name for name in ALL if name not in NEEDS_FP8]), id="sm_80, all", marks=pytest.mark.many_shapes
        ),
        pytest.param(
            (90, [name for name in ALL if name not in HAVE_NO_MATRIX_PRODUCTS]),
            id="sm_90, products",
            marks=pytest.mark.many_shapes,
        ),
    ],
)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    capability, cases = request.param
    return compile_in_new_process(capability, cases, tmp_path_factory.mktemp("triton"))


def compile_in_new_process(capability: int, cases: Sequence[str], cache: Path) -> list[Compiled]:
    """Compile cases in a process of its own: Triton interprets in this one."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-m", "tests.cuda.kernels.cross_compile", str(capability), *cases]
    root = Path(__file__).parents[3]
    output = subprocess.run(command, env=environment, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout
    results = [Compiled(**fields) for fields in json.loads(output)]
    assert {result.case for result in results} == set(cases)
    return results


def test_kernels_have_no_faults(compiled: list[Compiled]) -> None:
    found = {
        f"{kernel.case}, {kernel.kernel}": faults(kernel)
        for kernel in compiled
        if "planted" not in kernel.case and faults(kernel)
    }
    assert not found


def test_planted_faults_are_found(compiled: list[Compiled]) -> None:
    found = {kernel.case: " ".join(faults(kernel)) for kernel in compiled if "planted" in kernel.case}
    assert "spills" in found[PLANTED_SPILL] and "loads" in found[PLANTED_NARROW_LOADS]


def test_other_steps_compile_nothing(compiled: list[Compiled]) -> None:
    """Steps with other rows, lengths and addresses run the kernels of the first step."""
    steps = {
        case: [{kernel.key for kernel in compiled if kernel.case == case and kernel.step == step} for step in range(2)]
        for case in {kernel.case for kernel in compiled} & set(OTHER_STEPS)
    }
    assert steps and all(later and later <= first for first, later in steps.values()), steps
