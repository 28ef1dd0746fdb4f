"""The fixed parts of a language model's prompt, before and after the text to translate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.text.tokens.marked_text import MarkedText


@dataclass(frozen=True)
class PromptFrame:
    """The parts of a language model's prompt before and after the text to translate.

    special_tokens: whether the tokenizer adds its special tokens around the prompt.
    num_tokens: number of tokens of the prompt without the text.
    """

    before: MarkedText
    after: MarkedText
    special_tokens: bool
    num_tokens: int = 0

    def around(self, text: str, places: Sequence[int] = ()) -> MarkedText:
        """Return the whole prompt with the text in it.

        places: indices of marks in the text. A special token with a mark is read as ordinary text.
        """
        start = len(self.before.text)
        marks = [*self.before.marks, *(start + place for place in places)]
        marks += [start + len(text) + mark for mark in self.after.marks]
        return MarkedText(self.before.text + text + self.after.text, marks)
