"""The parts of the long runs that need no server: the order of requests, memory, counts, files and tables."""

from __future__ import annotations

import configparser
import math
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from models.checkpoint.loader import load_model
from tests.models.test_gguf import weights_of
from tests.soak import both_formats, router
from tests.soak.both_formats import CHECKPOINTS, DECODER, EMBEDDER, GGUF_FILES, KINDS, RERANKER
from tests.soak.checkpoints import BROKEN
from tests.soak.peers import Peer, presets
from tests.soak.router import Alone, Numbers, Run, alone_table, mean_models, most_models, runs_table
from tests.soak.traffic import NO_ANSWER, ZipfOrder, is_equal, send_all, tree_bytes

NAMES = [f"decoder-{number}" for number in range(6)]
ALONE = Alone("a text", 300 << 20, 200 << 20, 2.0, 0.1, 0.2, 0, 1.0)


def test_requests_are_inversely_proportional_to_the_rank_of_a_model() -> None:
    order = ZipfOrder(NAMES)
    counts = Counter(order.name(number) for number in range(8000))
    assert counts.pop(BROKEN) == 200
    assert list(counts) != order.ranked and [name for name, _ in counts.most_common()] == order.ranked
    first = counts[order.ranked[0]]
    for rank, name in enumerate(order.ranked, 1):
        assert counts[name] == pytest.approx(first / rank, rel=0.1)
    again = ZipfOrder(NAMES)
    assert [again.name(number) for number in range(100)] == [order.name(number) for number in range(100)]


def test_every_request_is_sent_once_and_by_several_clients() -> None:
    sent: list[int] = []
    together = threading.Barrier(3, timeout=60)

    def send(number: int) -> None:
        together.wait()
        sent.append(number)

    send_all(send, 30, 0.0, 3)
    assert sorted(sent) == list(range(30))


def test_answers_are_compared_with_their_nested_numbers() -> None:
    answer = {"scores": [0.5, 0.25], "text": "a"}
    assert is_equal(answer, {"scores": [0.5004, 0.25], "text": "a"})
    assert not is_equal(answer, {"scores": [0.502, 0.25], "text": "a"})
    assert is_equal(answer, {"scores": [0.502, 0.25], "text": "a"}, 0.01)
    for other in ({"scores": [0.5], "text": "a"}, {"scores": [0.5, 0.25]}, {"scores": [0.5, 0.25], "text": "b"}):
        assert not is_equal(answer, other)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    program = "data = bytearray(b'x') * (64 << 20); print('ready', flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.communicate()


def test_memory_of_a_tree_has_that_of_children(child: subprocess.Popen[bytes]) -> None:
    alone = tree_bytes(child.pid)
    assert 64 << 20 < alone < 96 << 20
    assert alone + (16 << 20) < tree_bytes(os.getpid()), "this process has its own memory too"
    assert 0 < tree_bytes(child.pid, "Pss_File") < 16 << 20, "the array is not mapped from a file"


def test_number_of_models_that_fit_a_budget() -> None:
    sizes = [300, 100, 300, 100, 100, 100]
    assert [most_models(sizes, budget) for budget in (250, 599, 600, 699, 700, 5000)] == [1, 1, 2, 2, 3, 6]
    assert [mean_models(sizes, budget) for budget in (100, 333, 334, 499, 500)] == [1, 1, 2, 2, 3]


def test_preset_file_names_each_model_and_its_task() -> None:
    read = configparser.ConfigParser()
    read.read_string("[file]\n" + presets(["decoder-0", "embedder-1", "reranker-0", BROKEN], Path("/models"), 2))
    assert dict(read["*"]) == {"ctx-size": "2048", "threads": "2"}
    assert dict(read["decoder-0"]) == {"model": "/models/decoder-0.gguf"}
    assert dict(read["embedder-1"]) == {"model": "/models/embedder-1.gguf", "embeddings": "true"}
    assert dict(read["reranker-0"]) == {"model": "/models/reranker-0.gguf", "reranking": "true"}
    assert dict(read[BROKEN]) == {"model": "/models/broken.gguf"}


def run_of(
    monkeypatch: pytest.MonkeyPatch, statuses: list[int], killed_at: float = math.inf, alone: Alone = ALONE
) -> Run:
    """A run whose one request gets these answers in turn. killed_at: in seconds of the clock of the run."""
    answers = iter(statuses)
    monkeypatch.setattr(router, "tree_bytes", lambda *arguments: 0)
    monkeypatch.setattr(router, "ask", lambda url, name, kind: (next(answers), "a text"))
    monkeypatch.setattr(router, "time", Clock())
    peer = Peer("http://none", 0, lambda: 3, lambda name: Path(name))
    run = Run(peer, {NAMES[0]: KINDS[DECODER]}, {NAMES[0]: alone}, Numbers("router", "2 models", 800.0))
    run.killed_at = killed_at
    run.request(0)
    return run


class Clock:
    """A clock that goes one second further each time, and does not wait."""

    seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 1.0
        return self.seconds

    def sleep(self, seconds: float) -> None:
        pass


def test_a_request_is_lost_after_three_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run_of(monkeypatch, [200]).failed
    once = run_of(monkeypatch, [500, 200])
    assert once.failed == {"500": 1} and not once.numbers.lost and not once.numbers.wrong
    lost = run_of(monkeypatch, [500, NO_ANSWER, 503])
    assert lost.failed == {"500": 1} and lost.numbers.lost == ["decoder-0: 503 a text"]


def test_failures_beside_the_killed_process_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = run_of(monkeypatch, [NO_ANSWER, 200], killed_at=2.5)
    assert beside.beside_kill == {"0": 1} and not beside.failed
    for killed_at in (-40.0, 50.0):
        apart = run_of(monkeypatch, [NO_ANSWER, 200], killed_at=killed_at)
        assert apart.failed == {"0": 1} and not apart.beside_kill


def test_an_answer_unlike_that_of_the_model_alone_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_of(monkeypatch, [200], alone=replace(ALONE, answer="another text")).numbers.wrong == ["decoder-0"]


def test_answers_of_both_servers_and_of_other_models_are_compared() -> None:
    ours = {"reranker-0": replace(ALONE, answer=[0.5, 0.731]), "decoder-0": ALONE, "decoder-1": ALONE}
    theirs: dict[str, Any] = {"reranker-0": replace(ALONE, answer=[0.0, 1.0]), "decoder-0": ALONE}
    theirs["decoder-1"] = replace(ALONE, answer="another text")
    assert router.num_agreeing(ours, theirs) == 2
    assert (router.num_distinct(ours), router.num_distinct(theirs)) == (1, 3)


def test_tables_have_a_cell_for_each_server() -> None:
    alone = dict.fromkeys(("decoder-0", "embedder-0", "reranker-0"), ALONE)
    rows = alone_table({"Triptych": alone, "router": alone}).splitlines()
    assert len(rows) == 2 + 6 and {row.count("|") for row in rows} == {11}
    assert rows[2] == "| decoder | Triptych | 300 MiB | 200 MiB | 2.00 s | 1.00 s | - | 0.10 s | 0.20 s | 0 MiB |"
    runs = [Numbers("Triptych", "800 MiB", 800.0, peak_mib=760.0)]
    runs.append(Numbers("router", "2 models", 800.0, broken={"500": 3, "0": 1}, lost=["a", "b"]))
    rows = runs_table(runs).splitlines()
    assert {row.count("|") for row in rows} == {4}
    assert "| as a part of the budget | 95% | 0% |" in rows
    assert "| requests lost after three tries | 0 | 2 |" in rows
    assert "| answers for the broken file | 0 | 1 with 0, 3 with 500 |" in rows


def test_both_formats_have_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(both_formats, "COUNTS", {DECODER: 2, EMBEDDER: 2, RERANKER: 1})
    assert list(both_formats.write(tmp_path, *router.TINY)) == [
        *("decoder-0", "decoder-1", "embedder-0", "embedder-1", "reranker-0")
    ]
    for name in ("decoder-1", "embedder-1"):
        files = (tmp_path / CHECKPOINTS / name, tmp_path / GGUF_FILES / f"{name}.gguf")
        of_checkpoint, of_file = (load_model(file, torch.bfloat16, torch.device("cpu")) for file in files)
        assert of_checkpoint.config == of_file.config and of_checkpoint.tasks == of_file.tasks
        expected, found = weights_of(of_checkpoint.transformer), weights_of(of_file.transformer)
        assert expected.keys() == found.keys()
        assert [key for key, tensor in expected.items() if not torch.equal(tensor, found[key])] == []
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / GGUF_FILES / "reranker-0.gguf").tensors}
    assert {"cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"} <= tensors.keys()
    assert list(tensors["position_embd.weight"].shape) == [32, 512]
    assert (tmp_path / GGUF_FILES / "broken.gguf").read_bytes() == bytes(64)
    with pytest.raises(Exception, match="safetensors"):
        load_model(tmp_path / CHECKPOINTS / BROKEN, torch.bfloat16, torch.device("cpu"))
