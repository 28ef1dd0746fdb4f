"""The whole command line: help, misspelled names, shell completion, and the commands for lists and files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from server.cli import COMMANDS, main
from server.near_names import MAX_LISTED, unknown_model, with_name
from tests.client.fake_server import FakeRequest, Reply, error, fake_server


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRIPTYCH_URL", "TRIPTYCH_API_KEY", "TRIPTYCH_MODEL"):
        monkeypatch.delenv(name, raising=False)


def failure(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    return stop.value.code, capsys.readouterr().err


def test_the_bare_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    shown = capsys.readouterr()
    assert shown.err == "" and all(f"\n    {name} " in shown.out for name in COMMANDS)


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["sevre"], "serve"),
        (["Translate", "a"], "translate"),
        (["serve", "--prot", "9"], "--port"),
        (["generate", "a", "--max-new-token5", "3"], "--max-new-tokens"),
        (["serve", "--device", "cdua"], "cuda"),
        (["embed", "a", "--poolin=mean", "--pooing", "mean"], "--pooling"),
    ],
)
def test_a_name_that_is_nearly_right_is_suggested(
    argv: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, shown = failure(capsys, *argv)
    assert status == 2 and f"did you mean {meant}?" in shown and shown.count("\n") == 1


def test_a_name_that_is_far_from_all_gets_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    status, shown = failure(capsys, "quux")
    assert status == 2 and "did you mean" not in shown and "serve, check, models" in shown


def test_an_unknown_model_is_named_with_those_that_exist() -> None:
    message = unknown_model("Stroy", ["a", "story"])
    assert message == "no model has this name; did you mean story? the models are a, story"
    assert with_name(message, "Stroy") == "no model is named Stroy; did you mean story? the models are a, story"
    many = unknown_model("x", [f"m{number}" for number in range(MAX_LISTED + 5)])
    assert many.endswith("m19 and 5 more (`GET /v1/models`)")
    assert unknown_model("x", []) == "no model has this name; there are no models"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_know_every_command_and_its_flags(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab", reason="needs triptych[completion]")
    main(["completion", shell])
    script = capsys.readouterr().out
    for word in (*COMMANDS, "kv-cache-memory", "max-new-tokens", "bfloat16"):
        assert word in script
    if shell == "bash":
        # Bash runs the script to complete a command, a flag and the value of a flag.
        check = 'complete_for() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_triptych; '
        check += 'echo "${COMPREPLY[*]}"; }\n'
        check += "complete_for triptych transc\ncomplete_for triptych serve --kv-cache-m\n"
        check += "complete_for triptych serve --device cu\n"
        done = subprocess.run(["bash"], input=script + check, capture_output=True, text=True)
        assert [line.strip() for line in done.stdout.splitlines()] == ["transcribe", "--kv-cache-memory", "cuda"]


MODEL = {
    "name": "story",
    "tasks": ["generate", "embed"],
    "family": "llama",
    "dtype": "float32",
    "quantization": None,
    "weight_bytes": 12 << 20,
    "usable_tokens": 512,
    "max_input_tokens": 511,
    "adapter_of": None,
}


def test_models_of_a_server(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    models = [MODEL, MODEL | {"name": "tuned", "adapter_of": "story", "quantization": "int8"}]
    with fake_server(lambda request: Reply({"models": models})) as server:
        main(["models", "--url", server.url])
        monkeypatch.setenv("TRIPTYCH_URL", server.url)
        main(["models", "--url"])
    line = "story  generate, embed; llama; float32, 12 MiB; 512 tokens\n"
    other = "tuned  generate, embed; adapter of story; llama; int8, 12 MiB; 512 tokens\n"
    assert capsys.readouterr().out == (line + other) * 2


def test_models_of_another_server(capsys: pytest.CaptureFixture[str]) -> None:
    def other(request: FakeRequest) -> Reply:
        return Reply({"data": [{"id": "theirs"}]}) if request.path == "/v1/models" else error(404)

    with fake_server(other) as server:
        main(["models", "--url", server.url])
    assert capsys.readouterr().out.strip() == "theirs"
    status, shown = failure(capsys, "models", "--url", "http://127.0.0.1:1")
    assert status == 2 and "no server answers" in shown


def test_rerank_sorts_texts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scores = [{"index": 1, "score": 0.25}, {"index": 0, "score": 0.125}, {"index": 2, "score": 0.75}]
    with fake_server(lambda request: Reply(scores)) as server:
        main(["rerank", "who?", "a", "b", "c", "--url", server.url, "-m", "judge", "--raw-scores"])
        (tmp_path / "texts.txt").write_text("a\nb\nc\n")
        argv = ["rerank", "who?", "--input", str(tmp_path / "texts.txt"), "--top-n", "1", "--json"]
        main([*argv, "--url", server.url])
    assert server.requests[0].body == {"query": "who?", "texts": ["a", "b", "c"], "model": "judge", "raw_scores": True}
    assert server.requests[1].body == {"query": "who?", "texts": ["a", "b", "c"]}
    table, line = capsys.readouterr().out.rsplit("{", 1)
    assert table == "0.7500\t3\tc\n0.2500\t2\tb\n0.1250\t1\ta\n"
    assert json.loads("{" + line) == {"index": 2, "score": 0.75, "text": "c"}


@pytest.mark.parametrize("name", COMMANDS)
def test_paragraphs_of_the_help_fit_the_terminal(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No paragraph of the help has lines of more than 80 characters. Examples and definitions, which are indented, may.

    A command that is divided into two lines could not be copied.
    """
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith(" ")] == []
