"""Read the inputs of a batch (one text, lines, or JSON lines), and write its outcomes as JSON lines.

An input line of JSON is a string, or an object with the text and any fields of the request. Such a field takes
precedence over the command's flag for it. The field `id` names the line in the output.

The output has one object per line: `line`, `id` if there was one, `answer` or `error`, and `truncated` if the text was
cut to fit the model. An answer that the time limit has ended has the finish reason `timeout`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

from server.client.errors import CommandError

Format = Literal["text", "lines", "jsonl"]
JSON_SUFFIXES = (".jsonl", ".ndjson")
NOT_IN_BATCHES = ("stream",)


@dataclass(frozen=True)
class Record:
    """One input of a batch.

    line: line number in the input, from 1.
    item: a text, or another value that the request accepts (token ids, a pair of texts).
    id: value of the field `id`; None if there is none.
    fields: fields of the request, which take precedence over the command's flags.
    """

    line: int
    item: Any
    id: str | int | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str | int]:
        """Key by which the answer to this input is found in the output of an earlier run: its id, or its line."""
        return ("line", self.line) if self.id is None else ("id", self.id)


@dataclass(frozen=True)
class Outcome:
    """The result of one input: an answer or an error.

    record: the input. answer: the answer as JSON.
    error: the server's error as JSON, with at least a `message`; None if there is an answer.
    truncated: whether the text was cut to fit the model.
    """

    record: Record
    answer: Any = None
    error: Any = None
    truncated: bool = False

    @property
    def cut(self) -> bool:
        """Whether a time limit has ended the answer before it was complete."""
        return self.error is None and is_cut(self.answer)

    @property
    def short(self) -> bool:
        """Whether the limit of tokens has ended the answer before the model did."""
        return self.error is None and "length" in finish_reasons(self.answer)


def is_cut(answer: Any) -> bool:
    """Whether a time limit has ended an answer, or a part of it (finish reason `timeout`)."""
    return "timeout" in finish_reasons(answer)


def finish_reasons(answer: Any) -> set[str]:
    """Return the finish reasons in an answer of `/generate` or `/translate`, and in its choices or translations."""
    if not isinstance(answer, dict):
        return set()
    parts = [*answer.get("choices", ()), *answer.get("translations", ()), answer]
    return {part["finish_reason"] for part in parts if part.get("finish_reason")}


def read_records(
    texts: Sequence[str], source: Path | None, format: Format | None, default: Format, field: str
) -> list[Record]:
    """Return the inputs of a command: its arguments, else the contents of a file or of standard input.

    texts: the arguments; `-` alone is standard input.
    source: the file; `-` or None is standard input.
    format: format of the file. None: JSON lines if the file's name says so, else `default`.
    field: field of the request that holds the text.
    Raises CommandError for an input that cannot be read or has the wrong form.
    """
    if texts and texts != ["-"]:
        if source is not None:
            raise CommandError("give texts or --input, not both")
        return [Record(line, text) for line, text in enumerate(texts, 1)]
    name, text = _read(source)
    if format is None:
        format = "jsonl" if source is not None and source.suffix in JSON_SUFFIXES else default
    if format == "text":
        return [Record(1, text.removesuffix("\n"))]
    lines = text.splitlines() if format == "lines" else text.split("\n")
    if format == "lines":
        return [Record(number, line) for number, line in enumerate(lines, 1)]
    records = [_parse(name, number, line, field) for number, line in enumerate(lines, 1) if line.strip()]
    _check_unique(name, records)
    return records


def _read(source: Path | None) -> tuple[str, str]:
    """Read a file, or standard input for None and `-`. Returns its name for messages, and its text.

    Raises CommandError for a file that cannot be read or is not UTF-8, and if standard input is a terminal.
    """
    if source is None or str(source) == "-":
        if sys.stdin.isatty():
            raise CommandError("no text: write it after the command, pipe it in, or name a file with --input")
        source, name = None, "standard input"
    else:
        name = str(source)
    try:
        data = sys.stdin.buffer.read() if source is None else source.read_bytes()
        return name, data.decode("utf-8-sig")
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{name} is not UTF-8 text (byte {error.start})") from None


def _parse(name: str, number: int, line: str, field: str) -> Record:
    try:
        value = json.loads(line)
    except ValueError:
        raise CommandError(f"{name} line {number}: not JSON") from None
    if isinstance(value, str):
        return Record(number, value)
    if not isinstance(value, dict):
        raise CommandError(f"{name} line {number}: write a string, or an object with `{field}`")
    fields = dict(value)
    id = fields.pop("id", None)
    if id is not None and (isinstance(id, bool) or not isinstance(id, str | int)):
        raise CommandError(f"{name} line {number}: `id` must be a string or an integer")
    names = [key for key in (field, "text") if key in fields]
    if len(names) != 1:
        raise CommandError(
            f"{name} line {number}: write the text as `{field}`"
            + (", or as `text`" if not names else " or as `text`, not both")
        )
    item = fields.pop(names[0])
    for refused in NOT_IN_BATCHES:
        if refused in fields:
            raise CommandError(f"{name} line {number}: `{refused}` cannot be set in a batch")
    return Record(number, item, id, fields)


def _check_unique(name: str, records: Iterable[Record]) -> None:
    seen: dict[tuple[str, str | int], int] = {}
    for record in records:
        if record.key in seen:
            raise CommandError(f"{name} line {record.line}: `id` {record.id!r} is that of line {seen[record.key]} too")
        seen[record.key] = record.line


class JsonLines:
    """Writes outcomes to a file as JSON lines. Each line is flushed before the next one is written."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, outcome: Outcome) -> None:
        line: dict[str, Any] = {"line": outcome.record.line}
        if outcome.record.id is not None:
            line["id"] = outcome.record.id
        line |= {"answer": outcome.answer} if outcome.error is None else {"error": outcome.error}
        if outcome.truncated:
            line["truncated"] = True
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()


def remaining(records: Sequence[Record], output: Path) -> list[Record]:
    """Return the inputs that have no complete answer in the output of an earlier run.

    Removes lines from the output that will be written again: errors, answers that a time limit has ended, and the
    unfinished last line of a run that was killed. Raises CommandError for a file that is not the output of these
    inputs, or cannot be read or written.
    """
    keys = {record.key for record in records}
    done: set[tuple[str, str | int]] = set()
    kept: list[bytes] = []
    try:
        whole = output.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {output}: {error.strerror}") from None
    for number, line in enumerate(whole.splitlines(keepends=True), 1):
        try:
            value = json.loads(line)
            key = ("id", value["id"]) if "id" in value else ("line", value["line"])
            answered = "answer" in value and not is_cut(value["answer"])
        except (ValueError, LookupError, TypeError):
            if not line.endswith(b"\n"):
                break
            raise CommandError(f"{output} line {number}: not an answer of an earlier run") from None
        if key not in keys or key in done:
            raise CommandError(
                f"{output} line {number}: {key[0]} {key[1]!r} is not in the input; is it another input's?"
            )
        if answered:
            done.add(key)
            kept.append(line if line.endswith(b"\n") else line + b"\n")
    _replace(output, b"".join(kept), whole)
    return [record for record in records if record.key not in done]


def _replace(path: Path, data: bytes, earlier: bytes) -> None:
    """Replace the content of a file atomically: after an interruption, it has the old or the new content.

    earlier: the old content; nothing is written if it is the same. Raises CommandError if the file cannot be written.
    """
    if data == earlier:
        return
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
