"""The prompt of a language model around a text to translate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.text.tokens.marked_text import MarkedText


@dataclass(frozen=True)
class PromptFrame:
    """The prompt of a language model before and after the text to translate.

    special_tokens: the tokenizer adds its special tokens around the prompt.
    num_tokens: tokens of the prompt without the text.
    """

    before: MarkedText
    after: MarkedText
    special_tokens: bool
    num_tokens: int = 0

    def around(self, text: str, places: Sequence[int] = ()) -> MarkedText:
        """The prompt with the text in it. places: indices of marks in the text, see `MarkedText`."""
        start = len(self.before.text)
        marks = [*self.before.marks, *(start + place for place in places)]
        marks += [start + len(text) + mark for mark in self.after.marks]
        return MarkedText(self.before.text + text + self.after.text, marks)
