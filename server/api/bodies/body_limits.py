"""Limits of request bodies: bytes, time, and number of JSON values. Chat has limits of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.api.bodies.json_size import BODY_VALUES, CHAT_VALUES, ValueLimits
from server.api.state import State
from server.operations.chatting.chat_prompt import check_body_bytes


@dataclass(frozen=True)
class BodyLimits:
    """Limits of one body.

    max_bytes: largest body.
    timeout_seconds: time for receiving the whole body.
    values: limits of the number of JSON values.
    check: called with the size of the body in bytes before it is parsed. May raise RequestError.
    """

    max_bytes: int
    timeout_seconds: float
    values: ValueLimits = BODY_VALUES
    check: Callable[[int], None] = lambda num_bytes: None


def body_limits(state: State, operation: str = "") -> BodyLimits:
    """Limits of the bodies of an operation.

    Chat takes larger bodies than other operations, because each request repeats the whole conversation. A chat body
    that is longer than any prompt could be is refused as a too long prompt before it is parsed.
    """
    settings = state.settings
    if operation != "chat":
        return BodyLimits(settings.max_body_bytes, settings.body_timeout_seconds)

    def check(num_bytes: int) -> None:
        if num_bytes > settings.max_body_bytes:
            check_body_bytes(state.runtime, num_bytes)

    return BodyLimits(settings.max_chat_body_bytes, settings.body_timeout_seconds, CHAT_VALUES, check)
