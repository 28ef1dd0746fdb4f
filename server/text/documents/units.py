"""What all formats have in common: a document is a list of texts to translate, and can be written with translations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from server.text.markup.markup import MarkupOptions

MAX_UNITS = 200_000
"""Texts of one document."""


class DocumentError(ValueError):
    """A document cannot be read or exceeds a limit. The message names the problem, and never contains a text."""


@dataclass(frozen=True)
class TextUnit:
    """One text of a document: a paragraph, a cell, or a value. markup: how it is marked up; None for plain text."""

    text: str
    markup: MarkupOptions | None = None


@dataclass
class Document(ABC):
    """A document that was read. units: its texts, in order."""

    units: list[TextUnit] = field(default_factory=list)

    def add(self, unit: TextUnit) -> int:
        """Add a text. Returns its index in `units`. Raises DocumentError for too many."""
        if len(self.units) == MAX_UNITS:
            raise DocumentError(f"the document has more than {MAX_UNITS:,} texts")
        self.units.append(unit)
        return len(self.units) - 1

    @abstractmethod
    def write(self, translations: Sequence[str], target_lang: str) -> bytes:
        """The file with a translation in place of each text. Call it once.

        target_lang: code of the language, for formats that name it.
        """


@dataclass
class TextDocument(Document):
    """A document that is a text. It consists of literal parts and units.

    parts: in order, text that stays, or the index of a unit in `units`. encoding: encoding of the file.
    """

    parts: list[str | int] = field(default_factory=list)
    encoding: str = "utf-8"

    def write(self, translations: Sequence[str], target_lang: str) -> bytes:
        found = [part if isinstance(part, str) else self.shown(part, translations[part]) for part in self.parts]
        return "".join(found).encode(self.encoding, "replace")

    def shown(self, place: int, translation: str) -> str:
        """The characters to write for a translated unit. place: index of the unit."""
        return translation


def decoded(data: bytes) -> tuple[str, str]:
    """The text of a file and its encoding: UTF-8, or UTF-16 with a byte order mark. Raises DocumentError."""
    encoding = "utf-8"
    if data.startswith(b"\xef\xbb\xbf"):
        encoding = "utf-8-sig"
    elif data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError:
        raise DocumentError("the file is neither UTF-8 nor UTF-16") from None
