"""Suggest the name that a user probably meant, and list the names that exist. Imports nothing of the server."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

MAX_LISTED = 20
"""Most names that a message lists, so that it stays one readable line."""
_UNNAMED = "no model has this name"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that is most similar to a wrong name, ignoring case; None if no name is similar."""
    folded = {other.casefold(): other for other in names}
    found = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a suggestion for the end of a message: `; did you mean story?`. Empty if no name is similar."""
    near = nearest(name, names)
    return "" if near is None else f"; did you mean {near}?"


def unknown_model(name: str, names: Sequence[str]) -> str:
    """Return the message for a model that does not exist: the name that was probably meant, and the existing names.

    The message does not contain the wrong name, because the server never repeats text of a request.
    """
    more = f" and {len(names) - MAX_LISTED} more (`GET /v1/models`)" if len(names) > MAX_LISTED else ""
    if not names:
        return f"{_UNNAMED}; there are no models"
    return f"{_UNNAMED}{did_you_mean(name, names) or ';'} the models are {', '.join(names[:MAX_LISTED])}{more}"


def with_name(message: str, name: object) -> str:
    """Put the wrong name into a message of `unknown_model`. Other messages are returned unchanged.

    The client that has sent the name calls this, because the server's message does not contain it.
    """
    return message.replace(_UNNAMED, f"no model is named {name}", 1)
