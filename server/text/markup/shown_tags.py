"""Inline tags of a sentence as numbered tags, `<s1>text</s1>`, which a language model repeats in its translation.

The answer is checked: each tag is there once, nested as in the source. The notation is that of the prompt for texts
with formatting on the model card of HY-MT1.5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from server.text.markup.tag_placement import InlineTag

MAX_SHOWN_TAGS = 32
"""Tags of a sentence that a model is asked to repeat."""
TAG_CHARACTERS = len("<s10></s10>") + 2
"""Longest notation of a tag, with spaces around it."""
_TAG = re.compile(r"<(?P<close>/?)s(?P<number>\d{1,2})\s?(?P<empty>/?)>")
_WRAPPED = re.compile(r"\s*<target>(.*)</target>\s*", re.DOTALL)
"""The whole answer to the prompt of HY-MT1.5, which asks for this form."""


def can_be_shown(text: str, tags: Sequence[InlineTag]) -> bool:
    """Whether a model may read a sentence with its tags: they are few, and cannot be confused with its text.

    text: the sentence without tags. tags: its outermost inline elements and atoms.
    """
    is_ambiguous = _TAG.search(text) is not None or "target>" in text
    return not is_ambiguous and 0 < sum(1 for _ in all_tags(tags)) <= MAX_SHOWN_TAGS


def with_parts(text: str, tags: Sequence[InlineTag]) -> tuple[str, list[InlineTag]]:
    """A sentence with its protected parts as text, where the document has them, and its other tags."""
    found: list[str] = []
    length = 0

    def add(characters: str) -> None:
        nonlocal length
        found.append(characters)
        length += len(characters)

    def walk(siblings: Sequence[InlineTag], at: int, end: int) -> list[InlineTag]:
        kept = []
        for tag in siblings:
            add(text[at : tag.start])
            if tag.is_atom and tag.shown:
                add(" " if tag.space_before and not _ends_in_space(found) else "")
                add(tag.shown)
                add(" " if tag.space_after and tag.end < len(text) and not text[tag.end].isspace() else "")
            else:
                start, children = length, walk(tag.children, tag.start, tag.end)
                kept.append(replace(tag, start=start, end=length, children=children))
            at = tag.end
        add(text[at:end])
        return kept

    others = walk(tags, 0, len(text))
    return "".join(found), others


def shown(text: str, tags: Sequence[InlineTag]) -> str:
    """The sentence with numbered tags. An atom without text is an empty element."""
    numbers = {id(tag): number for number, tag in enumerate(all_tags(tags), 1)}
    found: list[str] = []

    def add(siblings: Sequence[InlineTag], at: int, end: int) -> None:
        for tag in siblings:
            found.append(text[at : tag.start])
            is_point = tag.is_atom and tag.start == tag.end
            if is_point and tag.space_before and found and not _ends_in_space(found):
                found.append(" ")
            found.append(f"<s{numbers[id(tag)]}>")
            add(tag.children, tag.start, tag.end)
            found.append(f"</s{numbers[id(tag)]}>")
            if is_point and tag.space_after and tag.end < len(text) and not text[tag.end].isspace():
                found.append(" ")
            at = tag.end
        found.append(text[at:end])

    add(tags, 0, len(text))
    return "".join(found)


def restored(answer: str, tags: Sequence[InlineTag], escape: Callable[[str], str]) -> str | None:
    """A translation with the tags of the source as markup; None unless it has each of them once, nested as there.

    escape: turns characters into markup.
    """
    answer = _unwrapped(answer)
    numbered = dict(enumerate(all_tags(tags), 1))
    missing = set(numbered)
    parents = {id(child): tag for tag in numbered.values() for child in tag.children}
    path: list[InlineTag] = []
    found: list[str] = []
    starts: list[int] = []
    at = 0
    for match in _TAG.finditer(answer):
        found.append(escape(answer[at : match.start()]))
        at = match.end()
        number = int(match["number"])
        if number not in numbered:
            return None
        tag = numbered[number]
        if not match["close"]:
            if number not in missing or parents.get(id(tag)) is not (path[-1] if path else None):
                return None
            missing.remove(number)
            path.append(tag)
            starts.append(len(found))
            found.append(tag.opening)
        if match["close"] or match["empty"]:
            if not path or path.pop() is not tag:
                return None
            start = starts.pop()
            is_empty = not "".join(found[start + 1 :]).strip()
            if tag.is_atom:  # the text of an atom is not translated
                del found[start + 1 :]
            elif is_empty and tag.end > tag.start:
                return None
            found.append(tag.closing)
    found.append(escape(answer[at:]))
    return None if missing or path else "".join(found).strip()


def without_tags(answer: str) -> str:
    """A translation without numbered tags."""
    return re.sub(r"(?<=\s) +", "", _TAG.sub("", _unwrapped(answer))).strip()


def _unwrapped(answer: str) -> str:
    match = _WRAPPED.fullmatch(answer)
    return match[1] if match else answer


def _ends_in_space(parts: Sequence[str]) -> bool:
    last = next((part for part in reversed(parts) if part), " ")
    return last[-1].isspace()


def all_tags(tags: Sequence[InlineTag]) -> Iterator[InlineTag]:
    """The tags with those inside them, in the order of the text."""
    for tag in tags:
        yield tag
        yield from all_tags(tag.children)
