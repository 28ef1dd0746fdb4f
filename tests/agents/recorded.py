"""Recorded requests of programs: what they sent, without prompts and private data, for tests that need no program.

`RECORD_REQUESTS=1 make test-agents` writes them to tests/e2e/recorded. Long texts are cut, because only the form of a
request matters; ids are replaced; the folder of the project becomes `/project`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.agents.recorder import Exchange
from tests.e2e.conftest import REPOSITORY

FOLDER = REPOSITORY / "tests" / "e2e" / "recorded"
PROJECT = Path("/project")
MAX_CHARACTERS = 120
_KEPT_HEADERS = re.compile(r"accept|content-type|anthropic-.*|openai-.*|origin|sec-fetch-.*|user-agent")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{64}")


@dataclass(frozen=True)
class Recorded:
    """A request. turn: the turn of the program that it belongs to, as in the name of the test."""

    turn: str
    method: str
    path: str
    headers: dict[str, str]
    body: Any


def trimmed(value: Any, replaced: dict[str, str]) -> Any:
    """A value of a request without private data. replaced: texts to replace, and by what."""
    if isinstance(value, dict):
        return {_replace(key, replaced): trimmed(one, replaced) for key, one in value.items()}
    if isinstance(value, list):
        return [trimmed(one, replaced) for one in value]
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
    """Add the last request of a turn to the file of a program, in place of an older one of the same turn.

    It has everything: tools, calls, results, and reasoning that the program sends back.
    """
    *_, last = (one for one in exchanges if one.method == "POST")
    headers = {name: value for name, value in last.headers.items() if _KEPT_HEADERS.fullmatch(name)}
    found = Recorded(turn, last.method, last.path, headers, trimmed(last.body, replaced))
    file = FOLDER / f"{program}.json"
    others = [one for one in read(file) if one.turn != turn] if file.exists() else []
    FOLDER.mkdir(exist_ok=True)
    lines = [json.dumps(asdict(one), ensure_ascii=False) for one in sorted([*others, found], key=lambda one: one.turn)]
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def read(file: Path) -> list[Recorded]:
    """The requests in a file."""
    return [Recorded(**one) for one in json.loads(file.read_text())]
