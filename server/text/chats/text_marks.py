"""Distinguish special tokens that stand in the texts of a conversation from those that the chat template writes.

Special tokens in texts are marked before the template is rendered: after the first character of the token comes a
character that no text of the request has. Neither the template nor the tokenizer then takes the text for the token.
The marks are removed from the rendered prompt, and their places tell which special tokens are text.
See docs/decisions/0138-special-tokens-in-texts.md.
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
"""Code points from which a mark is chosen: the private use area of Unicode.

These characters are no white space, have no case, and no tokenizer has them in its tokens.
"""


class TextMarks:
    """Marks the special tokens in the texts of one conversation.

    special: texts of the special tokens.
    given: all texts that can reach the prompt: those of the request, and the template's source. The mark is a
        character that is in none of them.
    """

    def __init__(self, special: Iterable[str], *given: str) -> None:
        self._pattern = text_pattern(special)
        self._given = given
        self._num_marks = 0

    @cached_property
    def mark(self) -> str:
        """The character that marks special tokens. Raises ChatError if the texts have all private-use characters."""
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
        """Most characters that the marks set so far can add to the rendered prompt."""
        return self._num_marks * len(_escaped(self.mark)) if self._num_marks else 0

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return messages with the special tokens in their texts marked. Messages of the assistant are not changed."""
        return [
            message
            if message.get("role") == "assistant"
            else {key: value if key == "role" else self.value(value) for key, value in message.items()}
            for message in messages
        ]

    def value(self, value: Any) -> Any:
        """Return a JSON value with the special tokens in its strings and member names marked.

        In a list of parts, special tokens that begin in the text of one part and end in that of a later part are marked
        too.
        """
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
        """Return a rendered prompt without its marks, and the indices at which the marks stood."""
        if not self._num_marks:
            return MarkedText(rendered)
        first, *others = rendered.replace(_escaped(self.mark), self.mark).split(self.mark)
        marks, place = [], len(first)
        for part in others:
            marks.append(place)
            place += len(part)
        return MarkedText("".join((first, *others)), marks)

    def _key(self, key: Any) -> Any:
        """Mark the name of an object's member. Clients choose the names of tool parameters and document members."""
        return self._texts([key])[0] if isinstance(key, str) else key

    def _texts(self, texts: list[str]) -> list[str]:
        """Mark the special tokens in texts, also tokens that begin in one text and end in a later text."""
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
    """Return the escape sequence for a mark, which templates write that print texts as ASCII JSON or Python code."""
    return json.dumps(mark)[1:-1]
