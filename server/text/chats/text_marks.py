"""Keep special tokens in the texts of a conversation apart from those that its chat template writes.

A special token in a text is marked before the template is rendered: a character that no text of the request has is put
after its first character, so that neither the template nor the tokenizer takes it for the token. In the rendered prompt
the marks are removed again, and their places tell which special tokens are text. See
docs/decisions/0138-special-tokens-in-texts.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from server.text.chats.chat import ChatError
from server.text.tokens.marked_text import MarkedText
from server.text.tokens.text_pattern import text_pattern

MARKS = range(0xE000, 0xF900)
"""Characters for private use. They are no white space, have no case, and no tokenizer has them in its tokens."""


class TextMarks:
    """Marks the special tokens in the texts of one conversation.

    special: texts of the special tokens.
    given: all texts that the template has, its own one included. The mark is a character that is not in them.
    """

    def __init__(self, special: Iterable[str], *given: str) -> None:
        self._pattern = text_pattern(special)
        self._given = given
        self._num_marks = 0

    @cached_property
    def mark(self) -> str:
        """The character. Raises ChatError for texts with all characters that it may be."""
        for mark in map(chr, MARKS[:4]):
            if not any(mark in text or _escaped(mark) in text for text in self._given):
                return mark
        # Only now, because the set of the characters of a long text takes some milliseconds.
        used = frozenset[str]().union(*self._given)
        for mark in map(chr, MARKS):
            if mark not in used and not any(_escaped(mark) in text for text in self._given):
                return mark
        raise ChatError("the texts have all private-use characters of Unicode")

    @property
    def num_characters(self) -> int:
        """Characters of all marks."""
        return self._num_marks * len(_escaped(self.mark)) if self._num_marks else 0

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Messages with marks. Those of the assistant stay as they are."""
        return [
            message
            if message.get("role") == "assistant"
            else {key: value if key == "role" else self.value(value) for key, value in message.items()}
            for message in messages
        ]

    def value(self, value: Any) -> Any:
        """A JSON value with marks in its texts and names. The texts of a list of parts count as one text as well."""
        if isinstance(value, str):
            return self._texts([value])[0]
        if isinstance(value, Mapping):
            return {self._key(key): self.value(part) for key, part in value.items()}
        if not isinstance(value, list):
            return value
        texts = [part.get("text") if isinstance(part, Mapping) else None for part in value]
        if not any(isinstance(text, str) for text in texts):
            return [self.value(part) for part in value]
        marked = self._texts([text if isinstance(text, str) else "" for text in texts])
        return [
            {
                self._key(key): new if key == "text" and isinstance(old, str) else self.value(other)
                for key, other in part.items()
            }
            if isinstance(part, Mapping)
            else self.value(part)
            for part, old, new in zip(value, texts, marked, strict=True)
        ]

    def read(self, rendered: str) -> MarkedText:
        """A rendered prompt without its marks, and the indices in it at which the marks stood."""
        if not self._num_marks:
            return MarkedText(rendered)
        first, *others = rendered.replace(_escaped(self.mark), self.mark).split(self.mark)
        marks, place = [], len(first)
        for part in others:
            marks.append(place)
            place += len(part)
        return MarkedText("".join((first, *others)), marks)

    def _key(self, key: Any) -> Any:
        """The name of a member with marks: parameters of tools and members of documents have any names."""
        return self._texts([key])[0] if isinstance(key, str) else key

    def _texts(self, texts: list[str]) -> list[str]:
        """Texts with marks, also for tokens that begin in one text and end in a later one."""
        if self._pattern is None:
            return texts
        places: dict[int, set[int]] = {number: set() for number in range(len(texts))}
        for number, text in enumerate(texts):
            places[number] |= {match.start() + 1 for match in self._pattern.finditer(text)}
        if len(texts) > 1:
            starts = list(accumulate(map(len, texts), initial=0))
            number = 0
            for match in self._pattern.finditer("".join(texts)):
                while match.start() >= starts[number + 1]:
                    number += 1
                places[number].add(match.start() + 1 - starts[number])
        self._num_marks += sum(map(len, places.values()))
        cuts = [[0, *sorted(places[number]), len(text)] for number, text in enumerate(texts)]
        return [
            self.mark.join(text[start:end] for start, end in pairwise(places_of_text))
            for text, places_of_text in zip(texts, cuts, strict=True)
        ]


def _escaped(mark: str) -> str:
    """A mark as templates write it that print texts as ASCII JSON or as Python code."""
    return json.dumps(mark)[1:-1]
