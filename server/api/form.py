"""Form bodies with a file: bytes counted and timed as they come, then parts, then a schema. Nothing touches a disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from server.api.body import receive, validate
from server.errors import InvalidRequest, UnsupportedMediaType

MAX_FIELDS = 32
MAX_FIELD_BYTES = 64 << 10
CHUNK_BYTES = 64 << 10
"""Between two of these, other requests have their turn."""

Schema = TypeVar("Schema", bound=BaseModel)


class _InMemory(MultiPartParser):
    """The body was counted: what is left to hold is no more than what came."""

    spool_max_size = 1 << 40


async def read_form(
    request: Request, schema: type[Schema], lists: frozenset[str], max_bytes: int, timeout_seconds: float
) -> tuple[Schema, bytes]:
    """The fields of a form as `schema`, and the bytes of its part `file`.

    lists: fields that may come several times, also as `name[]`. Raises what `body.read` does.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "multipart/form-data":
        raise UnsupportedMediaType("send a form with the header `Content-Type: multipart/form-data`", "content-type")
    raw = await receive(request, max_bytes, timeout_seconds)

    async def chunks() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(raw), CHUNK_BYTES):
            yield raw[start : start + CHUNK_BYTES]
            await asyncio.sleep(0)

    parser = _InMemory(request.headers, chunks(), max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    try:
        form = await parser.parse()
    except MultiPartException:
        raise InvalidRequest(
            f"the form is damaged, or has more than one file, {MAX_FIELDS} fields or {MAX_FIELD_BYTES} bytes in one"
        ) from None
    values: dict[str, object] = {}
    file: bytes | None = None
    for key, part in form.multi_items():
        name = key.removesuffix("[]") if key.removesuffix("[]") in lists else key
        if isinstance(part, UploadFile):
            if name != "file":
                raise InvalidRequest("only the field `file` is a file", "file")
            file = await part.read()
        elif name in lists:
            values.setdefault(name, []).append(part)  # type: ignore[attr-defined]
        elif name in values:
            raise InvalidRequest("a field of the form came twice", name if name in schema.model_fields else None)
        elif name == "file":
            raise InvalidRequest("`file` has to be a file, with a name", "file")
        else:
            values[name] = part
    if file is None:
        raise InvalidRequest("the field `file` is required", "file")
    return validate(values, schema), file
