"""Write `docs/decisions/README.md`, the index of the decisions with their status. Run: `make reference`.

A page begins with `# NUMBER. TITLE`. If later decisions replace it, the next paragraph says so and links them:

    *Superseded: [decision 26](0026-bursts.md) bounds ...*
    *Superseded in part: [decision 77](0077-speech-in-full.md) added ...*
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

DECISIONS = Path(__file__).resolve().parent / "decisions"
PAGE = DECISIONS / "README.md"
_TITLE = re.compile(r"# (\d+)\. (.+)\n")
_STATUS = re.compile(r"\n\*(Superseded|Superseded in part): ((?:[^*\n]+\n?)+)\*\n")
_LINK = re.compile(r"\]\((\d{4})-[\w-]+\.md\)")
_HEAD = """# Decisions

Why the code is as it is: one page for each choice that somebody may ask about, with the measurements and the rejected
alternatives. A page describes the time at which it was written. The third column says what later decisions changed; the
page itself says it below its title. An empty cell means that the page is in force.

Write a page with the next free number: `# NUMBER. TITLE`, then the reason. If it replaces an older page, write
`*Superseded: ...*` or `*Superseded in part: ...*` with a link to the new page below the title of the old one.
`make reference` writes this index, and a test checks that it is complete. Numbers without a page were never used.

| | decision | status |
|---|---|---|
"""


@dataclass(frozen=True)
class Decision:
    """The page of one decision.

    status: "Superseded", "Superseded in part", or "" if the decision is in force. note: text about its successors.
    """

    name: str
    number: int
    title: str
    status: str
    note: str

    @property
    def successors(self) -> list[int]:
        """Numbers of the decisions that the note links."""
        return sorted({int(number) for number in _LINK.findall(self.note)})


def read(name: str, text: str) -> Decision:
    """Parse the page of a decision. name: name of the file. text: its content.

    Raises ValueError if the page does not begin with its title.
    """
    title = _TITLE.match(text)
    if title is None:
        raise ValueError(f"{name} does not begin with '# NUMBER. TITLE'")
    status = _STATUS.match(text, title.end())
    kind, note = (status[1], " ".join(status[2].split())) if status else ("", "")
    return Decision(name, int(title[1]), title[2].strip(), kind, note)


def decisions() -> list[Decision]:
    """All decisions in the order of their numbers."""
    pages = sorted(DECISIONS.glob("[0-9]*.md"))
    return [read(page.name, page.read_text(encoding="utf-8")) for page in pages]


def page(listed: list[Decision]) -> str:
    """The text of the index."""
    replaced = defaultdict(list)
    for decision in listed:
        for number in decision.successors:
            replaced[number].append(decision)
    rows = []
    for decision in listed:
        changes = ", ".join(f"[{old.number}]({old.name})" for old in replaced[decision.number])
        parts = [f"**{decision.status}:** {decision.note}"] if decision.status else []
        parts += [f"Changes {changes}."] if changes else []
        rows.append(f"| {decision.number} | [{decision.title}]({decision.name}) | {' '.join(parts)} |")
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(decisions()), encoding="utf-8")
