"""The texts that `rerank` compares with a query, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from server.operations.encode import Numbers
from server.text.tokens.truncation import TruncationSide


class RerankTexts(Protocol):
    """The part of a specification that all ranking methods read. Fields as in `RerankSpec`."""

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
    """The scores of all texts, in their order.

    raw: what the model computes: logits, or the sum of cosines. scores: from 0 to 1, in the same order of relevance.
    tokens: number of tokens that the model has read.
    truncated: indices of the texts that lost tokens.
    """

    raw: Numbers
    scores: Numbers
    tokens: int
    truncated: list[int]
