"""Hostile checkpoints are refused with one line, before a model is built. `make chaos` measures the time."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from server.engine.loading import planning_limit
from server.engine.loading.load import LoadError, load, unexpected
from server.engine.loading.speculation import find_drafts
from server.errors import MAX_MESSAGE
from server.ipc.wire.descriptions import ModelSpec, Speculation
from tests.hostile import gguf_cases, head_cases, prediction_cases, rounded_cases
from tests.hostile.base import change_json, write_checkpoint
from tests.hostile.cases import CASES, SLOW, write_case
from tests.hostile.measure import read
from tests.hostile.weight_cases import Case

ALL = {name: case for cases in CASES.values() for name, case in cases.items()}
CPU = torch.device("cpu")
BACKTRACKING = tuple(name for name in ALL if "backtrack" in name)


def _refused(message: str) -> None:
    assert message, "the checkpoint was accepted"
    assert len(message.splitlines()) == 1 and len(message) <= MAX_MESSAGE
    assert message.isprintable(), "the message has control characters"
    assert "its files are damaged, or contradict each other" not in message, "no loader foresaw it"


@pytest.mark.parametrize("name", [name for name in ALL if name not in SLOW])
def test_a_hostile_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint")
    _refused(read(*write_case(ALL[name], tmp_path / "checkpoint")))


def test_unknown_settings_of_an_added_token_are_not_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The `tokenizers` library prints the names of settings that it does not know, with control characters."""
    write_checkpoint(tmp_path)
    token = {"content": "<x>", "special": True, "\x1b[2J": 1}
    change_json(tmp_path, "tokenizer_config.json", lambda content: content | {"added_tokens_decoder": {"260": token}})
    assert read(tmp_path) == "" and capfd.readouterr() == ("", "")


def test_the_checkpoints_load_without_their_damage(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    assert read(tmp_path) == ""
    assert read(gguf_cases.case()(tmp_path)) == ""


@pytest.mark.parametrize("case", [head_cases.head(), *prediction_cases.VALID, *rounded_cases.VALID])
def test_heads_and_rounded_weights_load_without_their_damage(case: Case, tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    assert read(*write_case(case, tmp_path)) == ""


@pytest.mark.parametrize("is_optional", [True, False])
@pytest.mark.parametrize("name", prediction_cases.UNUSED)
def test_a_head_that_is_not_recognized_is_left_out_or_refused(name: str, is_optional: bool, tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    prediction_cases.UNUSED[name](tmp_path)
    way = Speculation(prediction_head=True, is_optional=is_optional)
    loaded = load(ModelSpec("llm", str(tmp_path), "auto", speculation=way), CPU, lambda done, of: None)
    assert loaded.model.draft_head is None and not loaded.model.has_prediction_head
    if is_optional:
        assert find_drafts([loaded], lambda spec: loaded) == {}
    else:
        with pytest.raises(LoadError, match="no prediction head that can draft"):
            find_drafts([loaded], lambda spec: loaded)


@pytest.mark.parametrize("name", prediction_cases.PREDICTION_HEADS)
def test_a_damaged_prediction_head_that_is_not_used_is_ignored_or_refused(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    prediction_cases.PREDICTION_HEADS[name](tmp_path)
    try:
        load(ModelSpec("llm", str(tmp_path), "auto"), CPU, lambda done, of: None)
    except LoadError as error:
        _refused(str(error))


@pytest.mark.parametrize("name", BACKTRACKING)
def test_an_expression_of_a_checkpoint_has_a_time_limit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning_limit, "SECONDS", 0.3)
    write_checkpoint(tmp_path / "checkpoint")
    assert "too long" in read(*write_case(ALL[name], tmp_path / "checkpoint"))


def test_memory_before_the_first_weight_is_limited(tmp_path: Path) -> None:
    with (
        pytest.raises(MemoryError),
        planning_limit.planning_limit([tmp_path], lambda done, of: None, limits_memory=True),
    ):
        bytearray(2 << 30)
    assert len(bytearray(2 << 30)) == 2 << 30, "the limit ends with the block"


def test_holes_of_files_do_not_lift_the_limit(tmp_path: Path) -> None:
    (tmp_path / "padding.bin").touch()
    os.truncate(tmp_path / "padding.bin", 1 << 42)
    (tmp_path / "weights.bin").write_bytes(b"x" * 100_000)
    assert 100_000 <= planning_limit._bytes_of(tmp_path)[1] < 200_000


def test_mapped_files_count_for_no_memory(tmp_path: Path) -> None:
    """A mapped weight file does not count against the memory limit.

    safetensors maps files privately, and the kernel counts such mappings as memory of the process.
    """
    size, file = 2 << 30, tmp_path / "model.safetensors"
    header = json.dumps({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with file.open("wb") as written:
        written.write(len(header).to_bytes(8, "little") + header)
        written.truncate(8 + len(header) + size)
    with (
        planning_limit.planning_limit([tmp_path], lambda done, of: None, limits_memory=True),
        safe_open(file, framework="pt") as opened,
    ):
        assert opened.get_slice("weight").get_shape() == [size]


def test_reading_weights_has_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning_limit, "SECONDS", 0.05)
    reported = []
    with planning_limit.planning_limit(
        [tmp_path], lambda done, of: reported.append(done), limits_memory=False
    ) as report:
        report(1, 2)
        sum(number for number in range(3_000_000))
    assert reported == [1]


def test_a_time_limit_that_is_reached_while_it_ends_leaves_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next signal would end the process, because nothing handles it after the load."""
    set_timer, limits = signal.setitimer, resource.getrlimit(resource.RLIMIT_DATA)

    def set_timer_late(which: int, seconds: float, interval: float = 0.0) -> None:
        if seconds == 0.0:
            signal.raise_signal(signal.SIGPROF)
        set_timer(which, seconds, interval)

    monkeypatch.setattr(signal, "setitimer", set_timer_late)
    try:
        with planning_limit.planning_limit([tmp_path], lambda done, of: None, limits_memory=True) as report:
            report(1, 2)
        assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
        assert resource.getrlimit(resource.RLIMIT_DATA) == limits
    finally:
        set_timer(signal.ITIMER_PROF, 0.0)
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def test_an_error_for_the_operator_is_one_printable_line() -> None:
    message = str(LoadError("model\n 'a':\x1b[2J" + "x" * 5000))
    assert message.startswith("model 'a':\\x1b[2J") and len(message) == MAX_MESSAGE
    try:
        int("x")
    except ValueError as error:
        assert re.search(r"\(ValueError at hostile/test_hostile_files\.py:\d+\)$", unexpected(error))
