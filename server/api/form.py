"""Read form bodies with a file, with a size limit and a deadline, and validate their fields. Writes nothing to disk."""

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
"""The parser yields to other requests after each chunk of this size."""

Schema = TypeVar("Schema", bound=BaseModel)


class _MemoryParser(MultiPartParser):
    """Multipart parser that keeps files in memory. The size of the whole body was checked before."""

    spool_max_size = 1 << 40


async def read_form(
    request: Request, schema: type[Schema], lists: frozenset[str], max_bytes: int, timeout_seconds: float
) -> tuple[Schema, bytes]:
    """Receive a form. Returns its validated fields and the bytes of its part `file`.

    schema: the pydantic model of the fields.
    lists: names of the fields that may be repeated, also written `name[]`.
    max_bytes: largest body.
    timeout_seconds: time for receiving the whole body.
    Raises the exceptions of `body.read`.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "multipart/form-data":
        raise UnsupportedMediaType("send a form with the header `Content-Type: multipart/form-data`", "content-type")
    raw = await receive(request, max_bytes, timeout_seconds)

    async def chunks() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(raw), CHUNK_BYTES):
            yield raw[start : start + CHUNK_BYTES]
            await asyncio.sleep(0)

    parser = _MemoryParser(request.headers, chunks(), max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    try:
        form = await parser.parse()
    except MultiPartException:
        raise InvalidRequest(
            f"the form is malformed, or exceeds a limit: 1 file, {MAX_FIELDS} fields, {MAX_FIELD_BYTES} bytes per field"
        ) from None
    values: dict[str, object] = {}
    file: bytes | None = None
    for key, part in form.multi_items():
        name = key.removesuffix("[]") if key.removesuffix("[]") in lists else key
        if isinstance(part, UploadFile):
            if name != "file":
                raise InvalidRequest("only the field `file` may be a file", "file")
            file = await part.read()
        elif name in lists:
            values.setdefault(name, []).append(part)  # type: ignore[attr-defined]
        elif name in values:
            raise InvalidRequest("a field of the form is repeated", name if name in schema.model_fields else None)
        elif name == "file":
            raise InvalidRequest("`file` has to be a file part with a filename", "file")
        else:
            values[name] = part
    if file is None:
        raise InvalidRequest("the field `file` is required", "file")
    return validate(values, schema), file
