"""The GPU benchmark runs on a CPU with tiny models, continues after an interruption, and counts bytes exactly."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import random_checkpoints
from benchmarks.contestants import http_server, ours
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import goals, page, parity, peers, results, settings
from benchmarks.gpu.device import Limits
from benchmarks.gpu.goals import GOALS, Goal
from benchmarks.gpu.row import Result, Row, Setup, Skipped
from benchmarks.gpu.stages import STAGES, StageEntry
from benchmarks.random_models import config_of, decode_cost, layers_cost, random_model
from models.checkpoint.loader import load_model

LIMITS = Limits("cpu", "float32", 1e9, 1e9)
CPU = torch.device("cpu")


SAME_CODE = {"engine-8b", "peers-8b", "prefill-1b", "decode-1b", "kernels-8b"}
"""Stages that run the code of one tested stage with the sizes of another one, so these are not run."""


class InProcess(ours.Entry):
    """Runs the engine in this process instead of a server. tests/test_benchmarks.py starts a real server."""

    def __init__(self, device: Any, kv_bytes: int = ours.KV_BYTES, flags: Any = ()) -> None:
        super().__init__(device, kv_bytes)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Compute with one thread. The benchmark forks, and a forked process would wait for ever for the others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(out: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """Run the benchmark. Returns the results by the names of their table rows."""
    gpu.main(["--device", "cpu", "--tiny", "--out", str(out), *arguments])
    (found,) = json.loads((out / "gpu.json").read_text()).values()
    return found["rows"]


def test_all_stages_run_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "Entry", InProcess)
    fake_pytest = tmp_path / "fake_pytest"
    fake_pytest.write_text("#!/bin/sh\necho 'tests/a.py::test_b PASSED'\necho 'tests/a.py::test_c FAILED'\n")
    fake_pytest.chmod(0o700)
    monkeypatch.setattr(parity, "INTERPRETER", str(fake_pytest))
    for name, entry in list(STAGES.items()):  # a busy machine may give this process little time
        monkeypatch.setitem(STAGES, name, entry._replace(row_seconds=550))  # type: ignore[arg-type]
    chosen = [name for name in STAGES if name not in SAME_CODE]
    rows = run(tmp_path, "--budget", "550", "--only", *chosen)
    errors = tmp_path / "errors.txt"
    names = page.row_names(Setup(tmp_path, tmp_path).tiny_sizes())
    assert list(rows) == [name for stage in chosen for name in names[stage]]
    functions = [(STAGES[name].module, STAGES[name].function) for name in SAME_CODE]
    assert set(functions) <= {(STAGES[name].module, STAGES[name].function) for name in chosen}
    failed = {name: entry for name, entry in rows.items() if entry["state"] in ("failed", "cut")}
    assert not failed, errors.read_text() if errors.exists() else failed
    skipped = {name: entry["error"] for name, entry in rows.items() if entry["state"] == "skipped"}
    assert all(error.startswith("this version ") for error in skipped.values()), skipped
    found = {name: Result(**entry["result"]) for name, entry in rows.items() if entry["state"] == "measured"}
    assert all(result.value > 0 for name, result in found.items() if "difference" not in name)
    assert all(result.share is None or result.share > 0 for result in found.values())
    passed = found["tests that passed on the device"]
    assert (passed.value, passed.unit) == (1, "of 2") and "failed: tests/a.py::test_c" in passed.note
    assert found["story: difference from the CPU"].value == 0
    assert found["sentiment: difference from the CPU"].value == 0
    for compared in (
        "llama-1b, engine, 3 streams",
        "llama-1b, HTTP, 3 streams",
        "llama-8b in int8, decode, 3 rows, context 40",
        "bert-base, rank, 6 texts beside 3 streams of llama-1b",
        "opus-mt, HTTP, 2 sentences, 4 beams",
        "llama-8b, KV cache in int8, 3 streams",
    ):
        assert found[compared].share is not None, compared
    text = (tmp_path / "gpu.md").read_text()
    assert all(f"| {name} | cpu |" in text for name in rows)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that replaces all stages by one with the given rows: `stage(row_seconds, row=function, ...)`."""

    def only(row_seconds: float, **measures: Callable[[], Result]) -> None:
        def rows(setup: Setup, limits: Limits) -> Iterator[Row]:
            for name, measure in measures.items():
                yield Row(name, measure)

        monkeypatch.setitem(sys.modules, "benchmarks.gpu.made", SimpleNamespace(rows=rows))
        for name in list(STAGES):
            monkeypatch.delitem(STAGES, name)  # type: ignore[attr-defined]
        monkeypatch.setitem(STAGES, "made", StageEntry("Made", "made", "rows", row_seconds=row_seconds))  # type: ignore[arg-type]
        monkeypatch.setattr(gpu, "MIN_SECONDS", 0.2)

    return only


def one() -> Result:
    return Result(1.0, "s")


def test_a_run_that_is_cut_goes_on_at_the_next_row(stage, tmp_path: Path) -> None:
    measured = tmp_path / "measured"

    def first() -> Result:
        with measured.open("a") as file:
            file.write("first\n")
        return one()

    stage(60, first=first, slow=lambda: time.sleep(60), last=one)
    rows = run(tmp_path, "--budget", "3")
    assert {name: entry["state"] for name, entry in rows.items()} == {"first": "measured", "slow": "cut"}
    rows = run(tmp_path, "--budget", "3")
    assert rows["slow"]["cuts"] == 2 and "last" not in rows
    rows = run(tmp_path, "--budget", "20")
    assert rows["slow"]["state"] == "cut" and rows["last"]["state"] == "measured"
    assert measured.read_text() == "first\n", "a measured row is not measured again"
    run(tmp_path, "--budget", "3", "--again")
    assert measured.read_text() == "first\nfirst\n"


def test_results_of_an_earlier_run_elsewhere_are_not_measured_again(stage, tmp_path: Path) -> None:
    stage(60, first=one, second=one)
    run(tmp_path / "a", "--budget", "20")
    earlier = tmp_path / "a" / "gpu.json"
    data = json.loads(earlier.read_text())
    del data["cpu"]["rows"]["second"]
    data["cpu"]["rows"]["first"]["date"] = "2020-01-01"
    earlier.write_text(json.dumps(data))
    rows = run(tmp_path / "b", "--budget", "20", "--earlier", str(earlier))
    assert rows["first"]["date"] == "2020-01-01" and rows["second"]["state"] == "measured"


def test_results_of_another_device_are_kept_and_not_used(stage, tmp_path: Path) -> None:
    stage(60, first=one)
    entry = {"stage": "made", "state": "measured", "date": "2020-01-01", "result": {"value": 7.0, "unit": "s"}}
    device = {"device": {"name": "GPU"}, "limits": LIMITS.plain(), "rows": {"first": entry}}
    (tmp_path / "gpu.json").write_text(json.dumps({"GPU": device}))
    gpu.main(["--device", "cpu", "--tiny", "--out", str(tmp_path), "--budget", "20"])
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["GPU"] == device and found["cpu"]["rows"]["first"]["result"]["value"] == 1.0
    text = (tmp_path / "gpu.md").read_text()
    assert "| first | GPU | 7 s |" in text and "| first | cpu | 1 s |" in text


def test_a_row_that_hangs_is_ended_and_the_later_ones_are_measured(stage, tmp_path: Path) -> None:
    stage(1.0, first=one, hangs=lambda: time.sleep(60), last=one)
    rows = run(tmp_path, "--budget", "60")
    assert {name: entry["state"] for name, entry in rows.items()} == {
        "first": "measured",
        "hangs": "failed",
        "last": "measured",
    }
    assert rows["hangs"]["error"] == "it took more than 1 s"


def test_a_row_that_fails_or_kills_its_process_stops_no_other(stage, tmp_path: Path) -> None:
    def fails() -> Result:
        raise RuntimeError("the first line\nthe second line")

    def dies() -> Result:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
        return one()

    def skips() -> Result:
        raise Skipped("there is no such package")

    stage(60, fails=fails, dies=dies, skips=skips, last=one)
    rows = run(tmp_path, "--budget", "60")
    assert rows["fails"]["error"] == "RuntimeError: the first line"
    assert rows["dies"]["error"] == "its process ended with status -9"
    assert (rows["skips"]["state"], rows["skips"]["error"]) == ("skipped", "there is no such package")
    assert rows["last"]["state"] == "measured"
    assert "the second line" in (tmp_path / "errors.txt").read_text()


def test_a_missing_package_fails_only_the_stages_that_need_it(stage, tmp_path: Path, monkeypatch) -> None:
    stage(60, last=one)
    monkeypatch.setitem(STAGES, "missing", StageEntry("Made", "no_such_module", "rows"))  # type: ignore[arg-type]
    rows = run(tmp_path, "--budget", "60")
    assert rows["missing"]["error"] == "ModuleNotFoundError: No module named 'benchmarks.gpu.no_such_module'"
    assert rows["last"]["state"] == "measured"


def test_peers_without_their_package_are_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    setup = Setup(Path(), Path()).tiny_sizes()
    for row in peers.decoders("llama-1b")(setup, LIMITS):
        with pytest.raises(Skipped, match="transformers cannot be imported: "):
            row.measure()


def test_settings_that_this_version_does_not_have_are_skipped() -> None:
    with pytest.raises(Skipped, match="this version has no --no-such-setting"):
        settings.check_flags({"no_such_setting": "true"})
    with pytest.raises(Skipped, match=r"this version does not take .*block_size"):
        settings.check_flags({"block_size": "many"})
    settings.check_flags({"block_size": "16", "speculative": "ngram", "kv_cache_dtype": "int8"})


def test_results_are_the_same_after_a_file() -> None:
    for result in (Result(0.0, ""), Result(1.5, "ms", 1e-3, 2e-3, 2.0, "a note")):
        assert Result(**json.loads(json.dumps(result.plain()))) == result


def test_every_goal_is_that_of_a_row() -> None:
    names = {name for rows in page.row_names(Setup(Path(), Path())).values() for name in rows}
    assert set(GOALS) <= names, set(GOALS) - names
    assert sum(map(len, page.row_names(Setup(Path(), Path())).values())) == len(names), "names are unique"


@pytest.mark.parametrize(
    ("goal", "result", "reached"),
    [
        (Goal(95, "%"), Result(1.0, "tokens/s", share=0.95), True),
        (Goal(95, "%"), Result(99.0, "tokens/s", share=0.94), False),
        (Goal(95, "%"), Result(99.0, "tokens/s"), False),
        (Goal(1.6, "times"), Result(1.0, "tokens/s", share=1.61), True),
        (Goal(0.6, "ms", is_most=True), Result(0.59, "ms"), True),
        (Goal(0.6, "ms", is_most=True), Result(0.61, "ms"), False),
        (Goal(60_000, "tokens/s"), Result(9_354.0, "tokens/s"), False),
    ],
)
def test_goals_are_compared_with_the_share_or_the_value(goal: Goal, result: Result, reached: bool) -> None:
    assert goal.is_reached(result) is reached


def test_the_page_has_the_stored_results() -> None:
    text = page.PAGE.read_text()
    found, published = results.read([page.RESULTS]), json.loads(page.PUBLISHED.read_text())
    assert page.page(text, found, published) == text, "run `python -m benchmarks.gpu.page`"
    assert all(f"| {row} | " in text for row in goals.GOALS)
    assert all(entry["source"].startswith("https://") for entry in published)
    with pytest.raises(ValueError, match="no marks of the table 'limits'"):
        page.page("", found, published)


def test_merging_keeps_what_was_measured() -> None:
    measured = {"stage": "s", "state": "measured", "date": "1", "result": {"value": 1.0, "unit": "s"}}
    later = measured | {"date": "2"}
    failed = {"stage": "s", "state": "failed", "date": "3", "error": "e"}
    kept: results.Results = {}
    results.merge(kept, {"GPU": {"rows": {"a": measured, "b": failed}}})
    results.merge(kept, {"GPU": {"rows": {"a": failed, "b": later}}, "other": {"rows": {"a": failed}}})
    assert kept == {"GPU": {"rows": {"a": measured, "b": later}}, "other": {"rows": {"a": failed}}}
    results.merge(kept, {"GPU": {"rows": {"a": later}}})
    assert kept["GPU"]["rows"]["a"] == later


def test_a_decode_step_reads_each_weight_once_and_the_keys_and_values_of_its_rows() -> None:
    hf = config_of("llama-8b", tiny=True)
    model = random_model(hf, torch.bfloat16, CPU)
    hidden, middle, vocab, layers = 64, 128, 400, 2
    heads, kv_heads = 4 * 16, 2 * 16
    matrices = layers * (2 * hidden * heads + 2 * hidden * kv_heads + 3 * hidden * middle)
    norms, head = (2 * layers + 1) * hidden, vocab * hidden
    cost = decode_cost(model, 3, 10, 0, torch.bfloat16)
    assert cost.bytes == 2 * (matrices + norms + head) + 3 * 10 * 2 * layers * 2 * kv_heads
    assert cost.operations == 2 * 3 * (matrices + head) + 4 * layers * heads * 3 * 10


def test_a_tied_head_is_read_and_cross_attention_reads_its_cache() -> None:
    model = random_model(config_of("t5-large", tiny=True), torch.float32, CPU)
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


def test_a_step_reads_the_experts_that_its_tokens_choose() -> None:
    """A token chooses two of four experts: one token reads half of the experts, two tokens on average 3/4 of them."""
    model = random_model(config_of("moe-7b", tiny=True), torch.float32, CPU)
    assert model.decoder is not None
    experts = sum(tensor.nbytes for name, tensor in model.decoder.named_parameters() if ".experts." in name)
    assert experts == 4 * 2 * 4 * 3 * 64 * 64
    one_token, two_tokens = (layers_cost(model, model.decoder, tokens, 0, 0) for tokens in (1, 2))
    assert two_tokens.bytes - one_token.bytes == pytest.approx(experts / 4)
    assert two_tokens.operations == 2 * one_token.operations


def test_an_fp8_checkpoint_has_the_weights_of_its_codes(tmp_path: Path) -> None:
    hf = config_of("llama-8b", tiny=True)
    random_checkpoints.write(tmp_path, hf, torch.float32, CPU, "fp8")
    model = load_model(tmp_path, torch.float32, CPU)
    assert model.checkpoint_format.startswith("fp8")
    table = model.transformer.decoder.tokens.weight
    assert 0.01 < float(table.std()) < 0.03


def test_names_of_tests_are_read_from_every_form_of_line() -> None:
    lines = (
        "tests/a/test_b.py::test_c[x y] PASSED                [ 10%]",
        "[gw0] [ 10%] FAILED tests/a/test_b.py::test_c[x y] ",
        "FAILED tests/a/test_b.py::test_c[x y] - AssertionError: 1",
    )
    assert {parity._name(line) for line in lines} == {"tests/a/test_b.py::test_c[x y]"}


def test_parity_without_tests_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimpleNamespace(wait=lambda seconds: None)
    monkeypatch.setattr(parity.subprocess, "Popen", lambda *arguments, **options: process)
    (row,) = parity.parity(Setup(tmp_path, tmp_path).tiny_sizes(), LIMITS)
    with pytest.raises(RuntimeError, match="no test ran"):
        row.measure()
