"""`triptych chat` against a fake server: streaming, history, failures, and commands inside a conversation."""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from server.cli import main
from server.client import conversation
from server.client.conversation import ChatAnswer
from server.client.terminal_chat import statistics
from tests.client.fake_server import Answer, FakeRequest, Reply, error, events, fake_server


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRIPTYCH_URL", "TRIPTYCH_API_KEY", "TRIPTYCH_MODEL"):
        monkeypatch.delenv(name, raising=False)


def chunk(**delta: Any) -> tuple[str, Any]:
    return "", {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def says(*parts: str, reason: str = "stop") -> Reply:
    """A streamed answer in OpenAI's format. parts: texts of the deltas. reason: finish reason."""
    end = ("", {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
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
    ("reply", "message", "status"),
    [
        (error(400, "no chat template"), r"no chat template (HTTP 400)", 1),
        (events(chunk(content="Hel"), ("", {"error": {"message": "engine"}})), "engine", 1),
        (
            events(chunk(content="Hel"), ("", {"error": {"message": "the deadline passed", "code": "timeout"}})),
            "the answer is incomplete: the deadline passed",
            3,
        ),
        (says("Hel", reason="length"), "the answer is incomplete, because the limit of tokens was reached", 3),
        (events(chunk(content="Hel")), "the answer broke off", 1),
        (Reply(events(chunk(content="Hel")).encode(), broken=True), "the answer broke off", 1),
    ],
)
def test_an_incomplete_answer_is_an_error(
    reply: Reply, message: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server(lambda request: reply) as server, pytest.raises(SystemExit) as stop:
        main(["chat", "--url", server.url, "Hi"])
    shown = capsys.readouterr()
    assert stop.value.code == status and shown.err.startswith("triptych: ") and message in shown.err
    assert shown.err.count("\n") == 1 and shown.out in ("", "Hel\n")


Talk = Callable[..., list[FakeRequest]]
PAGES = {
    "/v1/models": {"data": [{"id": "tale"}, {"id": "story"}]},
    "/info": {"models": [{"name": "tale"}, {"name": "story"}], "defaults": {"/v1/chat/completions": "story"}},
}
"""Answers of the fake server about its models, by path."""


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

        def reply(request: FakeRequest) -> Reply:
            return answer(request) if request.body is not None else Reply(PAGES[request.path])

        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        with fake_server(reply) as server:
            main(["chat", "--url", server.url, *argv])
        return [request for request in server.requests if request.body is not None]

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
    real = conversation._write_answer

    async def interrupted(connection, body, answer) -> None:
        await real(connection, body, answer)
        if len(body["messages"]) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(conversation, "_write_answer", interrupted)
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


def test_the_start_names_model_and_address(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    talk([], lambda request: says("x"))
    shown = capsys.readouterr().err
    assert shown.startswith("story on http://127.0.0.1:") and "/help lists the commands" in shown


def test_an_unknown_model_ends_the_chat_before_the_first_message(
    talk: Talk, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        talk(["hello"], lambda request: says("x"), "-m", "stroy")
    assert stop.value.code == 1
    expected = "triptych: no model is named stroy; did you mean story? the models are tale, story\n"
    assert capsys.readouterr().err == expected


def test_without_a_server_the_chat_ends_before_the_first_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    with pytest.raises(SystemExit) as stop:
        main(["chat", "--url", "http://127.0.0.1:1"])
    assert stop.value.code == 2 and capsys.readouterr().err.startswith("triptych: no server answers on")


def test_model_and_settings_are_chosen_in_the_chat(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        "/model",
        "/model tal",
        "/model tale",
        "/set temperature 0.5",
        "/set max-new-tokens 7",
        "/set stop END",
        "/set do_sample true",
        "/set",
        "one",
        "/set temperature",
        "/set temprature 1",
        "/set seed x",
        "/rest",
        "two",
    ]
    first, second = talk(lines, lambda request: says("x"))
    assert first.body | {"messages": []} == {
        "model": "tale",
        "messages": [],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "max_completion_tokens": 7,
        "stop": ["END"],
        "do_sample": True,
    }
    assert "temperature" not in second.body and second.body["stop"] == ["END"]
    shown = capsys.readouterr()
    assert "  tale\n* story\n" in shown.out and "max_new_tokens = 7" in shown.out and 'stop = ["END"]' in shown.out
    assert "no model is named tal; did you mean tale?" in shown.err
    assert "no setting temprature; did you mean temperature?" in shown.err
    assert "seed: x is no value of it" in shown.err and "no command /rest; did you mean /reset?" in shown.err


def test_retry_answers_the_last_message_again(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []

    def answer(request: FakeRequest) -> Reply:
        seen.append(1)
        return error(500, "engine") if len(seen) == 3 else says(str(len(seen)))

    requests = talk(["/retry", "one", "two", "/retry", "/retry"], answer)
    assert [contents(request) for request in requests] == [
        ["one"],
        ["one", "1", "two"],
        ["one", "1", "two"],
        ["one", "1", "two"],
    ]
    assert "there is no message to answer again" in capsys.readouterr().err


def test_statistics_and_a_cut_answer(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    talk(["one"], lambda request: says("a", "b", reason="length"))
    shown = capsys.readouterr().err
    assert re.search(r"\(2 tokens, \d+\.\d s, first token after \d\.\d\d s", shown)
    assert "cut at the limit of tokens: /set max_new_tokens" in shown


def test_a_speed_is_told_of_answers_that_take_some_time() -> None:
    """The speed in tokens per second is left out for a short answer, whose tokens may arrive all at once."""
    answer = ChatAnswer(tokens=5, started=10.0, first=10.5, ended=12.5)
    assert statistics(answer) == "(5 tokens, 2.5 s, first token after 0.50 s, 2.0 tokens/s)"
    answer = ChatAnswer(tokens=5, started=10.0, first=10.5, ended=10.5001)
    assert statistics(answer) == "(5 tokens, 0.5 s, first token after 0.50 s)"


def test_models_that_cannot_chat_are_not_offered(
    talk: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = {"tale": ["/embed"], "story": ["/v1/chat/completions"]}
    models = [{"name": name, "routes": own} for name, own in routes.items()]
    monkeypatch.setitem(PAGES, "/info", PAGES["/info"] | {"models": models})
    talk(["/model", "/model tale"], lambda request: says("x"))
    shown = capsys.readouterr()
    assert shown.out.startswith("* story\n") and "tale" not in shown.out
    assert "tale cannot chat; models that can: story" in shown.err


def test_every_change_is_confirmed(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    talk(["/model tale", "/set top_k 3", "/set top_k", "/system Be kind.", "/reset"], lambda request: says("x"))
    told = capsys.readouterr().err.splitlines()[2:7]
    assert told == [
        "tale answers from now on",
        "top_k = 3",
        "top_k has its default again",
        "a new conversation, with this system message",
        "a new conversation",
    ]


def test_a_conversation_is_saved(talk: Talk, capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    (tmp_path / "old.txt").write_text("keep")
    saves = [f"/save {tmp_path / name}" for name in ("chat.json", "chat.txt", "old.txt", "none/chat.txt")]
    talk(["one", *saves, "/save"], lambda request: says("x"))
    messages = json.loads((tmp_path / "chat.json").read_text())["messages"]
    assert messages == [{"role": "user", "content": "one"}, {"role": "assistant", "content": "x"}]
    assert (tmp_path / "chat.txt").read_text() == "user: one\n\nassistant: x\n\n"
    assert (tmp_path / "old.txt").read_text() == "keep"
    shown = capsys.readouterr().err
    assert "exists already" in shown and "cannot write" in shown and "write the name of a file" in shown
