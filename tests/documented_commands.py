"""The shell commands on the pages of the project, and the marks that say which of them are run.

A block of the language `console` is run by the tests of its page. Any other shell block has a mark on the line before:
`<!-- run by tests/FILE.py -->`, or `<!-- not run: REASON -->`. The page does not show these comments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SHELLS = ("console", "sh", "shell", "bash")
GENERATED = frozenset({"docs/clients.md"})
"""Pages whose blocks are copies of `examples/`, which the tests of clients run."""
_BLOCK = re.compile(r"^(?P<before>[^\n]*)\n```(?P<language>\w*)(?P<more>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S)
_MARK = re.compile(r"<!-- (run by|not run:) (.+?) -->")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A block of code. page: path from the root. mark, reason: of the comment before it, or empty."""

    page: str
    line: int
    language: str
    code: str
    mark: str
    reason: str

    @property
    def commands(self) -> list[str]:
        """The commands, with continued lines joined and without comments. The lines of a here-document are left out."""
        found: list[str] = []
        end = None
        for line in self.code.replace("\\\n", " ").splitlines():
            if end is not None:
                end = None if line == end else end
                continue
            if here := re.search(r"<<'?(\w+)'?", line):
                end = here[1]
            if text := re.sub(r"(^|\s)#.*", "", line).strip():
                found.append(text)
        return found


def pages() -> list[Path]:
    """All pages that people read. Decisions and reports have no commands to follow."""
    found = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md"), *(REPOSITORY / "deploy").rglob("*.md")]
    return sorted(page for page in found if page.name != "CHANGELOG.md")


def shell_blocks() -> list[Block]:
    return [block for page in pages() for block in _blocks(page) if block.language in SHELLS]


def _blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in _BLOCK.finditer(text):
        mark = _MARK.fullmatch(match["before"].strip())
        kind, reason = (mark[1].removesuffix(":"), mark[2]) if mark else ("", "")
        line = text.count("\n", 0, match.start("language")) + 1
        name = page.relative_to(REPOSITORY).as_posix()
        found.append(Block(name, line, match["language"], match["code"], kind, reason))
    return found


def inline_commands() -> list[tuple[str, str]]:
    """Commands in the text of the pages, such as `triptych check ID`: (page, command)."""
    found = []
    for page in pages():
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        found += [(page.relative_to(REPOSITORY).as_posix(), code) for code in _CODE.findall(text)]
    return found
