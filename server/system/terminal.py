"""Write text for people to a terminal: colours if the terminal has them, and tables that fit its width."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Literal, TextIO

Style = Literal["bold", "dim", "red", "green", "yellow"]
_CODES: dict[Style, str] = {"bold": "1", "dim": "2", "red": "1;31", "green": "32", "yellow": "33"}
_MIN_TEXT_COLUMNS = 40
"""Least width of the second column of a table. If there is less, its texts go on separate lines below the first."""


def has_colors(file: TextIO) -> bool:
    """Whether a file can show colours: a terminal other than `dumb`, unless NO_COLOR is set (https://no-color.org)."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, style: Style, file: TextIO) -> str:
    """Return a text with the escape codes of a style; unchanged if the file cannot show colours."""
    return f"\033[{_CODES[style]}m{text}\033[0m" if has_colors(file) else text


def prompt(text: str) -> str:
    """Return a prompt for `input`, in colour if standard output can show colours.

    The codes \\001 and \\002 mark the characters that take no room. Without them, readline would break long lines at
    the wrong column.
    """
    return f"\001\033[{_CODES['green']}m\002{text}\001\033[0m\002" if has_colors(sys.stdout) else text


def table(rows: Sequence[tuple[str, str]]) -> None:
    """Print a table of two columns. On a terminal, long texts are wrapped at spaces. rows: (name, text) of each row."""
    width = max((len(name) for name, _ in rows), default=0)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for name, text in rows:
        head = styled(f"{name:<{width}}", "bold", sys.stdout)
        if columns is None or width + 2 + len(text) <= columns:
            print(f"{head}  {text}")
        elif columns - width - 2 >= _MIN_TEXT_COLUMNS:
            first, *more = textwrap.wrap(text, columns - width - 2, break_on_hyphens=False)
            print(f"{head}  {first}", *(f"{'':<{width}}  {line}" for line in more), sep="\n")
        else:
            lines = textwrap.wrap(text, max(columns - 4, 20), break_on_hyphens=False)
            print(styled(name, "bold", sys.stdout), *(f"    {line}" for line in lines), sep="\n")
