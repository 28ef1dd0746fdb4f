"""`triptych generate`, `translate`, `embed` and `classify` against a fake server: input, output, exit codes, help."""

from __future__ import annotations

import io
import json
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from server.cli import COMMANDS, _parser, main
from server.client import chat, commands, rerank, transcribe
from server.client.bench import command as bench
from server.commands import hub, quantize
from tests.client.fake_server import FakeRequest, Reply, error, events, fake_server
from tests.e2e.conftest import REPOSITORY


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRIPTYCH_URL", "TRIPTYCH_API_KEY", "TRIPTYCH_MODEL"):
        monkeypatch.delenv(name, raising=False)


def end_of(text: str) -> dict[str, str]:
    """The field `finish_reason` for an answer with the word SLOW or LONG; no field for others."""
    reasons = {"SLOW": "timeout", "LONG": "length"}
    return next(({"finish_reason": reason} for word, reason in reasons.items() if word in text), {})


def answer(request: FakeRequest) -> Reply:
    """Answer a request in Triptych's format, with the input in upper case. A stream has two parts.

    Texts with `bad` are refused. For texts with `slow`, the answer says that it ended at its deadline.
    """
    body = request.body
    if request.path == "/generate":
        text = body["prompt"].upper()
        if "bad" in body["prompt"]:
            return error(422, "`prompt` is bad")
        whole = {"choices": [{"text": text} | end_of(text) for _ in range(body.get("n", 1))]}
        if not body.get("stream"):
            return Reply(whole)
        return events(("token", {"text": text[:2]}), ("token", {"text": text[2:]}), ("done", whole))
    inputs = body["inputs"]
    if any("bad" in text for text in inputs):
        return error(422, "`inputs` is bad")
    if request.path == "/translate":
        texts = [text.upper() for text in inputs]
        return Reply({"translations": [{"text": text, "alternatives": []} | end_of(text) for text in texts]})
    if request.path == "/classify":
        labels = [{"label": "GOOD", "score": 0.75}, {"label": "BAD", "score": 0.25}]
        return Reply([labels[: body.get("top_k", 2)]] * len(inputs))
    return Reply([[float(len(text)), 0.5] for text in inputs])


def run(*argv: str, stdin: bytes | None = None, status: int = 0, monkeypatch: Any = None) -> list[FakeRequest]:
    """Run a `triptych` command against the fake server. Returns the requests that it got.

    stdin: standard input of the command. status: expected exit status.
    """
    with fake_server(answer) as server:
        if stdin is not None:
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            main([*argv, "--url", server.url])
            code: Any = 0
        except SystemExit as stop:
            code = stop.code
    assert code == status
    return server.requests


def test_one_prompt_is_streamed(capsys: pytest.CaptureFixture[str]) -> None:
    (request,) = run("generate", "hello", "--max-new-tokens", "3", "--stop", "x", "-m", "llm")
    assert capsys.readouterr().out == "HELLO\n"
    assert request.body == {
        "prompt": "hello",
        "stream": True,
        "max_new_tokens": 3,
        "stop": ["x"],
        "model": "llm",
    }


def test_several_answers_are_not_streamed(capsys: pytest.CaptureFixture[str]) -> None:
    (request,) = run("generate", "hello", "--n", "2")
    assert "stream" not in request.body and capsys.readouterr().out == "HELLO\nHELLO\n"


def test_standard_input_is_one_prompt_or_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (request,) = run("generate", stdin=b"one\ntwo\n", monkeypatch=monkeypatch)
    assert request.body["prompt"] == "one\ntwo"
    requests = run("generate", "--input-format", "lines", stdin=b"one\ntwo\n", monkeypatch=monkeypatch)
    assert sorted(request.body["prompt"] for request in requests) == ["one", "two"]
    assert capsys.readouterr().out == "ONE\nTWO\nONE\nTWO\n"


def test_translate_keeps_the_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    requests = run("translate", "--batch-size", "2", stdin=b"a\n\nb\nc\n", monkeypatch=monkeypatch)
    assert sorted(request.body["inputs"] for request in requests) == [["a", ""], ["b", "c"]]
    assert capsys.readouterr().out == "A\n\nB\nC\n"


def test_embed_and_classify(capsys: pytest.CaptureFixture[str]) -> None:
    run("embed", "a", "bcd")
    assert capsys.readouterr().out == "[1.0, 0.5]\n[3.0, 0.5]\n"
    run("classify", "a", "b")
    assert capsys.readouterr().out == "GOOD\t0.7500\ta\nGOOD\t0.7500\tb\n"
    run("classify", "a", "--json")
    (line,) = capsys.readouterr().out.splitlines()
    assert [label["label"] for label in json.loads(line)["answer"]] == ["GOOD", "BAD"]


def test_a_batch_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('"a"\n{"prompt": "bad", "id": "x"}\n{"text": "c", "id": "y", "seed": 3}\n')
    files = ["--input", str(source), "--output", str(output)]
    requests = run("generate", *files, "--seed", "1", status=1)
    assert sorted((request.body["prompt"], request.body["seed"]) for request in requests) == [
        ("a", 1),
        ("bad", 1),
        ("c", 3),
    ]
    assert [json.loads(line) for line in output.read_text().splitlines()] == [
        {"line": 1, "answer": {"choices": [{"text": "A"}]}},
        {"line": 2, "id": "x", "error": {"message": "`prompt` is bad"}},
        {"line": 3, "id": "y", "answer": {"choices": [{"text": "C"}]}},
    ]
    assert capsys.readouterr().err.endswith("triptych: 1 of 3 texts failed; --resume sends them again\n")

    assert run("generate", *files, status=2) == []
    assert capsys.readouterr().err == f"triptych: {output} exists: --resume continues it, --overwrite replaces it\n"
    (request,) = run("generate", *files, "--resume", status=1)
    assert request.body["prompt"] == "bad"
    source.write_text(source.read_text().replace("bad", "good"))
    run("generate", *files, "--resume")
    assert [json.loads(line)["line"] for line in output.read_text().splitlines()] == [1, 3, 2]
    assert run("generate", *files, "--resume") == []
    assert "is complete: 3 answers" in capsys.readouterr().err
    assert len(run("generate", *files, "--overwrite")) == 3
    assert [json.loads(line)["line"] for line in output.read_text().splitlines()] == [1, 2, 3]


def test_a_stopped_batch_is_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run of a batch sends only the texts that have no answer yet. The first run ended after 25 requests."""
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("".join(f"text {number}\n" for number in range(60)))
    answered: list[str] = []
    broken = True

    def failing(request: FakeRequest) -> Reply:
        if broken and len(answered) >= 25:
            return error(503, "draining", retry_after="0")
        answered.extend(request.body["inputs"])
        return answer(request)

    argv = ["embed", "--input", str(source), "--output", str(output), "--batch-size", "1", "--concurrency", "3"]
    with fake_server(failing) as server:
        with pytest.raises(SystemExit) as stop:
            main([*argv, "--url", server.url, "--retries", "1"])
        assert stop.value.code == 1 and "draining (HTTP 503)" in capsys.readouterr().err
        first = output.read_text().count("\n")
        assert 22 <= first < 60 and len(answered) - first <= 2  # answers that were on their way when it stopped
        kept = {line["line"] for line in map(json.loads, output.read_text().splitlines())}
        broken, sent = False, len(answered)
        main([*argv, "--url", server.url, "--resume"])
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert sorted(line["line"] for line in lines) == list(range(1, 61))
    assert sorted(answered[sent:]) == sorted(f"text {line - 1}" for line in set(range(1, 61)) - kept)
    assert all(line["answer"][0] == len(f"text {line['line'] - 1}") for line in lines)


def test_a_failed_line_keeps_its_place(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run("translate", stdin=b"a\nbad\nc\n", status=1, monkeypatch=monkeypatch)
    shown = capsys.readouterr()
    assert shown.out == "A\n\nC\n"
    assert shown.err == "triptych: text 2: `inputs` is bad\ntriptych: 1 of 3 texts failed\n"


@pytest.mark.parametrize(
    "argv", [["generate", "slow"], ["generate", "slow", "--n", "2"], ["translate", "slow", "slow"]]
)
def test_an_answer_that_a_time_limit_has_cut_is_written_and_told(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(*argv, status=3)
    shown = capsys.readouterr()
    assert set(shown.out.split()) == {"SLOW"}
    assert "incomplete, because the time limit of the request passed (--timeout)\n" in shown.err


@pytest.mark.parametrize(
    "argv", [["generate", "long"], ["generate", "long", "--n", "2"], ["translate", "long", "long"]]
)
def test_an_answer_that_the_limit_of_tokens_has_cut_is_written_and_told(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(*argv, status=3)
    shown = capsys.readouterr()
    assert set(shown.out.split()) == {"LONG"}
    assert "incomplete, because the limit of tokens was reached (--max-new-tokens)\n" in shown.err


def test_json_lines_tell_the_limit_of_tokens_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    run("generate", "long", "a", "--json")
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[0])["answer"]["choices"][0]["finish_reason"] == "length"
    assert "1 of 2 answers are incomplete, because the limit of tokens" in shown.err


def test_cut_answers_of_a_batch_are_sent_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("a\nslow\nbad\n")
    argv = ["translate", "--input", str(source), "--output", str(output), "--batch-size", "1"]
    run(*argv, status=1)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "triptych: 1 of 3 texts failed; 1 of 3 answers are incomplete, because the time limit of the request passed "
        "(--timeout); --resume sends them again"
    )
    assert json.loads(output.read_text().splitlines()[1])["answer"]["text"] == "SLOW"
    requests = run(*argv, "--resume", status=1)
    assert sorted(request.body["inputs"][0] for request in requests) == ["bad", "slow"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["generate", "bad"], "`prompt` is bad (HTTP 422)"),
        (["translate", "bad", "--num-alternatives", "2"], "`inputs` is bad"),
        (["classify", "bad"], "`inputs` is bad"),
    ],
)
def test_one_failure_is_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(*argv, status=1)
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == f"triptych: {message}\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["generate", "a", "--resume"], "--resume needs --output"),
        (["generate", "a", "--output", "/no/such/dir/x"], "cannot write"),
        (["generate", "--input", "/no/such/file"], "cannot read"),
        (["generate", "a", "--device", "cpu"], "--device needs --load"),
        (["generate", "a", "--load", "x"], "--load runs without a server: leave out --url"),
        (["generate", "a", "--concurrency", "0"], "--concurrency: write a number from 1"),
        (["generate", "a", "--timeout", "-1"], "--timeout: write a number above 0"),
        (["generate", "a", "--fly"], "unrecognized arguments: --fly"),
        (["generate", "a", "--api-key-file", "/no/such/file"], "--api-key-file: cannot read"),
    ],
)
def test_a_wrong_command_is_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv, status=2) == []
    shown = capsys.readouterr().err
    assert shown.startswith("triptych: ") and message in shown and shown.count("\n") == 1


def test_the_environment_names_server_model_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server(answer) as server:
        monkeypatch.setenv("TRIPTYCH_URL", server.url + "/")
        monkeypatch.setenv("TRIPTYCH_MODEL", "mt")
        monkeypatch.setenv("TRIPTYCH_API_KEY", "secret")
        main(["embed", "a"])
    (request,) = server.requests
    assert request.body["model"] == "mt" and request.headers["authorization"] == "Bearer secret"


def triptych(*argv: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "server.cli", *argv]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=REPOSITORY, text=True, **(pipes | more))


def test_ctrl_c_ends_a_batch_in_one_line(tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("a\n" * 50)
    reached, release = threading.Event(), threading.Event()

    def slow(request: FakeRequest) -> Reply:
        if len(server.requests) > 20:
            reached.set()
            release.wait()
        return answer(request)

    argv = ["embed", "--input", str(source), "--output", str(output), "--batch-size", "1"]
    with fake_server(slow) as server:
        process = triptych(*argv, "--url", server.url)
        assert reached.wait(60)
        process.send_signal(signal.SIGINT)
        shown = process.communicate(timeout=60)
        release.set()
    assert process.returncode == 130
    done = output.read_text().count("\n")
    assert shown == ("", f"triptych: stopped after {done} of 50 texts; --resume continues\n") and done >= 13


def test_a_closed_pipe_ends_the_command_in_silence() -> None:
    with fake_server(answer) as server:
        process = triptych("translate", "a", "b", "--url", server.url)
        process.stdout.close()
        assert process.stderr.read() == ""
        process.stderr.close()
        assert process.wait(60) == 141


def examples() -> list[str]:
    texts = [
        *commands.EXAMPLES.values(),
        *hub.EXAMPLES.values(),
        chat.EXAMPLES,
        rerank.EXAMPLES,
        transcribe.EXAMPLES,
        bench.EXAMPLES,
        quantize.EXAMPLES,
    ]
    return [line.partition("#")[0].strip() for text in texts for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("example", examples())
def test_every_example_of_the_help_texts_parses(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(example.rpartition("|")[2])
    while words[-2:-1] in (["<"], [">"]):
        words = words[:-2]
    assert words[0] == "triptych"
    _, unknown = _parser().parse_known_args(words[1:])
    assert not unknown
    with pytest.raises(SystemExit) as stop:
        main([words[1], "--help"])
    assert stop.value.code == 0 and example in " ".join(capsys.readouterr().out.split("  "))


def test_help_imports_little() -> None:
    """`--help` imports few modules, so that it takes only a tenth of a second."""
    code = (
        "import sys\nfrom server.cli import main\n"
        "try: main({argv})\nexcept SystemExit: pass\n"
        "print('IMPORTED', sorted({{'torch', 'pydantic', 'httpx', 'fastapi', 'numpy', 'asyncio'}} & set(sys.modules)))"
    )
    for argv, expected in (
        (["--help"], []),
        (["generate", "--help"], ["asyncio", "httpx"]),
        (["quantize", "--help"], []),
    ):
        command = [sys.executable, "-c", code.format(argv=argv)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == f"IMPORTED {expected}", done.stderr
        assert all(name in done.stdout for name in COMMANDS) or argv != ["--help"]
