"""Read and write message catalogues: gettext (.po, .pot), parsed with translate-toolkit, and XLIFF 1.2 and 2.0.

Messages that have a translation stay as they are.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from server.text.documents.inline import Fragment
from server.text.documents.mixed_content import add_content, fill
from server.text.documents.units import Document, DocumentError, TextUnit
from server.text.documents.xml_tree import Element, local_name, parse_xml, xml_bytes

_FORMATTED = frozenset({"g", "mrk", "pc"})
_PLURALS = re.compile("[1-9]")
"""Plausible counts of plural forms. The header of a damaged or hostile file may state billions."""
_FINAL_STATES = frozenset({"translated", "final", "signed-off", "reviewed"})


@dataclass
class PoDocument(Document):
    """A gettext catalogue. store: its content, as translate-toolkit parsed it.

    messages: (message, number of its units) for each message to translate. A message with a plural has two units.
    """

    store: Any = None
    messages: list[tuple[Any, int]] = field(default_factory=list)

    def write(self, translations: Sequence[str], target_lang: str) -> bytes:
        forms = self._complete_header(target_lang)
        at = 0
        for message, count in self.messages:
            found = list(translations[at : at + count])
            at += count
            # A language with one form uses it for all numbers, so the form needs the number that the plural shows.
            plurals = [found[0], *[found[-1]] * (forms - 1)] if forms > 1 else [found[-1]]
            message.target = plurals if count > 1 else found[0]
            message.markfuzzy(False)
            message.prev_source, message.prev_context = None, ""
        return bytes(self.store)

    def _complete_header(self, target_lang: str) -> int:
        """Add the language and its plural forms to a header that lacks them, as that of a template does.

        Returns the number of plural forms, 2 if neither the header nor the language tells it.
        """
        from translate.lang.factory import getlanguage

        stated = str(self.store.getheaderplural()[0])
        if self.store.header() is None:
            return 2
        if not self.store.parseheader().get("Language"):
            self.store.updateheader(Language=target_lang.replace("-", "_"))
        if _PLURALS.fullmatch(stated):
            return int(stated)
        language = getlanguage(target_lang.replace("-", "_"))
        if not language.nplurals:
            return 2
        self.store.updateheaderplural(language.nplurals, language.pluralequation)
        return int(language.nplurals)


def read_po(data: bytes) -> Document:
    """Parse a gettext catalogue. Messages without a translation, and fuzzy ones, become units.

    A fuzzy message has the translation of a similar message, which programs do not show.
    Raises DocumentError for a file that is no catalogue, or has too many messages.
    """
    from translate.storage.pypo import pofile

    try:
        store = pofile.parsestring(data)
    except Exception:  # the package raises errors of many kinds for bad files
        raise DocumentError("the file is no catalogue of gettext") from None
    try:
        "".encode(store.encoding)
    except (LookupError, UnicodeError, TypeError, ValueError):
        raise DocumentError("the catalogue names a character set that is not known") from None
    document = PoDocument(store=store)
    for message in store.units:
        if message.isheader() or message.isobsolete() or message.istranslated() or not str(message.source).strip():
            continue
        texts = [str(form) for form in getattr(message.source, "strings", [message.source])]
        for text in texts:
            document.add(TextUnit(text))
        document.messages.append((message, len(texts)))
    return document


@dataclass
class XliffDocument(Document):
    """An XLIFF file. root: its XML. segments: (source element, its text) for each unit, in order."""

    root: Element = None
    segments: list[tuple[Element, Fragment]] = field(default_factory=list)

    def write(self, translations: Sequence[str], target_lang: str) -> bytes:
        is_new = self.root.get("version", "").startswith("2")
        for (source, fragment), translation in zip(self.segments, translations, strict=True):
            parent = source.getparent()
            target = next((child for child in parent if local_name(child) == "target"), None)
            if target is None:
                target = source.makeelement(source.tag[: -len("source")] + "target")
                target.tail = source.tail
                source.addnext(target)
            nodes = Fragment([copy.deepcopy(original) for original in fragment.originals]).restored(translation)
            fill(target, nodes)
            (parent if is_new else target).set("state", "translated" if is_new else "needs-review-translation")
        if is_new:
            self.root.set("trgLang", self.root.get("trgLang") or target_lang)
        else:
            for file in self.root.iter("{*}file"):
                file.set("target-language", file.get("target-language") or target_lang)
        return xml_bytes(self.root)


def read_xliff(data: bytes) -> Document:
    """Parse an XLIFF file. Only segments without a final translation become units.

    Raises DocumentError for XML that is malformed or is no XLIFF, and for a segment with several sources.
    """
    root = parse_xml(data)
    if local_name(root) != "xliff":
        raise DocumentError("the file is no XLIFF")
    document = XliffDocument(root=root)
    for segment in root.iter("{*}trans-unit", "{*}segment"):
        sources = [child for child in segment if local_name(child) == "source"]
        if len(sources) > 1:
            raise DocumentError("a segment has several sources")
        if not sources or _is_settled(segment):
            continue
        source = sources[0]
        fragment = Fragment()
        add_content(source, fragment, lambda child: local_name(child) in _FORMATTED)
        if fragment.has_text:
            document.add(fragment.unit())
            document.segments.append((source, fragment))
    return document


def _is_settled(segment: Element) -> bool:
    """Whether a segment is left as it is: marked as not translatable, or with an approved or final translation."""
    if any(element.get("translate") == "no" for element in (segment, *segment.iterancestors())):
        return True
    target = next((child for child in segment if local_name(child) == "target"), None)
    if target is None or not "".join(target.itertext()).strip():
        return False
    state = segment.get("state") or target.get("state") or ""
    return segment.get("approved") == "yes" or state in _FINAL_STATES
