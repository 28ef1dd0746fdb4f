"""Say which name a user may have meant, and which names exist. Imports nothing of the server."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

MAX_LISTED = 20
"""Longest list of names in a message, so that it stays one line that can be read."""
_SHOWN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,95}")
"""A text that can be the name of a model. Any other text is not repeated in messages and logs."""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that is most like a wrong one, whatever its case; None if no name is like it."""
    folded = {other.casefold(): other for other in names}
    found = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message: `; did you mean story?`. Empty if no name is like the wrong one."""
    near = nearest(name, names)
    return "" if near is None else f"; did you mean {near}?"


def unknown_model(name: str, names: Sequence[str]) -> str:
    """The message for a model that does not exist: its name, the name that was probably meant, and all names."""
    shown = f"no model is named {name}" if _SHOWN.fullmatch(name) else "no model has this name"
    more = f" and {len(names) - MAX_LISTED} more (`GET /v1/models`)" if len(names) > MAX_LISTED else ""
    return f"{shown}{did_you_mean(name, names) or ';'} the models are {', '.join(names[:MAX_LISTED])}{more}"
