"""The field `keep_alive` of Ollama: the time that a model stays loaded after a request.

A number is in seconds. A text is a number, or a duration in Go's notation, such as `1h30m`. A negative value keeps the
model for ever; 0 unloads it when its last request has ended. Source: `api/types.go` of Ollama, type `Duration`.
"""

from __future__ import annotations

import math
import re

from server.errors import InvalidRequest

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|ms|s|m|h)")
_DURATION = re.compile(rf"([+-]?)((?:{_PART.pattern})+)")
MAX_CHARACTERS = 64


def keep_alive_seconds(value: object) -> float | None:
    """Convert `keep_alive` to the seconds without requests after which the model is unloaded; None for never.

    Raises InvalidRequest for a value that is no duration.
    """
    seconds = _seconds(value)
    if seconds is None or not math.isfinite(seconds):
        raise InvalidRequest("`keep_alive` must be a number of seconds or a duration such as 5m or 1h30m", "keep_alive")
    return None if seconds < 0 else seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e18 else None
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
        return None
    if re.fullmatch(r"[+-]?\d+(\.\d+)?", value):
        return float(value)
    found = _DURATION.fullmatch(value)
    if found is None:
        return None
    total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(found[2]))
    return -total if found[1] == "-" else total


def unloads(value: object) -> bool:
    """Whether a value of `keep_alive` is 0, which unloads the model as soon as no request uses it."""
    return value is not None and value != "" and _seconds(value) == 0
