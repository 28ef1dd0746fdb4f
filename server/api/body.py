"""Read JSON request bodies with a size limit and a deadline, and validate them against a schema.

FastAPI's own parsing has no size limit, and its error answers repeat the input; uvicorn has no deadline for bodies.
Error messages of this module never contain any part of the body, except names of fields.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from server.errors import BodyTimeout, BodyTooLarge, ClientGone, InvalidRequest, UnsupportedMediaType

MAX_DEPTH = 32
THREAD_BYTES = 1 << 16
"""Bodies of at least this size are parsed in a thread, so that they do not block the event loop."""

_BODY = "triptych.body"
_BODY_BYTES = "triptych.body_bytes"
"""Keys of the scope for a parsed body and its size."""
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

Schema = TypeVar("Schema", bound=BaseModel)


async def read(request: Request, schema: type[Schema], max_bytes: int, timeout_seconds: float) -> Schema:
    """Receive a JSON body and validate it.

    schema: the pydantic model to return. Path parameters are fields of the body too.
    max_bytes: largest body.
    timeout_seconds: time for receiving the whole body.
    Raises the exceptions of `read_json`.
    """
    value = await read_json(request, max_bytes, timeout_seconds)
    if request.path_params and isinstance(value, dict):
        value = value | request.path_params
    if request.scope[_BODY_BYTES] < THREAD_BYTES:
        return validate(value, schema)
    return await asyncio.to_thread(lambda: validate(value, schema))


async def read_json(request: Request, max_bytes: int, timeout_seconds: float) -> Any:
    """Receive a JSON body and parse it. A second call for the same request returns the same value.

    Raises UnsupportedMediaType, BodyTooLarge, BodyTimeout, InvalidRequest, or ClientGone after a disconnect.
    """
    if _BODY not in request.scope:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json" and not content_type.endswith("+json"):
            raise UnsupportedMediaType("send JSON with the header `Content-Type: application/json`", "content-type")
        raw = await receive(request, max_bytes, timeout_seconds)
        large = len(raw) >= THREAD_BYTES
        request.scope[_BODY] = await asyncio.to_thread(parse, raw) if large else parse(raw)
        request.scope[_BODY_BYTES] = len(raw)
    return request.scope[_BODY]


async def receive(request: Request, max_bytes: int, timeout_seconds: float) -> bytes:
    """Receive the bytes of a body. Raises BodyTooLarge, BodyTimeout, or ClientGone after a disconnect."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise BodyTooLarge(f"the body has more than {max_bytes} bytes")
    chunks = []
    size = 0
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("the client closed the connection")
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > max_bytes:
                    raise BodyTooLarge(f"the body has more than {max_bytes} bytes")
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {timeout_seconds:g} seconds") from None


def parse(raw: bytes) -> Any:
    """Parse JSON (RFC 8259).

    Raises InvalidRequest for invalid JSON, NaN, infinities, lone surrogates and more than MAX_DEPTH levels.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON (line {error.lineno}, column {error.colno})") from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (list, dict))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (list, dict))
        ]
        if not level:
            return
    raise InvalidRequest(f"the body has more than {MAX_DEPTH} levels of nesting")


def validate(value: Any, schema: type[Schema]) -> Schema:
    """Validate a parsed body. Raises InvalidRequest that names the first invalid field, but not its value."""
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    name = first["loc"][0] if first["loc"] else None
    param = name if isinstance(name, str) and _FIELD_NAME.fullmatch(name) else None
    inner = first["loc"][-1] if len(first["loc"]) > 1 else None
    if isinstance(inner, str) and _FIELD_NAME.fullmatch(inner) and first["type"] in ("extra_forbidden", "missing"):
        problem = "has an unknown field" if first["type"] == "extra_forbidden" else "needs the field"
        raise InvalidRequest(f"`{param}` {problem} `{inner}`", param)
    if first["type"] == "extra_forbidden":
        raise InvalidRequest(f"unknown field `{param}`" if param else "a field with an invalid name is unknown", param)
    if first["type"] == "missing":
        raise InvalidRequest(f"the field `{param}` is required", param)
    if first["type"] == "union_tag_invalid":
        raise InvalidRequest(f"the `type` of `{param}` has to be one of{first['msg'].rpartition(':')[2]}", param)
    if first["type"] == "union_tag_not_found":
        raise InvalidRequest(f"`{param}` needs the field `type`", param)
    text = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    raise InvalidRequest(f"`{_place(value, first['loc'])}` {text}" if param else text, param)


def _place(value: Any, location: tuple[int | str, ...]) -> str:
    """A field of the body as `messages[0].role`. Parts of the location that are no keys of the body are left out."""
    place = ""
    for part in location:
        if isinstance(value, dict) and isinstance(part, str) and part in value and _FIELD_NAME.fullmatch(part):
            place, value = f"{place}.{part}" if place else part, value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            place, value = f"{place}[{part}]", value[part]
    return place
