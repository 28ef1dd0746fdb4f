"""A segment's text in the pivot language: the first model writes it, and the second model reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from server.operations.generating.generated_text import GeneratedText
from server.text.markup.placed_tags import Span


@dataclass
class PivotText:
    """A segment's text in the pivot language.

    answer: the best answer of the first model.
    is_instructed: the first model is a language model. White space around its answer is removed.
    ids: token ids of the text for the second model.
    spans: (start, end) of each token of `ids` in the text, in characters; empty if the second model is a language
        model.
    is_cut: the text was too long for the second model and lost its end.
    """

    answer: GeneratedText
    is_instructed: bool = False
    ids: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    is_cut: bool = False

    @property
    def text(self) -> str:
        return self.answer.text.strip() if self.is_instructed else self.answer.text

    @property
    def finish_reason(self) -> str | None:
        return "length" if self.is_cut else self.answer.finish_reason

    def attention_weights(self, answer: GeneratedText, source_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Attention of the second model's answer over the tokens that the first model read.

        The attention matrices of the two models are multiplied. Their tokens of the pivot text are linked by the
        characters that they share.

        answer: the second model's answer. source_ids: token ids that the first model read.
        Returns [answer tokens, source tokens], float32; no rows if a model has no attention.
        """
        first, second = self.answer.attention_weights(len(source_ids)), answer.attention_weights(len(self.ids))
        if not (len(first) and len(second)):
            return np.zeros((0, len(source_ids)), np.float32)
        links = linked_tokens(self.spans, self.answer.token_spans())
        return (second @ links @ first).astype(np.float32, copy=False)


def linked_tokens(read: Sequence[Span], written: Sequence[Span]) -> npt.NDArray[np.float32]:
    """Link the tokens that the second model reads of one text to the tokens that the first model wrote.

    read, written: (start, end) of each token in the text, in characters.
    Returns [tokens read, tokens written], float32: the fraction of a read token's characters that lies in each written
    token. Each row adds up to 1. A read token without characters (a special token) belongs to the last written token.
    """
    starts, ends = (np.array([span[side] for span in written], np.int64) for side in (0, 1))
    links = np.zeros((len(read), len(written)), np.float32)
    for row, (start, end) in enumerate(read):
        links[row] = np.clip(np.minimum(ends, end) - np.maximum(starts, start), 0, None)
    totals = links.sum(1)
    links[totals == 0, -1] = 1
    links[totals > 0] /= totals[totals > 0, None]
    return links
