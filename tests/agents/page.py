"""Read the code blocks of docs/agents.md, and replace the page's address, model and task by those of a test."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.e2e.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "agents.md"
ADDRESS, MODEL, TASK = "http://127.0.0.1:8000", "qwen3", "Explain this repository."
"""Values in the code of the page that a reader replaces by other values."""


@dataclass(frozen=True)
class Block:
    """A code block. name: second word after the opening fence: a file name, or the name of one of several variants."""

    language: str
    name: str
    code: str


def sections() -> dict[str, list[Block]]:
    """The code blocks of each section of the page, by title of the section."""
    found = {}
    for part in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", part, flags=re.MULTILINE | re.DOTALL)
        found[part.partition("\n")[0]] = [Block(*fields) for fields in blocks]
    return found


def block(section: str, language: str, name: str = "") -> str:
    """The code of one block. Raises LookupError if the page has none, or several."""
    fitting = [
        candidate.code for candidate in sections()[section] if (candidate.language, candidate.name) == (language, name)
    ]
    if len(fitting) != 1:
        raise LookupError(f"docs/agents.md has {len(fitting)} blocks `{language} {name}` in section {section}")
    return fitting[0]


def pointed(code: str, address: str, model: str, task: str) -> str:
    """Replace the page's address, model and task in `code` by the given ones."""
    for written, used in ((ADDRESS, address), (MODEL, model), (TASK, task)):
        code = code.replace(written, used)
    return code
