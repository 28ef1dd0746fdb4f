"""Say which name a user may have meant, and which names exist. Imports nothing of the server."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

MAX_LISTED = 20
"""Longest list of names in a message, so that it stays one line that can be read."""
_UNNAMED = "no model has this name"


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
    """The message for a model that does not exist: the name that was probably meant, and all names.

    The wrong name is not in it, because a server repeats no text of a request.
    """
    more = f" and {len(names) - MAX_LISTED} more (`GET /v1/models`)" if len(names) > MAX_LISTED else ""
    if not names:
        return f"{_UNNAMED}; there are no models"
    return f"{_UNNAMED}{did_you_mean(name, names) or ';'} the models are {', '.join(names[:MAX_LISTED])}{more}"


def with_name(message: str, name: object) -> str:
    """Put the wrong name into a message of `unknown_model`. Other messages stay as they are.

    The server's message does not repeat the name. The client that has sent the name calls this.
    """
    return message.replace(_UNNAMED, f"no model is named {name}", 1)
