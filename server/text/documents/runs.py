"""Convert the paragraphs of Office Open XML to text with inline formatting, and back.

A paragraph is a list of runs, each with formatting properties. Neighbouring runs with equal properties become one text.
The properties that most characters of a paragraph (or of a link) have need no tag. Fields, references, drawings and
marks stay as they are; the two marks of a pair, such as the ends of a bookmark, keep their order.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from server.text.documents.inline import SPACES, Fragment, Inline
from server.text.documents.xml_tree import SPACE, Element, local_name, parse_xml

_TEXTS = frozenset({"t", "noBreakHyphen", "ruby"})
"""Elements of a run that are text."""
_DROPPED = frozenset({"proofErr", "lastRenderedPageBreak", "softHyphen", "rPh", "phoneticPr"})
"""Elements that are left out of a translated paragraph.

They are marks of the last layout and spelling check, and phonetic readings of the source text.
"""
_UNSEEN_ATTRIBUTES = frozenset({"lang", "altLang", "dirty", "err", "noProof", "smtClean", "smtId", "bmk"})
_UNSEEN_PROPERTIES = frozenset({"lang", "noProof"})
"""Properties that change no character's appearance, but by which office programs divide runs."""
_FONTS, _FONT_HINT = "rFonts", "hint"
"""Property with the fonts of a run, and its attribute for characters that several of the fonts have. Word sets it where
Chinese, Japanese or Korean text meets Latin text, and so divides runs."""
_NEWLINE = "\n"
_CELL_BREAK = re.compile(r"(?:_x000D_)?\n|_x000D_")
"""A line break in a cell. Some programs write a carriage return before it, as `_x000D_`."""
_PAIRS = {
    "bookmarkStart": "bookmarkEnd",
    "commentRangeStart": "commentRangeEnd",
    "permStart": "permEnd",
    "moveFromRangeStart": "moveFromRangeEnd",
    "moveToRangeStart": "moveToRangeEnd",
}


class RunFormat(NamedTuple):
    """Names of XML elements in one of the formats: text document, drawing or workbook.

    namespace: XML namespace of the elements, in braces.
    first, last: names of elements that stay at the beginning, or at the end, of a paragraph.
    wrappers: names of elements that contain runs, such as links.
    marks_spaces: whether a text that begins or ends with white space needs the attribute `xml:space`.
    has_plain_texts: whether a text may stand without a run around it, as in a cell.
    """

    namespace: str
    first: frozenset[str]
    last: frozenset[str]
    wrappers: frozenset[str]
    marks_spaces: bool = True
    has_plain_texts: bool = False

    def in_strict_files(self) -> RunFormat:
        """The same format with the namespace of files of the kind "Strict Open XML" (ISO/IEC 29500-1)."""
        return self._replace(namespace=_STRICT_NAMESPACES[self.namespace])


WORD = RunFormat(
    "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}",
    frozenset({"pPr"}),
    frozenset(),
    frozenset({"hyperlink", "smartTag", "ins", "bdo", "dir", "sdt", "moveTo"}),
)
DRAWING = RunFormat(
    "{http://schemas.openxmlformats.org/drawingml/2006/main}",
    frozenset({"pPr"}),
    frozenset({"endParaRPr"}),
    frozenset(),
    marks_spaces=False,
)
SHEET = RunFormat(
    "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}",
    frozenset(),
    frozenset({"rPh", "phoneticPr"}),
    frozenset(),
    has_plain_texts=True,
)
STRICT = "{http://purl.oclc.org/ooxml/"
"""How the namespaces of strict files begin, in braces."""
_STRICT_NAMESPACES = {
    WORD.namespace: STRICT + "wordprocessingml/main}",
    DRAWING.namespace: STRICT + "drawingml/main}",
    SHEET.namespace: STRICT + "spreadsheetml/main}",
}


class _Style(NamedTuple):
    """Formatting of a run of text.

    key: equal for formatting with the same appearance. properties: XML element with the properties; None for a run
        without properties.
    """

    key: bytes
    properties: Element | None


class _Event(NamedTuple):
    """One item of a paragraph's content.

    kind: `text` (with a style), `atom` (elements that stay), `space` (a line break or tab that stays), or `open`
        and `close` around a wrapper or a link field.
    """

    kind: str
    text: str = ""
    style: _Style | None = None
    original: object = None


class _Kept(NamedTuple):
    """XML elements of a paragraph that are written back unchanged, in order."""

    elements: list[Element]


@dataclass
class _Wrapped:
    """A wrapper element, or a link that is written as a field.

    element: the wrapper; None for a field. before, after: runs of the field before and after its text.
    base: style of most characters inside, which needs no tag.
    """

    element: Element | None
    before: list[Element] = field(default_factory=list)
    after: list[Element] = field(default_factory=list)
    base: _Style | None = None


class RunParagraph:
    """A paragraph, or the text of a cell, whose text can be replaced.

    fragment: text with inline formatting. is_readable: False if a field begins or ends outside the paragraph's own
    runs; such a paragraph has an empty fragment and stays as it is.
    """

    def __init__(self, element: Element, names: RunFormat) -> None:
        self._element, self._names = element, names
        self.fragment = Fragment()
        self._base: _Style | None = None
        self._has_fields = next(element.iter("{*}fldChar"), None) is not None
        self.is_readable = not self._has_fields or _has_whole_fields(element)
        if self.is_readable:
            events = list(self._events([child for child in element if not self._is_edge(child)]))
            self._base = self._emit(events)

    def _is_edge(self, child: Element) -> bool:
        return local_name(child) in self._names.first or local_name(child) in self._names.last

    # ------------------------------------------------------------------------------------------------- reading

    def _events(self, children: Sequence[Element]) -> Iterator[_Event]:
        waiting = list(reversed(children))
        while waiting:
            child = waiting.pop()
            name = local_name(child)
            if name in _DROPPED:
                continue
            if name == "r" and self._has_fields and _field_mark(child) == "begin":
                yield from self._field(child, waiting)
            elif name == "r":
                yield from self._run(child)
            elif name == "t":  # a cell without runs
                yield _Event("text", child.text or "", _Style(b"", None))
            elif name in self._names.wrappers and (inner := _container(child)) is not None:
                yield _Event("open", original=_Wrapped(child))
                yield from self._events(list(inner))
                yield _Event("close")
            else:
                yield _Event("space" if name in SPACES else "atom", original=_Kept([child]))

    def _run(self, run: Element) -> Iterator[_Event]:
        """Convert one run, a piece of text with the same formatting, to events. A run without text stays whole.

        In a run with text, each other element (a tab, a drawing) becomes an `atom` with a new run around it.
        """
        properties, properties_tag = None, self._names.namespace + "rPr"
        contents: list[tuple[str, Element]] = []
        for child in run:
            if properties is None and child.tag == properties_tag:
                properties = child
            elif (name := local_name(child)) not in _DROPPED:
                contents.append((name, child))
        if not any(name in _TEXTS for name, _ in contents):
            if contents:
                kind = "space" if all(name in SPACES for name, _ in contents) else "atom"
                yield _Event(kind, original=_Kept([run]))
            return
        style = _Style(_key(properties), properties)
        for name, child in contents:
            if name == "t":
                yield _Event("text", child.text or "", style)
            elif name == "noBreakHyphen":
                yield _Event("text", "\u2011", style)
            elif name == "ruby":
                yield from self._word_with_reading(child, style)
            else:
                kind = "space" if name in SPACES else "atom"
                yield _Event(kind, original=_Kept([self._new_run(style, child)]), style=style)

    def _word_with_reading(self, ruby: Element, style: _Style) -> Iterator[_Event]:
        """Yield the text of a word that has its reading above it. The reading is left out, as in a cell of a workbook.

        style: formatting of the run around it, for a word without formatting of its own.
        """
        for run in ruby.iterfind(f"{self._names.namespace}rubyBase/{self._names.namespace}r"):
            properties = run.find(self._names.namespace + "rPr")
            own = style if properties is None else _Style(_key(properties), properties)
            for text in run.iterfind(self._names.namespace + "t"):
                yield _Event("text", text.text or "", own)

    def _field(self, begin: Element, waiting: list[Element]) -> Iterator[_Event]:
        """Yield the events for a field. The text of a HYPERLINK field is translated; every other field stays whole.

        begin: run that begins the field. waiting: stack of the following elements; elements of the field are removed.
        """
        runs, depth = [begin], 1
        while depth:
            runs.append(waiting.pop())
            mark = _field_mark(runs[-1])
            depth += (mark == "begin") - (mark == "end")
        marks = [_field_mark(run) for run in runs]
        instruction = "".join(
            [part.text or "" for run in runs for part in run.iter() if local_name(part) == "instrText"]
        )
        if not instruction.strip().upper().startswith("HYPERLINK") or marks.count("separate") != 1:
            yield _Event("atom", original=_Kept(runs))
            return
        middle = marks.index("separate") + 1
        yield _Event("open", original=_Wrapped(None, runs[:middle], runs[-1:]))
        yield from self._events(runs[middle:-1])
        yield _Event("close")

    def _emit(self, events: Sequence[_Event], at: int = 0) -> _Style | None:
        """Add the text, the formatting and the objects of a paragraph's events to its fragment.

        Begins with the event at index `at`, and ends where the wrapper that contains this event ends.

        Returns the style of most characters in these events, which needs no tag; None if they have no text.
        """
        base = _most_common(events, at, _end(events, at))
        current: _Style | None = None
        while at < len(events) and events[at].kind != "close":
            event = events[at]
            if current is not None and (event.style is None or event.style.key != current.key):
                self.fragment.close()
                current = None
            if event.kind == "text":
                assert event.style is not None, "texts have a style"
                if current is None and base is not None and event.style.key != base.key and event.text.strip():
                    self.fragment.open(event.style)
                    current = event.style
                self._add_text(event.text)
            elif event.kind in ("atom", "space"):
                self.fragment.atom(event.original, "br" if event.kind == "space" else "x")
            else:
                assert isinstance(event.original, _Wrapped), "only wrappers and fields are opened"
                self.fragment.open(event.original)
                event.original.base = self._emit(events, at + 1)
                self.fragment.close()
                at = _end(events, at + 1)
            at += 1
        if current is not None:
            self.fragment.close()
        return base

    def _add_text(self, text: str) -> None:
        """Add the text of a run to the fragment. In a cell, line breaks are characters of the text."""
        lines = _CELL_BREAK.split(text) if self._names.has_plain_texts else [text]
        self.fragment.text(lines[0])
        for line in lines[1:]:
            self.fragment.line_break(_NEWLINE, line)
            self.fragment.text(line)

    # ------------------------------------------------------------------------------------------------- writing

    def replace(self, translation: str) -> None:
        """Replace the content of the paragraph. translation: translation of `fragment.unit()`, with its tags."""
        nodes = self.fragment.restored(translation)
        if self._names.has_plain_texts:
            nodes = _with_line_breaks(nodes)
        kept = [child for child in self._element if local_name(child) in self._names.first]
        last = [child for child in self._element if local_name(child) in self._names.last]
        del self._element[:]
        is_plain_cell = self._names.has_plain_texts and self._base is not None and not self._base.key
        if is_plain_cell and all(isinstance(node, str) for node in nodes):
            content = [self._text_element("".join([node for node in nodes if isinstance(node, str)]))]
        else:
            content = list(self._elements(nodes, self._base))
        self._element.extend([*kept, *_in_order(content), *last])

    def _elements(self, nodes: Sequence[str | Inline], style: _Style | None) -> Iterator[Element]:
        for node in nodes:
            if isinstance(node, str):
                yield self._new_run(style, self._text_element(node))
                continue
            original = node.original
            if isinstance(original, str):  # a character that XML cannot contain
                continue
            if isinstance(original, _Kept):
                yield from original.elements
            elif isinstance(original, _Style):
                yield from self._elements(node.children or [""], original)
            elif original.element is None:
                yield from original.before
                yield from self._elements(node.children or [], original.base)
                yield from original.after
            else:
                inner: Element = _container(original.element)
                del inner[:]
                inner.extend(list(self._elements(node.children or [], original.base)))
                yield original.element

    def _new_run(self, style: _Style | None, content: Element) -> Element:
        run = content.makeelement(self._names.namespace + "r")
        if style is not None and style.properties is not None:
            run.append(copy.copy(style.properties))  # lxml copies the whole element
        run.append(content)
        return run

    def _text_element(self, text: str) -> Element:
        element = self._element.makeelement(self._names.namespace + "t")
        element.text = text
        if self._names.marks_spaces and text != text.strip():
            element.set(SPACE, "preserve")
        return element


def _with_line_breaks(nodes: Sequence[str | Inline]) -> list[str | Inline]:
    """Turn the line breaks of a cell, which are objects of their own, into characters of the text around them."""
    found: list[str | Inline] = []
    for node in nodes:
        if isinstance(node, Inline) and node.children is not None:
            node = Inline(node.original, _with_line_breaks(node.children))
        elif isinstance(node, Inline) and node.original == _NEWLINE:
            node = _NEWLINE
        if isinstance(node, str) and found and isinstance(found[-1], str):
            found[-1] += node
        else:
            found.append(node)
    return found


def _container(wrapper: Element) -> Element | None:
    """Return the element whose children are the runs of a wrapper: the wrapper, or the content of a content control.

    None for a content control without content.
    """
    if local_name(wrapper) != "sdt":
        return wrapper
    return next((child for child in wrapper if local_name(child) == "sdtContent"), None)


def _key(properties: Element | None) -> bytes:
    """Return a key that is equal for formatting properties with the same appearance; empty for no formatting."""
    from lxml import etree

    return b"" if properties is None else _key_of_xml(etree.tostring(properties, with_tail=False))


@lru_cache(maxsize=1024)
def _key_of_xml(properties: bytes) -> bytes:
    """Compute the key of formatting properties. Results are cached, because most runs have the same few properties.

    properties: bytes of an XML element.
    """
    from lxml import etree

    seen = parse_xml(properties)
    for name in _UNSEEN_ATTRIBUTES:
        seen.attrib.pop(name, None)
    for child in list(seen):
        if local_name(child) == _FONTS:
            for name in [name for name in child.attrib if name.rpartition("}")[2] == _FONT_HINT]:
                del child.attrib[name]
        if local_name(child) in _UNSEEN_PROPERTIES or (local_name(child) == _FONTS and not child.attrib):
            seen.remove(child)
    if not len(seen) and not seen.attrib:
        return b""
    children = sorted(etree.tostring(child, method="c14n", exclusive=True) for child in seen)
    return b"".join([*children, str(sorted(seen.items())).encode()])


def _field_mark(run: Element) -> str:
    """Return `begin`, `separate` or `end` for a run that has this mark of a field; empty for a run without a mark."""
    mark = next(run.iterchildren("{*}fldChar"), None)
    return "" if mark is None else next((value for name, value in mark.items() if name.endswith("fldCharType")), "")


def _has_whole_fields(element: Element) -> bool:
    """Whether no field of a paragraph (page number, link) begins or ends in another paragraph or inside a wrapper."""
    depth = 0
    for child in element:
        mark = _field_mark(child) if local_name(child) == "r" else ""
        depth += (mark == "begin") - (mark == "end")
        if depth < 0:
            return False
    return depth == 0


def _end(events: Sequence[_Event], at: int) -> int:
    """Index of the event that closes a wrapper; the number of events if no event closes it.

    at: index of the first event inside the wrapper.
    """
    depth = 0
    for place in range(at, len(events)):
        depth += (events[place].kind == "open") - (events[place].kind == "close")
        if depth < 0:
            return place
    return len(events)


def _most_common(events: Sequence[_Event], start: int, end: int) -> _Style | None:
    counts: Counter[bytes] = Counter()
    styles: dict[bytes, _Style] = {}
    depth = 0
    for event in events[start:end]:
        depth += (event.kind == "open") - (event.kind == "close")
        if event.kind == "text" and event.style is not None and not depth:
            counts[event.style.key] += len(event.text)
            styles.setdefault(event.style.key, event.style)
    return styles[counts.most_common(1)[0][0]] if counts else None


def _in_order(elements: Sequence[Element]) -> list[Element]:
    """Return elements in an order in which the start mark of a pair (bookmark, comment) comes before its end mark."""
    found = list(elements)
    names = {local_name(element) for element in found}
    for start_name, end_name in _PAIRS.items():
        if not {start_name, end_name} <= names:
            continue
        starts = {_id(element): place for place, element in enumerate(found) if local_name(element) == start_name}
        for place, element in enumerate(found):
            other = starts.get(_id(element), -1)
            if local_name(element) == end_name and other > place:
                found[place], found[other] = found[other], found[place]
    return found


def _id(element: Element) -> str:
    return next((value for name, value in element.items() if name.rpartition("}")[2] == "id"), "")
