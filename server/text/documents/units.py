"""Base classes of all document formats: a document has texts to translate, and is written with their translations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from server.text.markup.markup_options import MarkupOptions

MAX_UNITS = 200_000
"""Limit on the number of texts in one document."""


class DocumentError(ValueError):
    """A document cannot be read, or exceeds a limit.

    The message is shown to clients; it contains no text of the document.
    """


@dataclass(frozen=True)
class TextUnit:
    """One text of a document: a paragraph, a cell, or a value. markup: how to parse its tags; None for plain text."""

    text: str
    markup: MarkupOptions | None = None


@dataclass
class Document(ABC):
    """A parsed document. units: its texts to translate, in order."""

    units: list[TextUnit] = field(default_factory=list)

    def add(self, unit: TextUnit) -> int:
        """Add a text to translate. Returns its index in `units`. Raises DocumentError if there are too many texts."""
        if len(self.units) == MAX_UNITS:
            raise DocumentError(f"the document has more than {MAX_UNITS:,} texts")
        self.units.append(unit)
        return len(self.units) - 1

    @abstractmethod
    def write(self, translations: Sequence[str], target_lang: str) -> bytes:
        """Return the bytes of the file with a translation in place of each text. May be called once.

        translations: translation of each unit, in order.
        target_lang: code of the translations' language, for formats that name it.
        """


@dataclass
class TextDocument(Document):
    """A document whose file is plain characters, such as HTML or subtitles, and not an archive.

    parts: content of the file in order; each part is text that stays, or the index of a unit in `units`.
    encoding: character encoding of the file.
    unknown: how characters are written that the encoding lacks, a name of Python's error handlers.
    """

    parts: list[str | int] = field(default_factory=list)
    encoding: str = "utf-8"
    unknown: str = "replace"

    def write(self, translations: Sequence[str], target_lang: str) -> bytes:
        found = [part if isinstance(part, str) else self.shown(part, translations[part]) for part in self.parts]
        return "".join(found).encode(self.encoding, self.unknown)

    def shown(self, place: int, translation: str) -> str:
        """Return the characters to write into the file for a translated unit. place: index of the unit."""
        return translation


def decoded(data: bytes) -> tuple[str, str]:
    """Decode a file. Returns its text and the Python name of its encoding.

    The encoding is `utf-8`, or by its byte order mark `utf-8-sig` or `utf-16`.
    Raises DocumentError if the bytes are not valid in that encoding.
    """
    encoding = "utf-8"
    if data.startswith(b"\xef\xbb\xbf"):
        encoding = "utf-8-sig"
    elif data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError:
        raise DocumentError("the file is neither UTF-8 nor UTF-16") from None
