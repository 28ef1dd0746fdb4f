"""Record requests of programs without prompts and private data, for tests that run without the programs.

`RECORD_REQUESTS=1 make test-agents` writes them to tests/e2e/recorded. Long texts are cut, because only the form of a
request matters. Ids are replaced, and the path of the project's folder becomes `/project`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.agents.recorder import Exchange
from tests.e2e.conftest import REPOSITORY

FOLDER = REPOSITORY / "tests" / "e2e" / "recorded"
PROJECT = Path("/project")
MAX_CHARACTERS = 120
_KEPT_HEADERS = re.compile(r"accept|content-type|anthropic-.*|openai-.*|origin|sec-fetch-.*|user-agent")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{64}")


_ITEM_ID = re.compile(r'"id": ?"((?:resp|rs|msg|fc)_\w+)"')


@dataclass(frozen=True)
class Recorded:
    """A recorded request.

    turn: the turn of the program to which the request belongs, as in the name of the test.
    before: the earlier requests of the turn, each with the ids in its answer; empty unless the request refers to such
        ids.
    """

    turn: str
    path: str
    headers: dict[str, str]
    body: Any
    before: list[tuple[Any, list[str]]] = field(default_factory=list)


def trimmed(value: Any, replaced: dict[str, str]) -> Any:
    """Copy a JSON value of a request, with long texts cut and private texts replaced.

    replaced: text to replace → its replacement.
    """
    if isinstance(value, dict):
        return {_replace(key, replaced): trimmed(part, replaced) for key, part in value.items()}
    if isinstance(value, list):
        return [trimmed(part, replaced) for part in value]
    return _cut(_replace(value, replaced)) if isinstance(value, str) else value


def _replace(text: str, replaced: dict[str, str]) -> str:
    for one, other in replaced.items():
        text = text.replace(one, other)
    return _ID.sub("00000000-0000-0000-0000-000000000000", text)


def _cut(text: str) -> str:
    marker = text.find("[[script:")
    if marker >= 0:
        return text[marker:][:MAX_CHARACTERS]
    if len(text) <= MAX_CHARACTERS or _is_json(text):
        return text
    return text[:MAX_CHARACTERS] + "…"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def record(program: str, turn: str, exchanges: Iterable[Exchange], replaced: dict[str, str]) -> None:
    """Write the last request of a turn to the file of a program. It replaces an older request of the same turn.

    The last request contains all the others: tools, calls, results, and reasoning that the program sends back.
    """
    *earlier, last = (exchange for exchange in exchanges if exchange.method == "POST")
    refers = any(word in json.dumps(last.body) for word in ("item_reference", "previous_response_id"))
    before = [(trimmed(exchange.body, replaced), item_ids(exchange.answer)) for exchange in earlier if refers]
    headers = {name: value for name, value in last.headers.items() if _KEPT_HEADERS.fullmatch(name)}
    found = Recorded(turn, last.path, headers, trimmed(last.body, replaced), before)
    file = FOLDER / f"{program}.json"
    others = [recorded for recorded in read(file) if recorded.turn != turn] if file.exists() else []
    FOLDER.mkdir(exist_ok=True)
    lines = [
        json.dumps(asdict(recorded), ensure_ascii=False)
        for recorded in sorted([*others, found], key=lambda recorded: recorded.turn)
    ]
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def item_ids(answer: str) -> list[str]:
    """The ids of a response and of its items, in the order in which they appear."""
    return list(dict.fromkeys(_ITEM_ID.findall(answer)))


def read(file: Path) -> list[Recorded]:
    """The requests in a file."""
    return [Recorded(**fields) for fields in json.loads(file.read_text())]
