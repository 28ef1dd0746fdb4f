"""Find the shell commands on the project's pages, with the comments that say which tests run them.

A code block with the language `console` is run by the tests of its page. Any other shell block has a comment on the
line before: `<!-- run by tests/FILE.py -->`, or `<!-- not run: REASON -->`. A rendered page does not show it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SHELLS = ("console", "sh", "shell", "bash")
GENERATED = frozenset({"docs/clients.md"})
"""Pages whose code blocks are copies of files in `examples/`. Tests run these files instead."""
_BLOCK = re.compile(r"^(?P<before>[^\n]*)\n```(?P<language>\w*)(?P<more>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S)
_MARK = re.compile(r"<!-- (run by|not run:) (.+?) -->")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A code block. page: path of the page from the root of the repository. line: line number of its first line.

    mark, reason: `run by` and the file, or `not run` and the reason; empty without a comment.
    """

    page: str
    line: int
    language: str
    code: str
    mark: str
    reason: str

    @property
    def commands(self) -> list[str]:
        """The commands in the block. Continued lines are joined; comments and here-documents are left out."""
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
    """Paths of all pages with commands that a reader may run. Pages in subfolders of docs have none."""
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
