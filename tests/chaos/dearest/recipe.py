"""Write large request bodies in few bytes: JSON in which long values are written as a pattern and a count.

{"$text": ["ab ", 4000]}     the first 4,000 characters of "ab ab ab ..."
{"$list": [7, 1000]}         a list of 1,000 sevens
{"$each": ["label ", 30]}    the 30 different strings "label 0", "label 1", ...
{"$lines": ["term {}\\tx", 30]}  a text of 30 different lines: "term 0\\tx", "term 1\\tx", ...
{"$keys": [1.0, 500]}        an object with the keys "0" to "499" and equal values
{"$deep": 30}                30 lists inside each other
{"$wav": [3, 16000, 1, 16]}  a WAV file: 3 seconds of noise at 16,000 Hz, one channel of 16 bits
{"$document": ["docx", "ab ", 30]}  a document with the text "ab " in 30 paragraphs

A whole body may be a form: {"$multipart/form-data": fields} or {"$application/x-www-form-urlencoded": fields}.
{"$audio/wav": fields} is a request whose body is the field `file` alone; its other fields are in the query.
{"$websocket": {"events": [event]}} is a WebSocket connection to which the client sends events, one per message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import orjson

from tests.chaos.dearest.files import AUDIO_RATE_BYTES, NamedFile, document, wav

JSON, MULTIPART, URL_ENCODED = "application/json", "multipart/form-data", "application/x-www-form-urlencoded"
AUDIO, WEBSOCKET = "audio/wav", "websocket"
_BOUNDARY = "boundary"
Recipe = Any
"""JSON value in which objects with one key that begins with `$` are patterns."""


def expand(recipe: Recipe) -> Any:
    """Expand a recipe to its JSON value. Equal items of a list are the same object, so that it takes little memory."""
    if isinstance(recipe, list):
        return [expand(part) for part in recipe]
    if not isinstance(recipe, dict):
        return recipe
    match pattern(recipe):
        case "$text", (unit, count):
            return (unit * (count // len(unit) + 1))[:count]
        case "$list", (item, count):
            return [expand(item)] * count
        case "$each", (text, count):
            return [f"{text}{index}" for index in range(count)]
        case "$lines", (text, count):
            return "\n".join(text.replace("{}", str(index)) for index in range(count))
        case "$keys", (item, count):
            return dict.fromkeys(map(str, range(count)), expand(item))
        case "$deep", depth:
            value: list[Any] = []
            for _ in range(depth):
                value = [value]
            return value
        case "$wav", (seconds, rate, channels, bits):
            return wav(seconds, rate, channels, bits)
        case "$document", (suffix, text, count):
            return document(suffix, text, count)
    return {key: expand(part) for key, part in recipe.items()}


def pattern(recipe: Recipe) -> tuple[str, Any] | None:
    """Name and arguments if a recipe is a pattern, else None."""
    if isinstance(recipe, dict) and len(recipe) == 1:
        ((name, value),) = recipe.items()
        if name.startswith("$"):
            return name, value
    return None


def body_bytes(recipe: Recipe) -> bytes:
    """The bytes of the request body that a recipe describes."""
    media_type, fields = body_parts(recipe)
    expanded = expand(fields)
    if media_type == JSON:
        return orjson.dumps(expanded)
    if media_type == AUDIO:
        return bytes(expanded["file"])
    if media_type == WEBSOCKET:
        return b"\n".join(map(orjson.dumps, expanded["events"]))
    pairs = _pairs(expanded)
    if media_type == URL_ENCODED:
        return urlencode(pairs).encode()
    return b"".join(_form_part(name, value) for name, value in pairs) + f"--{_BOUNDARY}--\r\n".encode()


def body_parts(recipe: Recipe) -> tuple[str, Recipe]:
    """Media type and fields of the body that a recipe describes."""
    found = pattern(recipe)
    if found is not None and found[0][1:] in (MULTIPART, URL_ENCODED, AUDIO, WEBSOCKET):
        return found[0][1:], found[1]
    return JSON, recipe


def content_type(recipe: Recipe) -> str:
    """The header `Content-Type` of the body that a recipe describes."""
    media_type, _ = body_parts(recipe)
    return f"{media_type}; boundary={_BOUNDARY}" if media_type == MULTIPART else media_type


def address(path: str, recipe: Recipe) -> str:
    """The path of a request, with the query that a recipe describes."""
    media_type, fields = body_parts(recipe)
    if media_type != AUDIO:
        return path
    pairs = _pairs(expand({name: value for name, value in fields.items() if name != "file"}))
    return f"{path}?{urlencode(pairs)}" if pairs else path


def _pairs(fields: Mapping[str, Any]) -> list[tuple[str, str | bytes]]:
    return [(name, form_value) for name, value in fields.items() for form_value in _form_values(value)]


def _form_values(value: Any) -> Iterator[str | bytes]:
    if isinstance(value, list):
        for part in value:
            yield from _form_values(part)
    elif isinstance(value, str | bytes):
        yield value
    elif value is not None:
        yield orjson.dumps(value).decode()


def _form_part(name: str, value: str | bytes) -> bytes:
    file = ""
    if isinstance(value, bytes):
        file = f'; filename="{value.name if isinstance(value, NamedFile) else "file"}"'
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
    return head.encode() + (value.encode() if isinstance(value, str) else value) + b"\r\n"


def shrink(recipe: Recipe, max_bytes: int) -> Recipe:
    """Halve the largest counts of a recipe until the body has at most `max_bytes` bytes."""
    while len(body_bytes(recipe)) > max_bytes:
        recipe = _halved(recipe, max(_counts(recipe), default=0))
    return recipe


def _counts(recipe: Recipe) -> list[int]:
    match pattern(recipe):
        case "$text", (_, count):
            return [count]
        case "$list" | "$keys", (item, count):
            return [count, *_counts(item)]
        case "$each" | "$lines", (_, count):
            return [count]
        case "$wav", (seconds, *_):
            return [AUDIO_RATE_BYTES * seconds]
        case "$document", (_, _, count):
            return [count]
        case str(), Mapping() as fields:
            return _counts(fields)
    inner = recipe.values() if isinstance(recipe, Mapping) else recipe if isinstance(recipe, list) else ()
    return [count for part in inner for count in _counts(part)]


def _halved(recipe: Recipe, count: int) -> Recipe:
    match pattern(recipe):
        case str(name), [item, number]:
            kept = item if name in ("$text", "$each", "$lines") else _halved(item, count)
            return {name: [kept, number // 2 if number == count else number]}
        case "$wav", [seconds, *rest]:
            return {"$wav": [seconds / 2 if AUDIO_RATE_BYTES * seconds == count else seconds, *rest]}
        case "$document", [suffix, text, number]:
            return {"$document": [suffix, text, number // 2 if number == count else number]}
        case str(name), Mapping() as fields:
            return {name: _halved(fields, count)}
    if isinstance(recipe, Mapping):
        return {key: _halved(part, count) for key, part in recipe.items()}
    return [_halved(part, count) for part in recipe] if isinstance(recipe, list) else recipe
