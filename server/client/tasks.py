"""The tasks generate, translate, embed and classify: the route of each, its request, and its answers as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from server.client.connection import Connection
from server.client.errors import CommandError, RequestFailed
from server.client.options import CLASSIFICATION, EMBEDDING, GENERATION, TRANSLATION, Option
from server.client.records import Format, Outcome, Record

FATAL_STATUSES = frozenset({401, 403, 404, 405, 429, 502, 503})
"""Statuses that stop the command, because all inputs would fail: a wrong key, route or model, or a busy server."""


@dataclass(frozen=True)
class TextTask:
    """A command that sends texts to one route.

    name: name of the command.
    path: the route. field: field of the request for the text. options: other fields of the request.
    generates: whether the answer is generated text, which can be streamed and constrained.
    group_size: default number of texts in a request; 1 for a route to which single texts are sent.
    format: default format of a file or standard input.
    split: returns the answer to each text, in order, from the answer to a request.
    text: returns the text to print for an answer and its input.
    """

    name: str
    path: str
    field: str
    options: tuple[Option, ...]
    generates: bool
    group_size: int
    format: Format
    split: Callable[[Any], list[Any]]
    text: Callable[[Any, Record], str]

    def body(self, items: Sequence[Record], fields: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON body of the request for some inputs.

        items: inputs with the same fields. fields: fields for all requests; the fields of the inputs take precedence.
        """
        inputs: Any = items[0].item if self.group_size == 1 else [item.item for item in items]
        return {self.field: inputs} | fields | items[0].fields


def _generated(answer: Any, record: Record) -> str:
    return "\n".join(choice["text"] for choice in answer["choices"])


def _translated(answer: Any, record: Record) -> str:
    return "\n".join([answer["text"], *(alternative["text"] for alternative in answer["alternatives"])])


def _labels(answer: Any, record: Record) -> str:
    text = record.item if isinstance(record.item, str) else json.dumps(record.item, ensure_ascii=False)
    return "\n".join(f"{label['label']}\t{label['score']:.4f}\t{text}" for label in answer)


TASKS = {
    task.name: task
    for task in (
        TextTask("generate", "/generate", "prompt", GENERATION, True, 1, "text", lambda answer: [answer], _generated),
        TextTask(
            "translate",
            "/translate",
            "inputs",
            GENERATION + TRANSLATION,
            True,
            8,
            "lines",
            lambda answer: list(answer["translations"]),
            _translated,
        ),
        TextTask(
            "embed", "/embed", "inputs", EMBEDDING, False, 32, "lines", list, lambda answer, record: json.dumps(answer)
        ),
        TextTask("classify", "/classify", "inputs", CLASSIFICATION, False, 32, "lines", list, _labels),
    )
}


def groups(records: Sequence[Record], size: int) -> list[list[Record]]:
    """Divide inputs into requests. A request has up to `size` neighbouring inputs with the same fields."""
    divided: list[list[Record]] = []
    for record in records:
        if divided and len(divided[-1]) < size and divided[-1][0].fields == record.fields:
            divided[-1].append(record)
        else:
            divided.append([record])
    return divided


async def send(
    connection: Connection, task: TextTask, group: Sequence[Record], fields: dict[str, Any]
) -> list[Outcome]:
    """Send some inputs in one request. Returns the outcome of each, in order.

    If the server refuses the request, each input is sent alone, so that only the faulty inputs fail.

    fields: fields of the request.
    Raises RequestFailed for an error that all inputs would get (`FATAL_STATUSES`), Unreachable if no server answers,
    and CommandError for an answer of another form.
    """
    try:
        answer = await connection.post(task.path, task.body(group, fields))
        answers = _split(task, answer.value, len(group))
    except RequestFailed as error:
        if error.status in FATAL_STATUSES:
            raise
        if len(group) > 1:
            return [outcome for record in group for outcome in await send(connection, task, [record], fields)]
        return [Outcome(group[0], error=error.error or {"message": str(error)})]
    return [
        Outcome(record, value, error=_error_of(value), truncated=place in answer.truncated)
        for place, (record, value) in enumerate(zip(group, answers, strict=True))
    ]


def _error_of(answer: Any) -> Any:
    """Return the error inside the answer to one input, or inside one of its choices; None if there is none."""
    parts = answer.get("choices", [answer]) if isinstance(answer, dict) else []
    return next((part["error"] for part in parts if "error" in part), None)


def _split(task: TextTask, answer: Any, count: int) -> list[Any]:
    try:
        answers = task.split(answer)
    except (LookupError, TypeError):
        answers = []
    if len(answers) != count:
        raise CommandError(f"{task.path} did not answer as Triptych does; is it another server?")
    return answers
