"""Split HTML and XML into tokens whose characters, joined, are exactly the document.

turbohtml's tokenizer reads HTML (HTML Living Standard, section 13.2.5), and expat reads XML. Both report where a token
is in the document, so that its original characters are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal
from xml.parsers import expat

MarkupKind = Literal["html", "xml", "text"]
"""Kind of a document. `text` is plain text, in which only protected parts (URLs, code, placeholders) are special."""
TokenKind = Literal["text", "start", "end", "void", "comment", "other"]

_VOID_TAGS_TEXT = """
area base br col embed hr img input link meta param source track wbr
"""
VOID_TAGS = frozenset(_VOID_TAGS_TEXT.split())
"""HTML elements without content (HTML Living Standard, section 13.1.2)."""
_XML_DECLARATION = re.compile(r"\s*<\?xml\s[^>]*\?>")
_ROOT, _END_ROOT = "<document>", "</document>"
"""Root element that is put around XML, because a text may have several elements, or text, at its top level."""


class MarkupError(ValueError):
    """The markup cannot be read, or exceeds a limit. The message names the place or the limit."""


@dataclass(frozen=True, slots=True)
class MarkupToken:
    """A part of a document: a text, a tag, or other markup.

    kind: `text` (characters and references), `start` or `end` (tags), `void` (tag of an element without content),
        `comment` (also CDATA sections), or `other` (declarations and processing instructions).
    raw: characters in the document.
    name: name of the element, for a tag; in lower case in HTML.
    text: characters with references resolved, for `text`.
    attributes: attributes of a start tag.
    """

    kind: TokenKind
    raw: str
    name: str = ""
    text: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)


def tokens(document: str, kind: MarkupKind) -> list[MarkupToken]:
    """Split a document into tokens, in order. Raises MarkupError for XML or HTML that cannot be read."""
    if kind == "text":
        return [MarkupToken("text", document, text=document)]
    return list(_html(document) if kind == "html" else _xml(document))


def _html(document: str) -> Iterator[MarkupToken]:
    """Yield the tokens of an HTML document.

    The tokenizer turns line breaks into `\\n` and drops `</>`; here, both keep their characters.
    """
    from turbohtml import TokenType, tokenize

    places = _places(document)
    read = document.replace("\r\n", "\n").replace("\r", "\n") if places else document

    def raw(start: int, end: int) -> str:
        return document[places[start] : places[end]] if places else document[start:end]

    at = 0
    for token in tokenize(read, resolve_references=False, capture_source=True):
        if token.source is None:
            for kind, end in _text_pieces(read, at, token.data or ""):
                yield MarkupToken(kind, raw(at, end), text=raw(at, end) if kind == "text" else "")
                at = end
            continue
        while not read.startswith(token.source, at):
            if not read.startswith("</>", at):
                raise MarkupError(f"the HTML cannot be read at character {at}")
            yield MarkupToken("other", "</>")
            at += 3
        start, at = at, at + len(token.source)
        name = token.tag or ""
        if token.type == TokenType.CHARACTER_REFERENCE:
            yield MarkupToken("text", raw(start, at), text=token.data or "")
        elif token.type == TokenType.START_TAG:
            kind = "void" if name in VOID_TAGS else "start"
            yield MarkupToken(kind, raw(start, at), name, attributes=dict(token.attrs or ()))
        elif token.type == TokenType.END_TAG:
            yield MarkupToken("end", raw(start, at), name)
        else:
            yield MarkupToken("comment" if token.type == TokenType.COMMENT else "other", raw(start, at))
    if at < len(read):  # an unfinished tag at the end, which a browser drops
        yield MarkupToken("other", raw(at, len(read)))


def _places(document: str) -> list[int]:
    """For each character of the document with line breaks as `\\n`: its index in the original document.

    Empty if the two are equal.
    """
    if "\r" not in document:
        return []
    kept = [i for i, character in enumerate(document) if not (character == "\n" and i and document[i - 1] == "\r")]
    return [*kept, len(document)]


def _text_pieces(read: str, at: int, data: str) -> Iterator[tuple[TokenKind, int]]:
    """Find each `</>` that the tokenizer has dropped from a text. Yields (kind, end) of the text's pieces, in order.

    read: the document. at: index at which the text begins. data: the text as the tokenizer reports it. In some
        elements, it reports NUL as U+FFFD.
    Raises MarkupError if `data` is not the text at this index.
    """
    taken = 0
    while taken < len(data):
        if read.startswith("</>", at) and not data.startswith("</>", taken):
            at += 3
            yield "other", at
            continue
        rest = len(data) - taken
        dropped = read.find("</>", at + 1, at + rest + 2)
        length = rest if dropped < 0 else dropped - at
        if read[at : at + length].replace("\0", "\ufffd") != data[taken : taken + length].replace("\0", "\ufffd"):
            raise MarkupError(f"the HTML cannot be read at character {at}")
        at, taken = at + length, taken + length
        yield "text", at


def _xml(document: str) -> Iterator[MarkupToken]:
    """Yield the tokens of an XML document. Each event of expat starts a token, which ends where the next one starts."""
    declaration = _XML_DECLARATION.match(document)
    prolog = declaration[0] if declaration else ""
    if prolog:
        yield MarkupToken("other", prolog)
    content = document[len(prolog) :].encode()
    events = [*_xml_events(content, prolog), (len(content), MarkupToken("other", ""))]
    for (start, token), (end, following), (after, _) in zip(
        events, events[1:], [*events[2:], events[-1]], strict=False
    ):
        raw = content[start:end].decode()
        is_empty_element = token.kind == "start" and following.kind == "end" and end == after
        if raw:  # the end of an empty element `<a/>` has no characters of its own
            kind: TokenKind = "void" if is_empty_element else token.kind
            yield MarkupToken(kind, raw, token.name, token.text, token.attributes)


def _xml_events(content: bytes, prolog: str) -> list[tuple[int, MarkupToken]]:
    """Return (byte offset, token without `raw`) of each event that expat reports.

    prolog: text that was removed from the beginning of `content`; it counts for the line in error messages.
    Raises MarkupError for XML that is not well-formed.
    """
    events: list[tuple[int, MarkupToken]] = []
    parser = expat.ParserCreate("utf-8")
    in_cdata = False

    def add(kind: TokenKind, name: str = "", text: str = "", attributes: Mapping[str, str] | None = None) -> None:
        if not in_cdata:
            token = MarkupToken(kind, "", name, text, attributes or {})
            events.append((parser.CurrentByteIndex - len(_ROOT), token))

    def begin_cdata() -> None:
        nonlocal in_cdata
        add("comment")
        in_cdata = True

    def end_cdata() -> None:
        nonlocal in_cdata
        in_cdata = False

    parser.StartElementHandler = lambda name, attributes: add("start", name, attributes=attributes)
    parser.EndElementHandler = lambda name: add("end", name)
    parser.CharacterDataHandler = lambda text: add("text", text=text)
    parser.CommentHandler = lambda _: add("comment")
    parser.ProcessingInstructionHandler = lambda *_: add("other")
    parser.StartCdataSectionHandler, parser.EndCdataSectionHandler = begin_cdata, end_cdata
    try:
        parser.Parse(_ROOT.encode() + content + _END_ROOT.encode(), True)
    except expat.ExpatError as error:
        line = error.lineno + prolog.count("\n")
        column = error.offset - len(_ROOT) * (error.lineno == 1)
        reason = expat.ErrorString(error.code)
        raise MarkupError(f"the XML is not well-formed (line {line}, column {column}): {reason}") from None
    return events[1:-1]
