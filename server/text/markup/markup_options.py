"""Options for dividing a document into sentences, the same for HTML, XML and plain text."""

from __future__ import annotations

from dataclasses import dataclass

from server.text.markup.markup_tokens import MarkupKind
from server.text.markup.protected import NO_PROTECTION, Protection

MAX_TAGS = 20_000


@dataclass(frozen=True)
class MarkupOptions:
    """Options for dividing a document into sentences.

    kind: `html`, `xml`, or `text` for plain text.
    splitting_tags: names of further elements that end a sentence.
    non_splitting_tags: names of elements that do not end a sentence.
    ignore_tags: names of elements whose text is not translated.
    detect_outline: whether XML elements without text next to them end a sentence. If not, only `splitting_tags` do.
    split_at_newlines: whether a line break ends a sentence. If not, in plain text an empty line does.
    protection: rules for the parts of the text that must not change.
    max_tags: limit on the number of tags.
    """

    kind: MarkupKind
    splitting_tags: frozenset[str] = frozenset()
    non_splitting_tags: frozenset[str] = frozenset()
    ignore_tags: frozenset[str] = frozenset()
    detect_outline: bool = True
    split_at_newlines: bool = False
    protection: Protection = NO_PROTECTION
    max_tags: int = MAX_TAGS
