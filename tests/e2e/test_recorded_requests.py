"""Requests that real programs sent, recorded by `make test-agents`, are answered as in that run.

These tests do not need the programs, so they can always run. They fail if a change of the server breaks a program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.agents.programs import ANSWER, PROGRAMS, script_of, scripts
from tests.agents.recorded import FOLDER, PROJECT, Recorded, item_ids, read, trimmed
from tests.e2e.conftest import RunningServer, serving
from tests.scripted_model import write_scripted

REQUESTS = [(file.stem, recorded) for file in sorted(FOLDER.glob("*.json")) for recorded in read(file)]
PROGRAMS_BY_ID = {program.id: program for program in PROGRAMS}
_TEXTS = ("text", "content", "delta", "response", "output_text")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("recorded")
    model = write_scripted(directory / "model", scripts(PROJECT))
    with serving(directory / "log", f"scripted={model}") as running:
        yield running


def texts(value: Any) -> Iterator[str]:
    """Yield the generated texts in a part of an answer, in any dialect."""
    if isinstance(value, list):
        for part in value:
            yield from texts(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            if key in _TEXTS and isinstance(part, str):
                yield part
            yield from texts(part)


def parts(answer: str) -> list[Any]:
    """The JSON values of an answer: the whole body, or the data of each event of a stream."""
    try:
        return [json.loads(answer)]
    except ValueError:
        lines = [re.sub(r"^data: ?", "", line) for line in answer.splitlines()]
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize(
    ("program", "request_"), REQUESTS, ids=[f"{program}-{sent.turn}" for program, sent in REQUESTS]
)
def test_a_recorded_request_is_answered(server: RunningServer, program: str, request_: Recorded) -> None:
    ids: dict[str, str] = {}

    def post(body: Any) -> httpx.Response:
        content = json.dumps(body)
        for recorded, new in ids.items():
            content = content.replace(recorded, new)
        answer = server.post(request_.path, headers=request_.headers, content=content)
        assert answer.status_code == 200, answer.text
        return answer

    for body, recorded_ids in request_.before:
        ids |= zip(recorded_ids, item_ids(post(body).text), strict=True)
    answer = post(request_.body)
    found = parts(answer.text)
    assert found and not any(part.get("error") or part.get("type") == "error" for part in found)
    turn = request_.turn.partition("-")[0]
    step = scripts(PROJECT)[script_of(PROGRAMS_BY_ID[program], turn)][-1]
    if step.calls:
        assert step.calls[0].name in answer.text
    else:
        # smolagents stops the answer at the end of its code.
        assert step.content.removesuffix("</code>") in "".join(text for part in found for text in texts(part))


def test_recorded_requests_are_of_programs_in_the_table() -> None:
    recorded = {program for program, _ in REQUESTS}
    assert {"codex", "open-webui"} <= recorded <= set(PROGRAMS_BY_ID)


def test_recorded_requests_have_no_long_texts_and_no_ids() -> None:
    for _, recorded in REQUESTS:
        assert trimmed(recorded.body, {}) == recorded.body


def test_texts_are_cut_and_ids_replaced() -> None:
    body = {"a": "x" * 500, "b": ["before [[script:text]] after", "/home/me/notes.txt"], "c": '{"d": 1}'}
    user = "8e2b5d3c-1f2a-4b3c-9d4e-5f6a7b8c9d0e"
    kept = trimmed(body | {"user": user}, {"/home/me": "/project"})
    assert len(kept["a"]) == 121 and kept["b"] == ["[[script:text]] after", "/project/notes.txt"]
    assert kept["c"] == body["c"] and kept["user"].strip("0-") == ""


def test_texts_of_every_dialect_are_found() -> None:
    stream = (
        'event: x\ndata: {"delta": {"text": "a"}}\n\ndata: {"choices": [{"delta": {"content": "b"}}]}\n\ndata: [DONE]'
    )
    assert list(texts(parts(stream))) == ["a", "b"]
    assert list(texts(parts('{"message": {"content": "' + ANSWER + '"}}'))) == [ANSWER]
