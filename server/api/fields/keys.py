"""API keys in the fields of a request, for dialects whose clients send them there instead of in a header."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from starlette.requests import Request

from server.api.entry.scope import CACHE_SALT, KEY_LIMITS
from server.api.state import State
from server.errors import BodyTooLarge, InvalidRequest, Unauthorized

_IN_HEADER = "as `Authorization: Bearer KEY` or `x-api-key: KEY`"
KEY_DEFERRED = "triptych.key_deferred"
"""Key in the ASGI scope: True if the route must check the API key, because no header has it but a field may."""


async def read_unverified(request: Request, reading: Awaitable[Any]) -> Any:
    """Await the reading of a body whose API key may not be checked yet, and return the body.

    If the key was to be in the body, raises Unauthorized instead of InvalidRequest and BodyTooLarge.
    """
    try:
        return await reading
    except (InvalidRequest, BodyTooLarge):
        if KEY_DEFERRED in request.scope:
            raise Unauthorized(f"send a valid API key {_IN_HEADER}") from None
        raise


def authorize(request: Request, state: State, field: str, key: object) -> None:
    """Check the API key in a field of the body, if no header has it. Must be called before any other work or answer.

    field: name of the field; empty if the dialect takes keys in headers only.
    key: value of the field.
    Raises Unauthorized for a missing or unknown key.
    """
    if not request.scope.pop(KEY_DEFERRED, False):
        return
    sent = key.encode("utf-8", "replace") if isinstance(key, str) and field else b""
    limits = state.keys.find(sent)
    if limits is None:
        place = f"in the field `{field}`" if field else _IN_HEADER
        raise Unauthorized(f"send a valid API key {place}")
    request.scope[KEY_LIMITS] = limits
    request.scope[CACHE_SALT] = state.cache_salt(sent)
