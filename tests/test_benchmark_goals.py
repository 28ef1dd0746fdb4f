"""The goals of the benchmarks: ratios to peers and to floors, from rates that the tests write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import goals
from benchmarks.summary import Summary


def _summary(path: Path, rates: dict[str, float]) -> Summary:
    """Write results of workload B of llama-135m in float32 to `path`, and read them. rates: rate of each contestant."""
    key = {"shape": "llama-135m", "precision": "float32", "workload": "B"}
    entries = [
        {**key, "contestant": name, "runs": [{"units": rate, "seconds": 1.0, "extra": {}}]}
        for name, rate in rates.items()
    ]
    content = {"about": {"read_bytes_per_second": 1.0}, "entries": entries, "loads": [], "sections": {}}
    path.write_text(json.dumps(content))
    return Summary(path)


def test_goal_compares_with_the_best_peer(tmp_path: Path) -> None:
    rates = {"http": 260.0, "ours": 900.0, "transformers": 100.0, "openvino-genai": 200.0}
    made = _summary(tmp_path / "results.json", rates)
    (line,) = [line for line in goals.lines(made) if line.quantity == "B, llama-135m, float32"]
    assert (
        line.verdict == "reached"
        and line.ratio == pytest.approx(260 / 200 / 1.25)
        and "openvino-genai" in line.measured
    )
    slower = _summary(tmp_path / "results.json", rates | {"http": 240.0})
    (line,) = [line for line in goals.lines(slower) if line.quantity == "B, llama-135m, float32"]
    assert line.verdict == "missed"
    alone = _summary(tmp_path / "results.json", {"http": 240.0})
    (line,) = [line for line in goals.lines(alone) if line.quantity == "B, llama-135m, float32"]
    assert line.verdict == "not measured" and "no peer was measured" in line.measured


def test_goal_of_a_large_model_compares_with_llama_cpp_alone(tmp_path: Path) -> None:
    rates = {"http": 220.0, "openvino-genai": 300.0, "llama.cpp": 100.0, "llama.cpp-k": 200.0}
    made = _summary(tmp_path / "results.json", rates)
    for entry in made.entries:
        entry |= {"shape": "llama-1b", "precision": "int4", "workload": "A"}
    (line,) = [line for line in goals.lines(made) if line.quantity == "A, llama-1b, int4"]
    assert line.ratio == pytest.approx(1.0) and "llama.cpp-k 200" in line.measured


def test_goals_that_the_processor_limits(tmp_path: Path) -> None:
    """The floor is the shortest time in which the processor can compute the matrix products.

    Encoders are compared with the floor, and workload B in bfloat16 with llama.cpp or the floor.
    """
    made = _summary(tmp_path / "results.json", {"http": 150.0, "llama.cpp": 100.0})
    for entry in made.entries:
        entry |= {"shape": "llama-1b", "precision": "bfloat16"}
    profiled = {"seconds": 10.0, "products": [8.5, 8.0], "head": [1.0, 1.0]}
    made.sections["profile"] = [
        {"shape": "llama-1b", "precision": "bfloat16", "workload": "B", "attention": [0.2, None], **profiled},
        {"shape": "bert-base", "precision": "float32", "workload": "F", "attention": [1.5, 1.0], **profiled},
    ]
    lines = {line.quantity: line for line in goals.lines(made)}
    assert lines["B, llama-1b, bfloat16"].ratio == pytest.approx(0.9 / 0.88)
    assert lines["B, llama-1b, bfloat16"].measured == "150 /s; llama.cpp 100: 1.50 ×; 90% of the floor"
    encoder = lines["F, bert-base, float32, in process"]
    assert encoder.verdict == "missed" and encoder.ratio == pytest.approx(0.9 / 0.92)
    assert encoder.measured == "90%; at most 90% with attention at peak"
    assert lines["B, llama-1b, int4 over int8"].verdict == "not measured"
    del made.sections["profile"]
    lines = {line.quantity: line for line in goals.lines(made)}
    assert lines["B, llama-1b, bfloat16"].ratio == pytest.approx(0.75)


def test_int4_must_not_be_slower_than_int8_with_16_streams(tmp_path: Path) -> None:
    made = _summary(tmp_path / "results.json", {"http": 90.0, "ours": 1.0})
    for entry, precision, rate in zip(made.entries, ("int4", "int8"), (90.0, 100.0), strict=True):
        run = {"units": rate, "seconds": 1.0, "extra": {}}
        entry |= {"shape": "llama-1b", "precision": precision, "contestant": "http", "runs": [run]}
    (line,) = [line for line in goals.lines(made) if line.quantity == "B, llama-1b, int4 over int8"]
    assert line.verdict == "missed" and line.ratio == pytest.approx(0.9)


def test_goals_of_quantized_settings_count_the_faster_format(tmp_path: Path) -> None:
    rates = {("int4", "ours"): 110.0, ("int4", "llama-library"): 90.0, ("int4", "llama-library-k"): 100.0}
    entries = [
        {"shape": "llama-1b", "precision": precision, "workload": "A", "contestant": name,
         "runs": [{"units": rate, "seconds": 1.0, "extra": {}}]}
        for (precision, name), rate in rates.items()
    ]  # fmt: skip
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"about": {}, "entries": entries, "loads": [], "sections": {}}))
    lines = {line.quantity: line for line in goals.lines(Summary(path))}
    assert len(lines) == 12 and lines["B, llama-1b, int4"].verdict == "not measured"
    assert lines["A, llama-1b, int4"].ratio == pytest.approx(1.0), "1.1 times Q4_K_M, which is faster than Q4_0"


def test_ratio_compares_the_same_rounds(tmp_path: Path) -> None:
    """Rates of the same round are divided, so that a machine that gets slower does not change the ratio."""
    made = _summary(tmp_path / "results.json", {"http": 1.0, "openvino-genai": 1.0})
    for entry, rates in zip(made.entries, ((100, 60, 30), (50, 30, 10)), strict=True):
        entry["runs"] = [{"units": rate, "seconds": 1.0, "extra": {}} for rate in rates]
    http, peer = (("llama-135m", "float32", "B", name) for name in ("http", "openvino-genai"))
    assert made.ratio(http, peer) == 2 and made.ratio(peer, http) == 0.5 and made.rounds() == (3, 3)
    made.entries[1]["runs"].pop()
    assert made.ratio(http, peer) == 2 and made.rounds() == (3, 3), "rounds of a peer do not count"
    assert made.ratio(http, ("llama-135m", "float32", "A", "http")) is None


def test_bandwidth_share_uses_the_bandwidth_around_each_run(tmp_path: Path) -> None:
    key = {"shape": "gpt2-124m", "precision": "int8", "contestant": "ours"}
    runs = [{"units": 1, "seconds": 1, "gaps_p50": 0.5, "read_bytes_per_second": speed} for speed in (200, 400, 800)]
    content = {"about": {}, "entries": [{**key, "workload": "A", "runs": runs}], "sections": {}}
    content["loads"] = [{**key, "weight_bytes": 120}]
    (tmp_path / "results.json").write_text(json.dumps(content))
    share = Summary(tmp_path / "results.json").bandwidth_share("gpt2-124m", "int8")
    assert share == pytest.approx(120 / 0.5 / 400)
