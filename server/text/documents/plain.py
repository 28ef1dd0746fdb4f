"""Read and write plain text files, and JSON files (their string values)."""

from __future__ import annotations

import json
import re

from server.text.documents.units import Document, DocumentError, TextDocument, TextUnit, decoded
from server.text.documents.wrapped_lines import WrappedLines, line_break, with_paragraphs

_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class LinesDocument(TextDocument):
    """A plain text file. paragraphs: the lines of each unit that has more than one line, by the unit's index."""

    def __init__(self, encoding: str) -> None:
        super().__init__(encoding=encoding)
        self.paragraphs: dict[int, WrappedLines] = {}

    def shown(self, place: int, translation: str) -> str:
        paragraph = self.paragraphs.get(place)
        if paragraph is None:
            return translation
        if translation == paragraph.text:
            return "".join(paragraph.lines).rstrip("\r\n")
        return paragraph.broken(translation)


def read_text(data: bytes) -> Document:
    """Split a plain text file into units: each line that is not blank, and each paragraph of several lines.

    Raises DocumentError for a file that is neither UTF-8 nor UTF-16, or has too many lines.
    """
    text, encoding = decoded(data)
    document = LinesDocument(encoding)
    for part in with_paragraphs(_LINE.findall(text)):
        last = part if isinstance(part, str) else part.lines[-1]
        ending = line_break(last)
        if isinstance(part, WrappedLines):
            place = document.add(TextUnit(part.text))
            document.paragraphs[place] = part
            document.parts += [place, ending]
        elif part.strip():
            document.parts += [document.add(TextUnit(part.removesuffix(ending))), ending]
        else:
            document.parts.append(part)
    return document


class JsonDocument(TextDocument):
    """A JSON file whose string values are translated. Keys, numbers and layout stay.

    originals: the string of each unit as it is written in the file, by the unit's index.
    """

    def shown(self, place: int, translation: str) -> str:
        if translation == self.units[place].text:
            return self.originals[place]
        return json.dumps(translation, ensure_ascii=False)

    def __init__(self, encoding: str) -> None:
        super().__init__(encoding=encoding)
        self.originals: list[str] = []


def read_json(data: bytes) -> Document:
    """Parse a JSON file. Its string values become units, except blank ones.

    Raises DocumentError for a file that is not JSON, is nested too deep, or has too many strings.
    """
    text, encoding = decoded(data)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise DocumentError("the file is not JSON, or is nested too deep") from None
    document = JsonDocument(encoding)
    at = 0
    for match in _JSON_STRING.finditer(text):
        value = json.loads(match[0], strict=False)
        is_key = text[match.end() : match.end() + 256].lstrip()[:1] == ":"
        if is_key or not value.strip():
            continue
        document.parts += [text[at : match.start()], document.add(TextUnit(value))]
        document.originals.append(match[0])
        at = match.end()
    document.parts.append(text[at:])
    return document
