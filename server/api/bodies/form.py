"""Read form bodies, with a size limit and a deadline. Writes nothing to disk."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from io import BytesIO
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from server.api.bodies.body import THREAD_BYTES, is_kept, keep, read_json, receive, receive_chunks, validate
from server.api.bodies.body_limits import BodyLimits
from server.api.state import of
from server.errors import InvalidRequest, UnsupportedMediaType
from server.system.loop_iterations import next_iteration

MAX_FIELDS = 32
MAX_FIELD_BYTES = 64 << 10
"""Limits of a form with a file. `MAX_FIELDS`: number of fields. `MAX_FIELD_BYTES`: bytes of one field."""
MAX_VALUES = 1100
"""Maximum number of values in a form without a file: a list of `MAX_ITEMS` texts, and other fields."""
URL_ENCODED, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
UNQUOTED_BYTES = 16 << 10
CHUNK_BYTES = 8 << 10
"""Size of the chunks in which the parser gets a body. Other requests can run between two chunks.

A chunk with a hundred short fields takes 5 ms."""

Schema = TypeVar("Schema", bound=BaseModel)


class _MemoryFile(UploadFile):
    """A file in memory. chunks: its content, joined later in a thread because this takes long for a long recording."""

    def __init__(self, filename: str | None = None) -> None:
        super().__init__(BytesIO(), filename=filename)
        self.chunks: list[bytes] = []

    async def write(self, data: bytes) -> None:
        self.chunks.append(data)


class _MemoryParser(MultiPartParser):
    """Multipart parser that keeps files in memory, which is safe because the size of the whole body was checked before.

    Raises InvalidRequest for a text field that is not UTF-8.
    """

    def on_part_end(self) -> None:
        part = self._current_part
        if part.file is not None:
            super().on_part_end()
            return
        try:
            self.items.append((part.field_name, part.data.decode()))
        except UnicodeDecodeError:
            raise InvalidRequest("the form is not UTF-8") from None

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if self._current_part.file is not None:
            self._current_part.file = _MemoryFile(self._current_part.file.filename)


def is_form(request: Request) -> bool:
    """Whether a request sends its fields as a form: in its body, or in its query string if it has no body."""
    return _content_type(request) in (URL_ENCODED, MULTIPART) or _has_query_form(request)


def _has_query_form(request: Request) -> bool:
    """Whether a request without a body has its fields in the query string, as some translation clients send them."""
    if not request.scope["query_string"] or request.method != "POST":
        return False
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    return not has_body and not _content_type(request)


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _check_charset(request: Request) -> None:
    """Raise UnsupportedMediaType for a form in another encoding than UTF-8 (RFC 7578, section 5.1.2).

    Without this check, the parser would decode with any Python codec that a client names. Some codecs raise unexpected
    errors, some make surrogates, and Python caches every unknown name for ever.
    """
    _, options = parse_options_header(request.headers.get("content-type"))
    if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
        raise UnsupportedMediaType("the charset of a form has to be utf-8", "content-type")


async def read_fields(request: Request, limits: BodyLimits) -> Any:
    """Receive JSON, or a form whose values are strings, in the body or in the query.

    A form field that is repeated or is called `name[]` becomes a list with the key `name`.
    Raises InvalidRequest for an invalid form or one with a file, and the exceptions of `read_json`.
    """
    if is_form(request) and not is_kept(request):
        _check_charset(request)
        raw = await receive(request, limits.max_bytes, limits.timeout_seconds)
        if _has_query_form(request):
            raw = request.scope["query_string"]
        if _content_type(request) == MULTIPART:
            pairs = await _multipart(request, raw, limits.max_bytes)
        elif len(raw) < THREAD_BYTES:
            pairs = _url_encoded(raw)
        else:
            pairs = await of(request).runtime.pools.parse.run(lambda: _url_encoded(raw))
        values: dict[str, list[str]] = {}
        lists = {key.removesuffix("[]") for key, _ in pairs if key.endswith("[]")}
        for key, text in pairs:
            values.setdefault(key.removesuffix("[]"), []).append(text)
        fields = {name: found if name in lists or len(found) > 1 else found[0] for name, found in values.items()}
        keep(request, fields, len(raw))
    return await read_json(request, limits)


def _url_encoded(raw: bytes) -> list[tuple[str, str]]:
    """Parse a URL-encoded form (URL Standard, section 5.1) into pairs of name and value.

    Raises InvalidRequest for more than `MAX_VALUES` values, and for text that is not UTF-8.
    """
    if raw.count(b"&") >= MAX_VALUES:
        raise InvalidRequest(f"the form has more than {MAX_VALUES} values")
    parts = [pair.partition(b"=") for pair in raw.split(b"&") if pair]
    try:
        return [(_unquoted(name), _unquoted(value)) for name, _, value in parts]
    except UnicodeDecodeError:
        raise InvalidRequest("the form is not UTF-8") from None


def _unquoted(value: bytes) -> str:
    """Decode a URL-encoded name or value. Raises UnicodeDecodeError.

    Works in pieces of `UNQUOTED_BYTES`, because one call for 2 MB would hold Python's global lock for 70 ms.
    """
    parts = []
    start = 0
    while start < len(value):
        end = start + UNQUOTED_BYTES
        escape = value.rfind(b"%", end - 2, end)
        if escape > start:
            end = escape
        parts.append(unquote_to_bytes(value[start:end].replace(b"+", b" ")))
        start = end
    return b"".join(parts).decode()


async def _multipart(request: Request, raw: bytes, max_bytes: int) -> list[tuple[str, str]]:
    parser = _MemoryParser(
        request.headers, _in_turns([raw]), max_files=1, max_fields=MAX_VALUES, max_part_size=max_bytes
    )
    try:
        form = await parser.parse()
    except MultiPartException:
        raise InvalidRequest(f"the form is malformed, or has a file or more than {MAX_VALUES} values") from None
    pairs = []
    for key, part in form.multi_items():
        if isinstance(part, UploadFile):
            raise InvalidRequest("this route takes no file")
        pairs.append((key, part))
    return pairs


async def _in_turns(chunks: list[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield a body in chunks of `CHUNK_BYTES`, in turns with other large requests. Empties the list."""
    chunks.reverse()
    while chunks:
        chunk = chunks.pop()
        for start in range(0, len(chunk), CHUNK_BYTES):
            yield chunk[start : start + CHUNK_BYTES]
            await next_iteration()


async def read_form(
    request: Request, schema: type[Schema], lists: frozenset[str], max_bytes: int, timeout_seconds: float
) -> tuple[Schema, bytes, str]:
    """Receive a multipart form. Returns its validated fields, and the content and the filename of its part `file`.

    schema: the pydantic model of the fields.
    lists: names of the fields that may be repeated, also written `name[]`.
    max_bytes: largest body.
    timeout_seconds: time for receiving the whole body.
    Raises InvalidRequest for a form without file or with a repeated field, and the exceptions of `body.read`.
    """
    if _content_type(request) != MULTIPART:
        raise UnsupportedMediaType("send a form with the header `Content-Type: multipart/form-data`", "content-type")
    _check_charset(request)
    chunks = await receive_chunks(request, max_bytes, timeout_seconds)
    parser = _MemoryParser(
        request.headers, _in_turns(chunks), max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES
    )
    try:
        form = await parser.parse()
    except MultiPartException:
        raise InvalidRequest(
            f"the form is malformed, or exceeds a limit: 1 file, {MAX_FIELDS} fields, {MAX_FIELD_BYTES} bytes per field"
        ) from None
    values: dict[str, object] = {}
    file: _MemoryFile | None = None
    for key, part in form.multi_items():
        name = key.removesuffix("[]") if key.removesuffix("[]") in lists else key
        if isinstance(part, _MemoryFile):
            if name != "file":
                raise InvalidRequest("only the field `file` may be a file", "file")
            file = part
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
    fields, parts = validate(values, schema), file.chunks
    return fields, await of(request).runtime.pools.parse.run(lambda: b"".join(parts)), file.filename or ""
