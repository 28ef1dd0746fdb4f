"""Types that all ranking methods share: the texts to compare with a query, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from server.operations.encode import Numbers
from server.text.tokens.truncation import TruncationSide


class RerankTexts(Protocol):
    """The fields of a specification that all ranking methods read, with the same meaning as in `RerankSpec`."""

    @property
    def query(self) -> str: ...

    @property
    def texts(self) -> Sequence[str]: ...

    @property
    def truncation(self) -> TruncationSide | None: ...

    @property
    def max_text_tokens(self) -> int | None: ...

    @property
    def instruction(self) -> str | None: ...


class RerankScores(NamedTuple):
    """The scores of all texts, in the order of the texts.

    raw: [texts], the model's values: logits, or sums of cosines.
    scores: [texts], values from 0 to 1 that grow with `raw`.
    tokens: number of tokens that the model has read.
    truncated: indices of the texts that were shortened.
    """

    raw: Numbers
    scores: Numbers
    tokens: int
    truncated: list[int]
