"""Rank texts by their relevance to a query. A cross-encoder reads query and text as one pair and returns one logit.

Source: Nogueira and Cho 2019, arXiv:1901.04085.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server.ipc.call import Call
from server.ipc.messages import Encode
from server.operations.cost import Cost, max_tokens
from server.operations.encode import pair_items, sigmoid, vectors
from server.operations.runtime import Runtime, ServedModel
from server.text.truncation import TruncationSide


@dataclass(frozen=True)
class RerankSpec:
    """Ask for the relevance of texts. raw_scores: return logits instead of numbers from 0 to 1."""

    query: str
    texts: Sequence[str]
    model: str | None = None
    raw_scores: bool = False
    truncation: TruncationSide | None = "right"

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the work; see `Cost`. The query is tokenized with every text."""
        lengths = [len(self.query) + len(text) for text in self.texts]
        tokens = sum(max_tokens(length, model.max_input_tokens) for length in lengths)
        return Cost(sum(lengths), tokens, len(lengths), answer_numbers=len(lengths))


@dataclass(frozen=True)
class RankedText:
    """A text with its score. index: its place in the request."""

    index: int
    score: float
    text: str


async def rerank(runtime: Runtime, call: Call, spec: RerankSpec) -> list[RankedText]:
    """The texts by descending score; equal ones keep their order."""
    model = runtime.candidates(spec.model, "rerank")[0]
    queries = [spec.query] * len(spec.texts)
    found = await pair_items(runtime, model, queries, spec.texts, spec.truncation, "texts")
    call.truncated_inputs = found.truncated
    message = Encode(call.next_id(), model.name, "classify", found.items, deadline=call.deadline)
    logits = (await vectors(call, message))[:, 0]
    scores = logits if spec.raw_scores else sigmoid(logits)
    order = np.argsort(-logits, kind="stable").tolist()
    return [RankedText(index, float(scores[index]), spec.texts[index]) for index in order]
