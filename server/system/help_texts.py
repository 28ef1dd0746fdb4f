"""Format the text below the flags in a command's help: wrap paragraphs, and leave examples unchanged."""

from __future__ import annotations

import argparse
import textwrap


class HelpFormatter(argparse.HelpFormatter):
    """argparse formatter that wraps paragraphs to the width of the terminal, and leaves indented lines unchanged.

    A line that ends with a full stop or a colon ends its paragraph.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        paragraph: list[str] = []
        for line in [*text.strip("\n").splitlines(), ""]:
            is_prose = bool(line.strip()) and not line.startswith(" ")
            if is_prose:
                paragraph.append(line)
            if paragraph and (not is_prose or line.endswith((".", ":"))):
                lines += textwrap.wrap(" ".join(paragraph), width, break_long_words=False, break_on_hyphens=False)
                paragraph = []
            if not is_prose:
                lines.append(line.rstrip())
        return "\n".join(lines).rstrip() + "\n"
