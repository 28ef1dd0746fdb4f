"""The benchmarks: measurements, counts of tokens, selection of workloads, and reports of failures."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import (
    agent_turns,
    checkpoints,
    goals,
    machine,
    pairs,
    plan,
    profile,
    questions,
    report,
    setting_quality,
    speculation,
    vocabulary,
    workloads,
)
from benchmarks.contestants import http_server, llama_cpp, llama_cpp_k, openvino_files, ours
from benchmarks.contestants.contract import Refused, Subject
from benchmarks.context import deviation
from benchmarks.http_client import Response
from benchmarks.measure import Options, Results, Turns, fast_enough, next_workload, run
from benchmarks.plan import Contest
from benchmarks.process import ContestantProcess
from benchmarks.summary import Summary
from server.client.bench import chart
from server.engine.loading.load import load
from server.ipc.wire.descriptions import ModelSpec
from server.text.tokenizers.load import load_tokenizer
from tests.e2e.conftest import serving


@pytest.fixture(scope="module", autouse=True)
def small_measurements_of_the_machine() -> Iterator[None]:
    """Shorten the measurement of the machine's speed, which takes seconds. No test needs its result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "READ_BYTES", 1 << 20)
        patch.setattr(machine, "PRODUCT_SIZE", 64)
        yield


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("benchmarks")
    command.main(["--tiny", "--threads", "1", "--checkpoints", str(out / "models"), "--out", str(out)])
    return out


def test_every_workload_of_triptych_completes(tiny_run: Path) -> None:
    entries = json.loads((tiny_run / "benchmarks/results.json").read_text())["entries"]
    ours = {(entry["workload"], entry["contestant"]): entry for entry in entries if entry["contestant"] in plan.OURS}
    assert {("A", "ours"), ("A", "http"), ("start", "http"), ("D-beam", "ours"), ("E", "ours")} <= set(ours)
    for key, entry in ours.items():
        assert "error" not in entry, (key, entry["error"])
        assert (
            all(run_entry["seconds"] > 0 and run_entry["units"] > 0 for run_entry in entry["runs"]) and entry["runs"]
        ), key


def test_every_token_is_timed(tiny_run: Path) -> None:
    entries = json.loads((tiny_run / "benchmarks/results.json").read_text())["entries"]
    (in_process,), (http,) = (
        next(entry for entry in entries if (entry["workload"], entry["contestant"]) == ("B-mixed", name))["runs"]
        for name in plan.OURS
    )
    for outcome in (in_process, http):
        assert outcome["tokens"] == outcome["units"]
        assert 0 <= outcome["gaps_p50"] <= outcome["gaps_p99"] < outcome["seconds"]
    assert in_process["gaps_p99"] > 0, "a step takes time"
    # A busy server may send several tokens in one event. test_http_client.py checks that no event is missed.
    assert workloads.TINY.mixed <= http["extra"]["events"] <= http["units"]
    assert http["extra"]["http_cpu_seconds"] > 0


def test_tokens_of_one_event_have_gaps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load, all tokens of a short answer may come in one event. Even then, gaps between tokens are measured."""
    body = b'event: done\ndata: {"usage":{"completion_tokens":4}}\n\n'
    answers = [Response(0.0, 1.0, [0.5], body), Response(0.0, 1.0, [0.5, 0.7], body)]
    monkeypatch.setattr(http_server, "send_all", lambda port, calls, in_flight: (answers, 1.0))
    contestant = http_server.Entry.__new__(http_server.Entry)
    contestant._server = SimpleNamespace(port=1)
    outcome = contestant._run(workloads.Job("generate", [[5], [5]], [4, 4]))
    assert sorted(outcome.gaps) == pytest.approx([0.0] * 5 + [0.2]) and outcome.tokens == 8
    assert outcome.plain()["gaps_p50"] == 0.0


def test_page_lists_goals_and_missing_contestants(tiny_run: Path) -> None:
    page = (tiny_run / "benchmarks.md").read_text()
    assert "| ctranslate2 | marian-tiny int8: D, D-beam, L | not run: no environment with peers" in page
    assert "step time up to context 128, 8 rows" in page and "| A, llama-tiny, int8 |" in page
    rows = (
        "B, moe-1b, int4",
        "B, gpt2-124m, int8",
        "A, llama-135m, bfloat16, in process",
        "F, bert-base, float32, in process",
        "D beam 4",
    )
    assert all(row in page for row in rows)
    assert (tiny_run / "benchmarks/context.svg").read_text().startswith("<svg")


def test_contestant_with_too_few_tokens_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contestant that generates fewer tokens than asked for would seem fast, so it is reported."""
    checkpoints.make("llama-tiny", tmp_path)
    receive = ContestantProcess.receive

    def one_less(self: ContestantProcess, seconds: float) -> dict:
        answer = receive(self, seconds)
        return answer | {"tokens": answer["tokens"] - 1} if "tokens" in answer else answer

    monkeypatch.setattr(ContestantProcess, "receive", one_less)
    results = Results(tmp_path / "results.json", {})
    options = Options(tmp_path, sys.executable, None, 1, 1, 60.0, workloads.TINY)
    run([Contest("llama-tiny", "float32", ("A",), ("ours",))], options, results, lambda line: None)
    (entry,) = results.entries
    assert not entry["runs"] and entry["error"] == "made 5 of 6 tokens"


def test_prompt_of_a_given_length() -> None:
    work = workloads.job("C-512", "llama-1b")
    assert work.units == len(work.inputs[0]) == 512 and work.new_tokens == [1]
    contests = plan.select(plan.full(), ["llama-1b/C-512"], ["llama.cpp"])
    assert {(contest.precision, *contest.contestants) for contest in contests} == {
        (precision, *plan.OURS, "llama.cpp") for precision in plan.LARGE_PRECISIONS
    }


def test_instruction_set_is_for_contestants_in_this_process(tmp_path: Path) -> None:
    subject = Subject("llama-tiny", "float32", str(tmp_path), str(tmp_path), 1, isa="z80")
    with pytest.raises(Refused, match="there are no kernels for z80"):
        ours.Entry().load(subject)
    with pytest.raises(Refused, match="a server always uses the best instruction set"):
        http_server.Entry().load(subject)


def test_interrupted_run_keeps_its_results(tmp_path: Path) -> None:
    checkpoints.make("llama-tiny", tmp_path)
    results = Results(tmp_path / "results.json", {})
    options = Options(tmp_path, sys.executable, None, 1, 5, 60.0, workloads.TINY)

    def interrupt(line: str) -> None:
        if line.startswith("  B-mixed"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([Contest("llama-tiny", "float32", ("A", "B-mixed"), ("ours",))], options, results, interrupt)
    kept = json.loads((tmp_path / "results.json").read_text())["entries"]
    assert len(kept[0]["runs"]) == 1


def test_workloads_share_the_time_of_a_contest() -> None:
    """Workload B takes five times as long as A. Both have a first round; then A has the next four rounds."""
    seconds, turns, order, left = {"B": 5.0, "A": 1.0}, {"B": Turns(), "A": Turns(), "start": Turns()}, [], 13.0
    while (name := next_workload(turns, 5, left)) is not None:
        order.append(name)
        took = seconds.get(name, 0.5)
        left -= took
        turns[name] = Turns(turns[name].rounds + 1, turns[name].seconds + took, took)
    assert order == ["B", "A", "start", "A", "A", "A", "A"], "another round of B would not end in time"
    assert next_workload({"B": Turns(), "A": Turns(1, 9.0, 9.0)}, 5, -1.0) == "B", "every workload has a first round"


def test_slow_peers_run_once() -> None:
    rates = {"ours": 1.0, "openvino": 100.0, "ctranslate2": 50.0, "transformers": 49.0}
    entries = {name: {"runs": [{"units": rate, "seconds": 1.0}]} for name, rate in rates.items()}
    entries["infinity"] = {"runs": [], "error": "failed"}
    assert fast_enough(entries) == ["ours", "openvino", "ctranslate2"]


def test_text_of_token_ids_is_tokenized_to_the_same_ids(tmp_path: Path) -> None:
    vocabulary.write(tmp_path, 1000, wrap=True)
    ids = [vocabulary.FIRST_WORD, 300, 500, 999]
    (encoding,) = load_tokenizer(tmp_path).encode([vocabulary.text(ids)])
    assert encoding.ids == [vocabulary.BOS, *ids, vocabulary.EOS]


def test_added_tokens_follow_the_vocabulary(tmp_path: Path) -> None:
    vocabulary.write(tmp_path, 1000, wrap=False, added=40)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 1000 and tokenizer.id_to_token(960) == "<added0>"
    assert tokenizer.encode([vocabulary.text([959]) + "<added39>"])[0].ids == [959, 999]


def test_the_largest_vocabulary_has_a_goal_for_its_start(tmp_path: Path) -> None:
    shape = checkpoints.SHAPES["llama-262k"]
    assert (shape.vocab_size, shape.added_tokens) == (262144, 6242)
    assert [contest.workloads for contest in plan.full() if contest.shape == "llama-262k"] == [("start",)]
    key = {"shape": "llama-262k", "precision": "float32", "workload": "start", "contestant": "http"}
    runs = [{"units": 1, "seconds": 5.0, "extra": {"ready_seconds": 5.0}}]
    content = {"about": {"read_bytes_per_second": 1.0}, "entries": [{**key, "runs": runs}], "loads": [], "sections": {}}
    (tmp_path / "results.json").write_text(json.dumps(content))
    (line,) = [line for line in goals.lines(Summary(tmp_path / "results.json")) if "262,144" in line.quantity]
    assert line.verdict == "missed" and line.ratio == pytest.approx(4 / 5)


@pytest.mark.parametrize(("count", "first", "last"), [(1, 1, 1), (4, 1, 4), (5, 1, 5), (8, 2, 7), (12, 3, 10)])
def test_the_interval_of_pairs_contains_the_median_with_90_percent(count: int, first: int, last: int) -> None:
    assert pairs.interval([float(i) for i in range(count, 0, -1)]) == (first, last)
    # The median is outside the interval with twice the probability of fewer than `first` heads in `count` coin flips.
    outside = 2 * sum(math.comb(count, heads) for heads in range(first)) / 2**count
    assert count < 5 or outside <= 0.1


def test_rounds_differ_in_ids_but_not_in_lengths() -> None:
    first, second = (workloads.job("B-mixed", "llama-tiny", seed=seed) for seed in (1, 2))
    assert first.new_tokens == second.new_tokens and first.inputs != second.inputs
    assert list(map(len, first.inputs)) == list(map(len, second.inputs))
    assert len(first.inputs) == 48 and set(map(len, first.inputs)) <= set(range(16, 129))


def test_selection_by_workload_shape_and_precision() -> None:
    chosen = plan.select(plan.full(), ["llama-135m/int8/B", "F"], ["transformers"])
    found = {(contest.shape, contest.precision, workload) for contest in chosen for workload in contest.workloads}
    assert found == {("llama-135m", "int8", "B")} | {("bert-base", precision, "F") for precision in plan.PRECISIONS}
    (llama,) = (contest for contest in chosen if contest.shape == "llama-135m")
    assert set(llama.contestants) == {*plan.OURS, "transformers"}


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_llama_cpp_without_a_source_tree_is_reported(tmp_path: Path, precision: str) -> None:
    subject = Subject("moe-1b", precision, str(tmp_path), str(tmp_path), 1, str(tmp_path / "llama-server"))
    with pytest.raises(Refused, match="no converter"):
        llama_cpp.Entry().load(subject)
    (tmp_path / "bfloat16.gguf").touch()
    with pytest.raises(Refused, match="no converter" if precision == "int8" else "llama-quantize: No such file"):
        llama_cpp.Entry().load(subject)


def test_llama_cpp_runs_with_both_of_its_formats_of_4_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each format has a separate GGUF file, which is quantised from the file in bfloat16."""
    program = tmp_path / "llama-quantize"
    program.write_text('#!/bin/sh\necho "$3" > "$2"\n')
    program.chmod(0o755)
    (tmp_path / "bfloat16.gguf").touch()
    commands = []
    monkeypatch.setattr(
        llama_cpp, "PeerServer", lambda command: commands.append(command) or SimpleNamespace(wait=float)
    )
    subject = Subject("llama-1b", "int4", str(tmp_path), str(tmp_path), 1, str(tmp_path / "llama-server"))
    for module in (llama_cpp, llama_cpp_k, llama_cpp_k):
        module.Entry().load(subject)
    models = [Path(command[command.index("-m") + 1]) for command in commands]
    assert [model.name for model in models] == ["int4.gguf", "int4-k.gguf", "int4-k.gguf"]
    assert [model.read_text() for model in models[:2]] == ["Q4_0\n", "Q4_K_M\n"]


def test_openvino_converts_a_model_to_the_format_of_int4(tmp_path: Path) -> None:
    """The command asks for symmetric 4-bit weights in groups of at most 128 inputs, except for embeddings and head."""
    tool = tmp_path / "optimum-cli"
    tool.write_text('#!/bin/sh\nfor last; do :; done\nmkdir "$last"\necho "$@" > "$last/openvino_model.xml"\n')
    tool.chmod(0o755)
    subjects = {
        precision: Subject("llama-1b", precision, str(tmp_path), str(tmp_path), 1, str(tool))
        for precision in ("bfloat16", "int8", "int4")
    }
    made = {precision: openvino_files.exported(subject) for precision, subject in subjects.items()}
    assert [path.name for path in made.values()] == ["openvino-fp32", "openvino-int8", "openvino-int4"]
    options = {precision: (path / "openvino_model.xml").read_text() for precision, path in made.items()}
    assert "--weight-format int4 --sym --group-size 128 --ratio 1.0" in options["int4"]
    assert "--sym" not in options["int8"] + options["bfloat16"] and "--all-layers" not in options["int4"]
    assert "INFERENCE_PRECISION_HINT" not in openvino_files.properties(subjects["int4"])
    tool.unlink()
    assert openvino_files.exported(subjects["int4"]) == made["int4"], "a model is converted once"


def test_large_models_are_compared_with_llama_cpp() -> None:
    chosen = plan.select(plan.full(), ["moe-1b"], [])
    assert {contest.precision for contest in chosen} == set(plan.LARGE_PRECISIONS)
    assert all({"A", "B"} <= set(contest.workloads) and "llama.cpp" in contest.contestants for contest in chosen)
    assert [contest.precision for contest in chosen if "llama.cpp-k" in contest.contestants] == ["int4"]
    assert {
        contest.shape
        for contest in plan.full()
        if contest.precision == "int4" and "openvino-genai" in contest.contestants
    } == {
        "llama-135m",
        "llama-1b",
        "moe-1b",
    }


def test_deviation_of_a_line_and_a_curve() -> None:
    contexts = [64, 128, 256, 512, 1024]
    assert deviation(contexts, [1 + 0.01 * x for x in contexts]) < 1e-6
    assert deviation(contexts, [1 + 1e-4 * x * x for x in contexts]) > goals.MAX_DEVIATION


def test_chart_draws_every_series() -> None:
    drawn = chart.chart("a < b", "streams", "tokens/s", {"one": [(1, 10), (2, 30)], "two": [(1, 5)], "none": []})
    assert drawn.count("<polyline") == 2 and "a &lt; b" in drawn and "none" not in drawn.replace('fill="none"', "")


def test_attention_of_encoders_in_operations() -> None:
    """In each layer, every token attends to all tokens of its text, with two products as long as the hidden size."""
    layers, width = 2, 32
    work = workloads.Job("embed", [[1, 2, 3], [4, 5]])
    assert profile.attention_operations("minilm-tiny", work) == layers * 2 * 2 * (3 * 3 + 2 * 2) * width
    assert profile.attention_operations("llama-tiny", workloads.job("A", "llama-tiny", workloads.TINY)) is None


def test_profile_lists_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["profile", "--tiny", "--checkpoints", str(tmp_path)])
    profile.main()
    shown = capsys.readouterr().out
    for part in ("A, llama-tiny, int8", "E, minilm-tiny, float32", "products, floor", "attention", "rest"):
        assert part in shown


def test_drafts_are_measured_on_texts_that_repeat_and_on_others(tmp_path: Path) -> None:
    spec = ModelSpec("model", str(checkpoints.make("llama-tiny", tmp_path)), "float32")
    loaded = load(spec, torch.device("cpu"), lambda done, total: None)
    code, chance = speculation.measure(loaded, ["code", "chance"], [1], turns=1)
    assert code["repeats"] and not chance["repeats"]
    assert code["accepted"] > 0.5 * code["drafted"] > 100 and chance["accepted"] < 20
    assert all(row["ratio"] > 0 for row in (code, chance))


def test_workloads_share_no_prompt() -> None:
    """No prompt begins like one of another workload, because the prefix cache would make it faster."""
    names = ("A", "B", "streams-4", "B-mixed", "C-512", "C")
    first = [prompt[0] for name in names for prompt in workloads.job(name, "llama-1b", seed=1).inputs[:1]]
    assert len(set(first)) == len(first)


def test_turns_of_an_agent_find_the_previous_prompt(tmp_path: Path, monkeypatch, capsys) -> None:
    @contextmanager
    def warm(*arguments: str) -> Iterator[str]:
        with serving(tmp_path / "log", *arguments) as server:
            yield server.url

    monkeypatch.setattr(agent_turns, "serving", warm)
    sizes = ["--prompt-tokens", "1500", "--tools", "2", "--turns", "3", "--new-tokens", "4", "--result-tokens", "90"]
    status = agent_turns.main(["--shape", "tiny", "--checkpoints", str(tmp_path / "models"), *sizes])
    lines = capsys.readouterr().out.splitlines()[1:]
    assert status == 0 and [line.split()[0] for line in lines] == ["1", "2", "3"]
    prompts, cached = ([int(line.split()[column].replace(",", "")) for line in lines] for column in (1, 2))
    assert 1300 < prompts[0] < 1700 and cached[0] == 0 < cached[1] < cached[2] < prompts[2]
    monkeypatch.setattr(agent_turns, "MIN_CACHED_SHARE", 1.01)
    assert agent_turns.main(["--shape", "tiny", "--checkpoints", str(tmp_path / "models"), *sizes]) == 1


def test_quantized_settings_run_beside_the_formats_of_llama_cpp() -> None:
    contests = plan.quantized()
    assert {contest.precision for contest in contests} == {"int8", "int6", "int5", "int4"}
    peers = {contest.precision: contest.contestants for contest in contests if contest.shape == "llama-1b"}
    assert peers["int4"] == ("ours", "llama-library", "llama-library-k") and peers["int6"] == ("ours",)
    assert all(contest.workloads == ("A", "B", "C") for contest in contests)


def test_the_distance_stands_beside_each_setting() -> None:
    found = {"int8": 0.005, "int8-fast": 0.05, "Q8_0": 0.006, "Q4_K_M": 0.06}
    rows = {
        ("http", "int8", "2026-11-28"): "0.0050",
        ("ours", "int8", "2026-11-27"): "0.0500",
        ("llama.cpp", "int8", "2026-11-27"): "0.0060",
        ("llama-library-k", "int4", "2026-11-28"): "0.0600",
        ("openvino-genai", "int8", "2026-11-28"): "",
        ("http", "float32", "2026-11-28"): "0",
        ("http", "int4", "2026-11-28"): "",
    }
    for row, text in rows.items():
        assert setting_quality.distance_of(*row, found) == text


def test_the_page_says_which_settings_were_measured() -> None:
    before, now = report.settings_line("2026-11-26"), report.settings_line("2026-11-28")
    assert "`int8-fast` and `int4-128`" in before and "`int8-fast`" not in now
    assert "(quality.md)" in before and "(quality.md)" in now
    assert "(../quality.md)" in report.settings_line("2026-11-28", report.MAIN_PAGE.parent / "quantized" / "page.md")


def test_results_of_two_processors_never_share_a_page(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    Results(path, {"processor": "A"}, [{"workload": "L"}]).write()
    added = Results(path, {"processor": "A"})
    added.read()
    assert added.entries == [{"workload": "L"}]
    with pytest.raises(ValueError, match=r"results of A, this is B: use --out"):
        Results(path, {"processor": "B"}).read()


def test_columns_of_processors_are_those_with_common_rows(tmp_path: Path) -> None:
    """Each row has as many cells as the header, and values stand below their own processor."""
    main = _results(tmp_path / "main.json", "this;avx2", {"A": 10.0, "B": 40.0})
    others = {
        "first/benchmarks.md": _results(tmp_path / "first.json", "first;avx2", {"L": 5.0}),
        "second/benchmarks.md": _results(tmp_path / "second.json", "second", {"A": 20.0}),
        "third/benchmarks.md": _results(tmp_path / "third.json", "third", {"B": 30.0, "C": 7.0}),
    }
    page = questions.side_by_side(main, others)
    assert "Other workloads: [first, 2026-11-29](first/benchmarks.md).\n" in page
    table = [line for line in page.splitlines() if line.startswith("|")]
    head, dashes, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert head == [
        "workload",
        "this page: this, 2026-11-29",
        "[second, 2026-11-29](second/benchmarks.md)",
        "[third, 2026-11-29](third/benchmarks.md)",
    ]
    assert dashes == ["---"] * len(head)
    assert rows == [
        ["one stream, llama-135m, int8", "10 (2.00)", "20 (2.00)", ""],
        ["16 streams, llama-135m, int8", "40 (2.00)", "", "30 (2.00)"],
    ]
    assert questions.side_by_side(main, {"first/benchmarks.md": others["first/benchmarks.md"]}) == ""


def _results(path: Path, processor: str, rates: dict[str, float]) -> Summary:
    """Results of Triptych over HTTP, by workload, and of a peer that has half of each rate."""
    entries = [
        {"shape": "llama-135m", "precision": "int8", "workload": workload, "contestant": name}
        | {"runs": [{"units": rate / divisor, "seconds": 1.0, "extra": {}}]}
        for workload, rate in rates.items()
        for name, divisor in (("http", 1), ("openvino", 2))
    ]
    about = {"processor": processor, "date": "2026-11-29"}
    path.write_text(json.dumps({"about": about, "sections": {}, "entries": entries, "loads": []}))
    return Summary(path)
