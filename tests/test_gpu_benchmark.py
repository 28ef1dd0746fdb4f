"""The benchmark of a GPU runs on a CPU with tiny models, keeps what it has measured, and counts bytes exactly."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu, gpu_engine, gpu_parity
from benchmarks.contestants import ours
from benchmarks.gpu_device import Limits
from benchmarks.gpu_result import Result, Setup
from benchmarks.random_models import config_of, decode_cost, layers_cost, random_model

LIMITS = Limits("cpu", "float32", 1e9, 1e9)


def test_all_stages_run_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins take the place of the server, which tests/test_benchmarks.py starts, and of pytest."""
    monkeypatch.setattr(gpu_engine.http_server, "Entry", type("Entry", (ours.Entry,), {}))
    fake_pytest = tmp_path / "fake_pytest"
    fake_pytest.write_text("#!/bin/sh\necho 'tests/a.py::test_b PASSED'\necho 'tests/a.py::test_c FAILED'\n")
    fake_pytest.chmod(0o700)
    monkeypatch.setattr(gpu_parity.sys, "executable", str(fake_pytest))
    gpu.main(["--device", "cpu", "--tiny", "--out", str(tmp_path), "--budget", "300"])
    data = json.loads((tmp_path / "gpu.json").read_text())
    assert [(stage["name"], stage["status"]) for stage in data["stages"]] == [(name, "done") for name in gpu.STAGES], (
        (tmp_path / "errors.txt").read_text() if (tmp_path / "errors.txt").exists() else data
    )
    results = {result["name"]: result for stage in data["stages"] for result in stage["results"]}
    assert all(
        result["share"] > 0 and result["floor_seconds"] > 0
        for result in results.values()
        if "seconds" in result and "share" in result
    )
    passed = results["tests that passed"]
    assert (passed["value"], passed["unit"]) == (1, "of 2") and "failed: tests/a.py::test_c" in passed["note"]
    assert results["story: tokens equal to those of the CPU"]["value"] == 1
    assert results["sentiment: largest difference from the CPU"]["value"] == 0
    page = (tmp_path / "gpu.md").read_text()
    assert all(
        f"| {name} | {result['name']} |" in page
        for stage in data["stages"]
        for name in [stage["name"]]
        for result in stage["results"]
    )


@pytest.fixture
def entry_of(tmp_path: Path):
    """Function that runs a stage and returns its entry in the report."""

    def run(stage, seconds: float = 60.0) -> dict[str, object]:
        report = gpu.Report(tmp_path)
        entry = report.add_stage("one")
        gpu.run_stage(entry, report, stage, Setup(tmp_path, seconds), LIMITS)
        assert json.loads((tmp_path / "gpu.json").read_text())["stages"] == [entry]
        return entry

    return run


def test_a_stage_that_hangs_is_killed_and_its_results_are_kept(entry_of) -> None:
    def hangs(setup: Setup, limits: Limits) -> Iterator[Result]:
        yield Result("one", 1.0, "s")
        time.sleep(600)

    entry = entry_of(hangs, seconds=0.5)
    assert entry["status"] == "failed" and entry["error"] == "it took more than 0 s"
    assert entry["results"] == [{"name": "one", "value": 1.0, "unit": "s"}]


def test_a_stage_that_fails_names_its_error(entry_of) -> None:
    def fails(setup: Setup, limits: Limits) -> Iterator[Result]:
        yield Result("one", 1.0, "s")
        raise RuntimeError("the first line\nthe second line")

    entry = entry_of(fails)
    assert entry["error"] == "RuntimeError: the first line" and len(entry["results"]) == 1


def test_a_missing_package_fails_only_the_stages_that_need_it(entry_of, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu.STAGES, "one", ("no_such_module.stage", (), 60))
    assert entry_of(gpu.stage_of("one"))["error"] == "ModuleNotFoundError: No module named 'benchmarks.no_such_module'"


def test_a_stage_whose_process_dies_does_not_stop_the_run(entry_of) -> None:
    def dies(setup: Setup, limits: Limits) -> Iterator[Result]:
        import os
        import signal

        yield Result("one", 1.0, "s")
        os.kill(os.getpid(), signal.SIGKILL)

    entry = entry_of(dies)
    assert entry["error"] == "its process ended with status -9" and len(entry["results"]) == 1


def test_stages_without_time_are_listed(tmp_path: Path) -> None:
    gpu.main(["--device", "cpu", "--tiny", "--out", str(tmp_path), "--budget", "1", "--only", "decode-1b", "http-8b"])
    stages = json.loads((tmp_path / "gpu.json").read_text())["stages"]
    assert [(stage["name"], stage["status"]) for stage in stages] == [("decode-1b", "not run"), ("http-8b", "not run")]


def test_a_decode_step_reads_each_weight_once_and_the_keys_and_values_of_its_rows() -> None:
    hf = config_of("llama-8b", tiny=True)
    model = random_model(hf, torch.bfloat16, torch.device("cpu"))
    hidden, middle, vocab, layers = 64, 128, 400, 2
    heads, kv_heads = 4 * 16, 2 * 16
    matrices = layers * (2 * hidden * heads + 2 * hidden * kv_heads + 3 * hidden * middle)
    norms, head = (2 * layers + 1) * hidden, vocab * hidden
    cost = decode_cost(model, 3, 10, 0, torch.bfloat16)
    assert cost.bytes == 2 * (matrices + norms + head) + 3 * 10 * 2 * layers * 2 * kv_heads
    assert cost.operations == 2 * 3 * (matrices + head) + 4 * layers * heads * 3 * 10


def test_a_tied_head_is_read_and_cross_attention_reads_its_cache() -> None:
    model = random_model(config_of("t5-large", tiny=True), torch.float32, torch.device("cpu"))
    assert model.decoder is not None
    named = dict(model.decoder.named_parameters())
    cross = [
        tensor for name, tensor in named.items() if "cross_attention.key" in name or "cross_attention.value" in name
    ]
    assert len(cross) == 4
    table = model.decoder.tokens.weight
    without = sum(tensor.nbytes for tensor in named.values()) - sum(tensor.nbytes for tensor in cross) - table.nbytes
    assert layers_cost(model, model.decoder, 1, 1, 0).bytes == without
    assert layers_cost(model, model.decoder, 1, 1, 1).bytes == without + table.nbytes


def test_names_of_tests_are_read_from_every_form_of_line() -> None:
    lines = (
        "tests/a/test_b.py::test_c[x y] PASSED                [ 10%]",
        "[gw0] [ 10%] FAILED tests/a/test_b.py::test_c[x y] ",
        "FAILED tests/a/test_b.py::test_c[x y] - AssertionError: 1",
    )
    assert {gpu_parity._name(line) for line in lines} == {"tests/a/test_b.py::test_c[x y]"}


def test_parity_without_tests_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimpleNamespace(wait=lambda seconds: None)
    monkeypatch.setattr(gpu_parity.subprocess, "Popen", lambda *arguments, **options: process)
    with pytest.raises(RuntimeError, match="no test ran"):
        list(gpu_parity.parity(replace(Setup(tmp_path), tiny=True), LIMITS))
