"""A stand-in for translation: it changes letters to upper case and keeps markup."""

from __future__ import annotations

import re

from server.text.documents.formats import format_of
from server.text.documents.units import Document, TextUnit

_MARKUP = re.compile(r"(<[^<>]*>|&#?\w+;)")


def upper(unit: TextUnit) -> str:
    if unit.markup is None:
        return unit.text.upper()
    return "".join(part if index % 2 else part.upper() for index, part in enumerate(_MARKUP.split(unit.text)))


def read(name: str, data: bytes | str) -> Document:
    return format_of(name).read(data.encode() if isinstance(data, str) else data)


def translated(name: str, data: bytes | str) -> bytes:
    document = read(name, data)
    return document.write([upper(unit) for unit in document.units], "fr")
