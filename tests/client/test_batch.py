"""Batches of requests: order of results, limited concurrency, groups, continuation, and interruptions."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import httpx
import pytest

from server.client.batch import run_batch
from server.client.connection import Connection, ServerAddress
from server.client.errors import CommandError, RequestFailed
from server.client.records import JsonLines, Outcome, Record, read_records, remaining
from server.client.tasks import TASKS, groups, send


def outcome(number: int) -> Outcome:
    return Outcome(Record(number, "a"), number)


async def test_outcomes_are_written_in_order_and_few_requests_run_at_a_time() -> None:
    running = most = 0
    written: list[int] = []

    async def work(number: int) -> list[Outcome]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(7 - number % 7):  # later ones end earlier
            await asyncio.sleep(0)
        running -= 1
        return [outcome(number)]

    await run_batch(range(40), work, lambda ended: written.append(ended.answer), concurrency=5)
    assert written == list(range(40)) and most == 5


async def test_a_slow_request_holds_back_the_output_and_not_the_work() -> None:
    written: list[int] = []
    release = asyncio.Event()

    async def work(number: int) -> list[Outcome]:
        if number == 1:
            await release.wait()
        if number == 9:
            assert written == [0]
            release.set()
        return [outcome(number)]

    await run_batch(range(10), work, lambda ended: written.append(ended.answer), concurrency=2)
    assert written == list(range(10))


@pytest.mark.parametrize("how", ["failure", "cancellation"])
async def test_nothing_that_was_answered_is_lost(how: str) -> None:
    written: list[int] = []
    answered = asyncio.Event()

    async def work(number: int) -> list[Outcome]:
        if number == 0:
            await answered.wait()
            if how == "failure":
                raise RequestFailed("stop", 503)
            await asyncio.Event().wait()
        if number == 3:
            answered.set()
            await asyncio.Event().wait()
        return [outcome(number)]

    run = asyncio.ensure_future(run_batch(range(9), work, lambda ended: written.append(ended.answer), concurrency=2))
    if how == "cancellation":
        await answered.wait()
        run.cancel()
    with pytest.raises(RequestFailed if how == "failure" else asyncio.CancelledError):
        await run
    assert written == [1, 2]


def test_neighbours_with_the_same_fields_share_a_request() -> None:
    plain = [Record(line, "a") for line in range(5)]
    other = Record(9, "b", fields={"target_lang": "fr"})
    divided = groups([*plain, other, Record(10, "c")], 2)
    assert [[record.line for record in group] for group in divided] == [[0, 1], [2, 3], [4], [9], [10]]


def connection(answer) -> tuple[Connection, list[dict]]:
    bodies: list[dict] = []

    def handle(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return answer(bodies[-1])

    return Connection(ServerAddress("http://server", retries=0), httpx.MockTransport(handle)), bodies


async def test_a_refused_text_fails_alone() -> None:
    def answer(body: dict) -> httpx.Response:
        if "bad" in body["inputs"]:
            return httpx.Response(422, json={"error": {"message": "too long", "code": "context_length_exceeded"}})
        return httpx.Response(200, json=[[1.0]] * len(body["inputs"]), headers={"x-truncated-inputs": "0"})

    server, bodies = connection(answer)
    group = [Record(1, "good"), Record(2, "bad"), Record(3, "fine")]
    outcomes = await send(server, TASKS["embed"], group, {"normalize": False})
    assert [ended.answer for ended in outcomes] == [[1.0], None, [1.0]]
    assert outcomes[1].error == {"message": "too long", "code": "context_length_exceeded"}
    assert [ended.truncated for ended in outcomes] == [True, False, True]
    assert [body["inputs"] for body in bodies] == [["good", "bad", "fine"], ["good"], ["bad"], ["fine"]]
    assert all(body["normalize"] is False for body in bodies)


@pytest.mark.parametrize("status", [401, 404, 429, 503])
async def test_a_failure_that_all_texts_share_ends_the_batch(status: int) -> None:
    server, bodies = connection(lambda body: httpx.Response(status))
    with pytest.raises(RequestFailed):
        await send(server, TASKS["embed"], [Record(1, "a"), Record(2, "b")], {})
    assert len(bodies) == 1


async def test_an_answer_of_another_server_is_refused() -> None:
    for value in ({"data": []}, [], "text", None):
        server, _ = connection(lambda body, value=value: httpx.Response(200, content=json.dumps(value)))
        with pytest.raises(CommandError, match="another server"):
            await send(server, TASKS["translate"], [Record(1, "a")], {})


def read(tmp_path: Path, *lines: str) -> list[Record]:
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(lines))
    return read_records([], file, None, "text", "prompt")


def test_json_lines(tmp_path: Path) -> None:
    records = read(
        tmp_path, '"a"', "", '{"prompt": "b", "id": "x", "seed": 1}', '{"text": "c\u2028"}', '{"prompt": [1, 2]}'
    )
    assert records == [
        Record(1, "a"),
        Record(3, "b", "x", {"seed": 1}),
        Record(4, "c\u2028"),
        Record(5, [1, 2]),
    ]
    assert TASKS["generate"].body([records[1]], {"seed": 2, "top_k": 3}) == {"prompt": "b", "seed": 1, "top_k": 3}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not JSON"),
        ("7", "line 1: write a string"),
        ("{}", "line 1: write the text as `prompt`, or as `text`"),
        ('{"prompt": "a", "text": "b"}', "not both"),
        ('{"prompt": "a", "id": [1]}', "`id` must be"),
        ('{"prompt": "a", "stream": true}', "`stream` cannot be set"),
        ('{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 1}', "line 2: `id` 1 is that of line 1 too"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        read(tmp_path, line)


def test_lines_and_texts(tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_text("one\n\nthree\n")
    assert [record.item for record in read_records([], file, None, "lines", "inputs")] == ["one", "", "three"]
    assert [record.item for record in read_records([], file, "text", "lines", "inputs")] == ["one\n\nthree"]
    file.write_bytes(b"\xff")
    with pytest.raises(CommandError, match="not UTF-8"):
        read_records([], file, None, "lines", "inputs")
    with pytest.raises(CommandError, match="No such file"):
        read_records([], tmp_path / "none", None, "lines", "inputs")
    with pytest.raises(CommandError, match="not both"):
        read_records(["a"], file, None, "lines", "inputs")


def test_resume_sends_what_has_no_answer(tmp_path: Path) -> None:
    records = read(tmp_path, '"a"', '{"prompt": "b", "id": 7}', '{"prompt": "c", "id": "7"}', '"d"', '"e"')
    output = tmp_path / "out.jsonl"
    with output.open("w") as file:
        writer = JsonLines(file)
        writer.write(Outcome(records[2], {"x": 1}))
        writer.write(Outcome(records[0], error={"message": "no"}))
        writer.write(Outcome(records[1], "B"))
        file.write('{"line": 4, "answ')  # the run was killed here
    assert remaining(records, output) == [records[0], records[3], records[4]]
    kept = output.read_text().splitlines()
    assert [json.loads(line) for line in kept] == [
        {"line": 3, "id": "7", "answer": {"x": 1}},
        {"line": 2, "id": 7, "answer": "B"},
    ]
    assert output.read_text().endswith("\n")
    assert remaining(records, output) == [records[0], records[3], records[4]]


@pytest.mark.parametrize(
    "text",
    ['{"line": 9, "answer": 1}\n', '{"id": "q", "line": 1, "answer": 1}\n', '{"line": 1, "answer": 1}\n' * 2, "x\n"],
)
def test_the_output_of_another_input_is_not_continued(tmp_path: Path, text: str) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text(text)
    with pytest.raises(CommandError, match=r"out\.jsonl line"):
        remaining([Record(1, "a"), Record(2, "b")], output)
    assert output.read_text() == text


def test_json_lines_are_whole_lines_of_readable_text() -> None:
    file = io.StringIO()
    JsonLines(file).write(Outcome(Record(1, "a"), {"text": "é\n"}, truncated=True))
    assert file.getvalue() == '{"line": 1, "answer": {"text": "é\\n"}, "truncated": true}\n'
