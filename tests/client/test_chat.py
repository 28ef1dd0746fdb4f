"""The command chat against a fake server: streaming, history, failures, and the conversation in the terminal."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from typing import Any

import pytest

from server.cli import main
from server.client import chat
from tests.client.fake_server import Answer, FakeRequest, Reply, error, events, fake_server


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRIPTYCH_URL", "TRIPTYCH_API_KEY", "TRIPTYCH_MODEL"):
        monkeypatch.delenv(name, raising=False)


def chunk(**delta: Any) -> tuple[str, Any]:
    return "", {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def says(*parts: str) -> Reply:
    """An answer as OpenAI streams it."""
    end = ("", {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    usage = ("", {"choices": [], "usage": {"completion_tokens": len(parts)}})
    return events(
        chunk(role="assistant", content=""), *(chunk(content=part) for part in parts), end, usage, ("", "[DONE]")
    )


def test_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(lambda request: says("Hel", "lo")) as server:
        argv = [
            "chat",
            "--url",
            server.url,
            "-m",
            "llm",
            "--system",
            "Be brief.",
            "--max-new-tokens",
            "5",
            "--seed",
            "1",
        ]
        main([*argv, "--regex", "[a-z]+", "--chat-template-kwargs", '{"a": 1}', "Hi"])
    assert capsys.readouterr().out == "Hello\n"
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.body == {
        "model": "llm",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "max_completion_tokens": 5,
        "seed": 1,
        "response_format": {"type": "regex", "pattern": "[a-z]+"},
        "chat_template_kwargs": {"a": 1},
    }


def test_a_schema_is_sent_as_openai_has_it(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    with fake_server(lambda request: says("{}")) as server:
        main(["chat", "--url", server.url, "--schema", str(tmp_path / "schema.json"), "Hi"])
    schema = {"name": "answer", "schema": {"type": "object"}}
    assert server.requests[0].body["response_format"] == {"type": "json_schema", "json_schema": schema}


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (error(400, "no chat template"), r"no chat template (HTTP 400)"),
        (events(chunk(content="Hel"), ("", {"error": {"message": "engine"}})), "engine"),
        (
            events(chunk(content="Hel"), ("", {"error": {"message": "the deadline passed", "code": "timeout"}})),
            "the deadline passed",
        ),
        (events(chunk(content="Hel")), "the answer broke off"),
        (Reply(events(chunk(content="Hel")).encode(), broken=True), "the answer broke off"),
    ],
)
def test_an_incomplete_answer_is_an_error(reply: Reply, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(lambda request: reply) as server, pytest.raises(SystemExit) as stop:
        main(["chat", "--url", server.url, "Hi"])
    shown = capsys.readouterr()
    assert stop.value.code == 1 and shown.err.startswith("triptych: ") and message in shown.err
    assert shown.err.count("\n") == 1 and shown.out in ("", "Hel\n")


Talk = Callable[..., list[FakeRequest]]


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Function that runs a conversation.

    Its arguments are the lines that the user types; an exception is raised instead of a line.
    """

    def run(lines: list[str | type[BaseException]], answer: Answer, *argv: str) -> list[FakeRequest]:
        waiting = iter([*lines, EOFError])

        def line(prompt: str = "") -> str:
            value = next(waiting)
            if isinstance(value, str):
                return value
            raise value

        monkeypatch.setattr(builtins, "input", line)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        with fake_server(answer) as server:
            main(["chat", "--url", server.url, *argv])
        return server.requests

    return run


def contents(request: FakeRequest) -> list[str]:
    return [message["content"] for message in request.body["messages"]]


def test_the_conversation_has_a_history(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        "one",
        "",
        "two",
        "/reset",
        "three",
        "/system Be kind.",
        "four",
        "/history",
        "/nothing",
        "/help",
        "/exit",
        "never",
    ]
    requests = talk(lines, lambda request: says("re: ", contents(request)[-1]), "--system", "Be brief.")
    assert [contents(request) for request in requests] == [
        ["Be brief.", "one"],
        ["Be brief.", "one", "re: one", "two"],
        ["Be brief.", "three"],
        ["Be kind.", "four"],
    ]
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-3:] == ["system: Be kind.", "user: four", "assistant: re: four"]
    assert "no command /nothing" in shown.err and "/reset" in shown.err


def test_a_failed_message_leaves_the_history_as_it_was(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(request: FakeRequest) -> Reply:
        return error(500, "engine") if contents(request)[-1] == "bad" else says("fine")

    requests = talk(["bad", "good"], answer)
    assert contents(requests[-1]) == ["good"]
    assert "triptych: engine (HTTP 500)" in capsys.readouterr().err


def test_messages_of_several_lines_and_ctrl_c(talk: Talk) -> None:
    lines = ['"""', "a", "b", '"""', KeyboardInterrupt, '"""c', 'd"""', '"""e"""']
    requests = talk(lines, lambda request: says("x"))
    assert [contents(request)[-1] for request in requests] == ["a\nb", "c\nd", "e"]


def test_ctrl_c_in_an_answer_keeps_what_was_written(monkeypatch: pytest.MonkeyPatch, talk: Talk) -> None:
    real = chat._write_answer

    async def interrupted(connection, body, written) -> None:
        await real(connection, body, written)
        if len(body["messages"]) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(chat, "_write_answer", interrupted)
    requests = talk(["one", "two"], lambda request: says("half"))
    assert contents(requests[1]) == ["one", "half", "two"]


def test_a_message_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    file = tmp_path / "question.txt"
    file.write_text("What?\nWhy?\n")
    with fake_server(lambda request: says("Because.")) as server, file.open() as source:
        monkeypatch.setattr("sys.stdin", source)
        main(["chat", "--url", server.url])
        main(["chat", "--url", server.url, "--input", str(file)])
    assert [contents(request) for request in server.requests] == [["What?\nWhy?"]] * 2
    assert capsys.readouterr().out == "Because.\nBecause.\n"
    assert json.dumps(server.requests[0].body)
