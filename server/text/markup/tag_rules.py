"""Rules for the tags of a document: tags that end a sentence, and elements whose text is not translated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from server.text.markup.markup_options import MarkupOptions
from server.text.markup.markup_tokens import MarkupError, MarkupToken

MAX_DEPTH = 256
"""Limit on the nesting of elements in one document. `MAX_TAGS` limits the number of its tags."""
_BLOCK_TAGS_TEXT = """
address article aside blockquote body br button caption center col colgroup dd details dialog dir div dl dt fieldset
figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe legend li link
listing main menu meta nav noembed noframes noscript ol optgroup option p param plaintext pre script search section
select source style summary table tbody td template textarea tfoot th thead title tr track ul xmp
"""
BLOCK_TAGS = frozenset(_BLOCK_TAGS_TEXT.split())
"""HTML elements that end a sentence. Mostly `display: block` of the HTML Living Standard, section 15.3."""
_UNTRANSLATED_TAGS_TEXT = """
audio canvas code iframe kbd math noembed noframes object plaintext pre rp rt samp script style svg template textarea
var video xmp
"""
UNTRANSLATED_TAGS = frozenset(_UNTRANSLATED_TAGS_TEXT.split())
"""HTML elements whose text is not translated, because it is code, data, a fallback, or a reading of the word before
it."""
_OPAQUE_TAGS_TEXT = """
audio canvas math object rp rt svg video
"""
OPAQUE_TAGS = frozenset(_OPAQUE_TAGS_TEXT.split())
"""Untranslated inline elements whose text does not belong to the sentence around them."""
_TABLE_PARTS = frozenset(["tr", "tbody", "tfoot", "thead"])
_ENDS_P = """
address article aside blockquote center details dialog dir div dl fieldset figcaption figure footer form h1 h2 h3 h4 h5
h6 header hgroup hr main menu nav ol p pre search section table ul
"""
_CLOSED_BY = {
    "p": frozenset(_ENDS_P.split()),
    "li": frozenset(["li"]),
    "dt": frozenset(["dt", "dd"]),
    "dd": frozenset(["dt", "dd"]),
    "option": frozenset(["option", "optgroup"]),
    "optgroup": frozenset(["optgroup"]),
    "td": frozenset(["td", "th"]) | _TABLE_PARTS,
    "th": frozenset(["td", "th"]) | _TABLE_PARTS,
    "tr": _TABLE_PARTS,
    "thead": frozenset(["tbody", "tfoot"]),
    "tbody": frozenset(["tbody", "tfoot"]),
}
"""For each element whose end tag may be left out: the start tags that end it.

Source: HTML Living Standard, section 13.1.2.4.
"""


def html_blocks(found: Iterable[MarkupToken], options: MarkupOptions) -> list[bool]:
    """Whether each token of HTML or plain text ends a sentence, by the name of its element."""
    blocks = (BLOCK_TAGS - options.non_splitting_tags) | options.splitting_tags
    return [token.kind == "other" or token.name in blocks for token in found]


def xml_blocks(found: Sequence[MarkupToken], options: MarkupOptions) -> list[bool]:
    """Whether each token of XML ends a sentence. Tags of inline elements do not.

    An element is inline if its parent is inline, or if its parent has text directly inside.
    """
    mixed = {0: False}  # by element, whether it has text of its own; 0 is the document
    parents: list[int] = []
    path = [0]
    for index, token in enumerate(found, 1):
        if token.kind == "end":
            path.pop()
        parents.append(path[-1])
        if token.kind == "text" and token.text.strip():
            mixed[path[-1]] = True
        if token.kind in ("start", "void"):
            mixed[index] = False
        if token.kind == "start":
            path.append(index)
    blocks: list[bool] = []
    open_blocks = [True]
    for token, parent in zip(found, parents, strict=True):
        if token.kind == "end":
            blocks.append(open_blocks.pop())
            continue
        if token.kind in ("start", "void"):
            inline = not open_blocks[-1] or mixed[parent] or not options.detect_outline
            block = token.name in options.splitting_tags or not (inline or token.name in options.non_splitting_tags)
        else:
            block = token.kind == "other"
        blocks.append(block)
        if token.kind == "start":
            open_blocks.append(block)
    return blocks


def are_translated(found: Iterable[MarkupToken], options: MarkupOptions) -> Iterator[bool]:
    """Whether each token is translated. Tokens of an untranslated element are not, including its two tags.

    Raises MarkupError for elements that are nested too deep.
    """
    is_html = options.kind == "html"
    path: list[tuple[str, bool]] = []
    opened: Counter[str] = Counter()

    def leave() -> bool:
        name, translated = path.pop()
        opened[name] -= 1
        return translated

    for token in found:
        if is_html and token.kind in ("start", "void"):
            while path and token.name in _CLOSED_BY.get(path[-1][0], ()):
                leave()
        translated = path[-1][1] if path else True
        if token.kind == "start":
            path.append((token.name, _is_translated(token, translated, options)))
            opened[token.name] += 1
            translated = path[-1][1]
            if len(path) > MAX_DEPTH:
                raise MarkupError(f"the elements are nested deeper than {MAX_DEPTH}")
        elif token.kind == "end" and opened[token.name]:
            while path[-1][0] != token.name:
                leave()
            translated = leave()
        yield translated


def _is_translated(token: MarkupToken, inherited: bool, options: MarkupOptions) -> bool:
    if token.name in options.ignore_tags:
        return False
    stated = token.attributes.get("translate", "inherit").lower()
    if stated == "no" or "notranslate" in token.attributes.get("class", "").split():
        return False
    if options.kind == "xml":
        return inherited
    return token.name not in UNTRANSLATED_TAGS and (inherited or stated in ("", "yes"))
