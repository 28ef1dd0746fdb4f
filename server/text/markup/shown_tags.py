"""Write the inline tags of a sentence as numbered tags, `<s1>text</s1>`, which a language model repeats.

The model's translation is checked: each tag must be in it once, nested as in the source. The notation is the one that
the model card of HY-MT1.5 uses for texts with formatting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from server.text.markup.placed_tags import InlineTag, all_tags

MAX_SHOWN_TAGS = 32
"""Most tags of a sentence that a model is asked to repeat."""
TAG_CHARACTERS = len("<s10></s10>") + 2
"""Most characters that a numbered tag adds to a sentence: start tag, end tag, and two spaces."""
_TAG = re.compile(r"<(?P<close>/?)s(?P<number>\d{1,2})\s?(?P<empty>/?)>")
_WRAPPED = re.compile(r"\s*<target>(.*)</target>\s*", re.DOTALL)
"""A model's whole answer in `<target>`, the form for which the prompt of HY-MT1.5 asks."""


def can_be_shown(text: str, tags: Sequence[InlineTag]) -> bool:
    """Whether a sentence can be given to a model with numbered tags.

    True if it has 1 to `MAX_SHOWN_TAGS` tags, and no text that looks like a numbered tag.

    text: the sentence without tags. tags: its outermost inline elements and atoms.
    """
    is_ambiguous = _TAG.search(text) is not None or "target>" in text
    return not is_ambiguous and 0 < sum(1 for _ in all_tags(tags)) <= MAX_SHOWN_TAGS


def with_parts(text: str, tags: Sequence[InlineTag]) -> tuple[str, list[InlineTag]]:
    """Insert the protected parts of a sentence into its text, so that the model can read them.

    text: the sentence without tags and protected parts. tags: its outermost inline elements and atoms.
    Returns the longer text, and the tags without the protected parts, with character indices in the longer text.
    """
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
    """Return a sentence with numbered tags. An atom without text is written as an empty element, `<s1></s1>`.

    text: the sentence without tags. tags: its outermost inline elements and atoms.
    """
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
    """Replace the numbered tags of a translation by the tags of the source.

    answer: text of the model. tags: outermost inline elements and atoms of the source. escape: turns characters into
        markup.
    Returns markup; None if the answer lacks a tag, has one twice, or nests them in another way than the source.
    """
    answer = _unwrapped(answer)
    numbered = dict(enumerate(all_tags(tags), 1))
    breaks = iter([tag for tag in numbered.values() if tag.is_only_break])
    missing = set(numbered)
    parents = {id(child): tag for tag in numbered.values() for child in tag.children}
    path: list[InlineTag] = []
    found: list[str] = []
    starts: list[int] = []
    at = 0
    last: InlineTag | None = None
    for match in _TAG.finditer(answer):
        found.append(escape(_following(last, answer[at : match.start()])))
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
            written = next(breaks) if tag.is_only_break else tag  # line breaks keep their order
            if written.is_break and not written.space_before:
                found[-1] = found[-1].rstrip()
            starts.append(len(found))
            found.append(written.opening)
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
        last = (written if tag.is_only_break else tag) if match["close"] or match["empty"] else None
    found.append(escape(_following(last, answer[at:])))
    return None if missing or path else "".join(found).strip()


def without_tags(answer: str) -> str:
    """Return a model's translation without its numbered tags."""
    return re.sub(r"(?<=\s) +", "", _TAG.sub("", _unwrapped(answer))).strip()


def _following(tag: InlineTag | None, text: str) -> str:
    """Return the text after a tag: without white space at its start if the tag is a line break that had none.

    tag: None at the start of an answer, and after the start tag of an element.
    """
    return text.lstrip() if tag is not None and tag.is_break and not tag.space_after else text


def _unwrapped(answer: str) -> str:
    match = _WRAPPED.fullmatch(answer)
    return match[1] if match else answer


def _ends_in_space(parts: Sequence[str]) -> bool:
    last = next((part for part in reversed(parts) if part), " ")
    return last[-1].isspace()
