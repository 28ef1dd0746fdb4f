"""Read JSON request bodies with a size limit and a deadline, and validate them against a schema.

FastAPI's own parsing has no size limit, and its error answers repeat the input; uvicorn has no deadline for bodies.
Error messages of this module never contain any part of the body, except names of fields.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from server.api.bodies.body_limits import BodyLimits
from server.api.bodies.json_size import BODY_VALUES, CHAT_VALUES, ValueLimits, check_size
from server.api.fields.schema_errors import describe_errors
from server.api.state import of
from server.errors import BodyTimeout, BodyTooLarge, ClientGone, InvalidRequest, UnsupportedMediaType

MAX_DEPTH = 100
MAX_CHAT_DEPTH = 240
"""Maximum nesting of JSON in a chat body. A schema of a tool with 100 levels nests 205; orjson writes at most 254."""
THREAD_BYTES = 1 << 16
"""Bodies of at least this size are parsed in a thread, so that they do not block the event loop."""
MAX_ERRORS = 1000
"""A body with more invalid fields or items gets an error with only their count, because describing them takes long."""

_BODY = "triptych.body"
_BODY_BYTES = "triptych.body_bytes"
"""Keys in the ASGI scope. `_BODY`: the parsed body. `_BODY_BYTES`: size of the body in bytes before parsing."""

Schema = TypeVar("Schema", bound=BaseModel)


async def read(request: Request, schema: type[Schema], limits: BodyLimits) -> Schema:
    """Receive a JSON body and validate it.

    schema: the pydantic model to return. Path parameters are added to the body as fields, and replace its own fields.
    Raises InvalidRequest for a body that does not match the schema, and the exceptions of `read_json`.
    """
    return await validated(request, await read_json(request, limits), schema)


async def validated(request: Request, value: Any, schema: type[Schema]) -> Schema:
    """Validate a parsed body, in a thread if it is large. Path parameters are added to the body as fields.

    Raises InvalidRequest for a body that does not match the schema.
    """
    if request.path_params and isinstance(value, dict):
        value = value | request.path_params
    if not is_large(request):
        return validate(value, schema)
    return await of(request).runtime.pools.parse.run(lambda: validate(value, schema))


async def read_json(request: Request, limits: BodyLimits, needs_content_type: bool = True) -> Any:
    """Receive a JSON body and parse it. A second call for the same request returns the same value.

    needs_content_type: refuse a request whose `Content-Type` is not JSON, with UnsupportedMediaType.
    Raises UnsupportedMediaType, BodyTooLarge, BodyTimeout, InvalidRequest, or ClientGone after a disconnect.
    """
    if not is_kept(request):
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_json = content_type == "application/json" or content_type.endswith("+json")
        if needs_content_type and not is_json:
            raise UnsupportedMediaType("send JSON with the header `Content-Type: application/json`", "content-type")
        raw = await receive(request, limits.max_bytes, limits.timeout_seconds)
        limits.check(len(raw))
        if len(raw) >= THREAD_BYTES:
            value = await of(request).runtime.pools.parse.run(lambda: parse(raw, limits.values))
        else:
            value = parse(raw, limits.values)
        keep(request, value, len(raw))
    return request.scope[_BODY]


def is_large(request: Request) -> bool:
    """Whether the body has at least `THREAD_BYTES`, so that work on it belongs in a thread. It must have been read."""
    return bool(request.scope[_BODY_BYTES] >= THREAD_BYTES)


def keep(request: Request, value: Any, num_bytes: int) -> None:
    """Keep the parsed body in the request's scope, so that `read_json` returns it. num_bytes: size before parsing."""
    request.scope[_BODY], request.scope[_BODY_BYTES] = value, num_bytes


def add_bytes(request: Request, num_bytes: int) -> None:
    """Add `num_bytes` to the recorded size of the body, for stored text that the body refers to.

    Call after `read_json`.
    """
    request.scope[_BODY_BYTES] += num_bytes


def is_kept(request: Request) -> bool:
    """Whether the body was read and parsed before."""
    return _BODY in request.scope


def _check_headers(request: Request, max_bytes: int) -> None:
    """Raise UnsupportedMediaType or BodyTooLarge if the headers show that the body must be refused."""
    check_codings(request)
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise BodyTooLarge(f"the body has more than {max_bytes} bytes")


async def receive(request: Request, max_bytes: int, timeout_seconds: float) -> bytes:
    """Receive the bytes of a body. Raises the exceptions of `receive_chunks`."""
    return b"".join(await receive_chunks(request, max_bytes, timeout_seconds))


async def receive_chunks(request: Request, max_bytes: int, timeout_seconds: float) -> list[bytes]:
    """Receive a body, and return its chunks as they arrived.

    Raises UnsupportedMediaType for a compressed body, BodyTooLarge above `max_bytes`, BodyTimeout if the body does not
    end within `timeout_seconds`, or ClientGone after a disconnect.
    """
    _check_headers(request, max_bytes)
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
                    return chunks
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {timeout_seconds:g} seconds") from None


async def chunks_of(request: Request, max_bytes: int, timeout_seconds: float) -> AsyncIterator[bytes]:
    """The chunks of a large body, as they arrive. The body as a whole is not kept.

    timeout_seconds: time in which each MiB must arrive, without the time that the caller takes for its work.
    Raises the exceptions of `receive_chunks`.
    """
    _check_headers(request, max_bytes)
    size, next_limit, left = 0, 1 << 20, timeout_seconds
    while True:
        started = time.monotonic()
        try:
            async with asyncio.timeout(left):
                message = await request.receive()
        except TimeoutError:
            raise BodyTimeout(f"a MiB of the body did not arrive within {timeout_seconds:g} seconds") from None
        left -= time.monotonic() - started
        if message["type"] == "http.disconnect":
            raise ClientGone("the client closed the connection")
        size += len(message.get("body", b""))
        if size > max_bytes:
            raise BodyTooLarge(f"the body has more than {max_bytes} bytes")
        if size >= next_limit:
            next_limit, left = size + (1 << 20), timeout_seconds
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def check_codings(request: Request) -> None:
    """Raise UnsupportedMediaType for a body with a `Content-Encoding`, or a `Transfer-Encoding` other than chunked."""
    if any(coding.strip().lower() not in ("identity", "") for coding in request.headers.getlist("content-encoding")):
        raise UnsupportedMediaType(
            "send the body without `Content-Encoding`: it is not decompressed", "content-encoding"
        )
    if request.headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
        raise UnsupportedMediaType("send the body in no other `Transfer-Encoding` than chunked", "transfer-encoding")


def parse(raw: bytes, limits: ValueLimits = BODY_VALUES) -> Any:
    """Parse JSON (RFC 8259).

    limits: maximum number of values. `CHAT_VALUES` also allows MAX_CHAT_DEPTH levels of nesting instead of MAX_DEPTH.
    Raises InvalidRequest for invalid JSON, NaN, infinities, lone surrogates, too many levels, and too many values.
    """
    check_size(raw, limits)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON (line {error.lineno}, column {error.colno})") from None
    most = MAX_CHAT_DEPTH if limits is CHAT_VALUES else MAX_DEPTH
    if raw.count(b"[") + raw.count(b"{") > most:
        _check_depth(value, most)
    return value


def _check_depth(value: Any, most: int) -> None:
    level = [value]
    for _ in range(most):
        level = [
            inner
            for outer in level
            if isinstance(outer, (list, dict))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (list, dict))
        ]
        if not level:
            return
    raise InvalidRequest(f"the body has more than {most} levels of nesting")


def validate(value: Any, schema: type[Schema]) -> Schema:
    """Validate a parsed body against a pydantic model, and return the model.

    Raises InvalidRequest if the body is no object or has an invalid field. The message names the field, but never its
    value.
    """
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        if error.error_count() > MAX_ERRORS:
            raise InvalidRequest(f"the body has {error.error_count()} invalid fields or items") from None
        message, param = describe_errors(value, error.errors(include_url=False, include_input=False), schema)
    raise InvalidRequest(message, param)
