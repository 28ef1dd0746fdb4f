"""Rank texts by their relevance to a query. A cross-encoder reads query and text as one pair and returns one logit.

Source: Nogueira and Cho 2019, arXiv:1901.04085.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server.ipc.call import Call
from server.ipc.messages import Encode
from server.operations.cost import Cost, characters_of, max_tokens
from server.operations.encode import pair_items, sigmoid, vectors
from server.operations.runtime import Runtime, ServedModel
from server.text.truncation import TruncationSide


@dataclass(frozen=True)
class RerankSpec:
    """Ask for the relevance of texts.

    raw_scores: return logits instead of numbers from 0 to 1.
    max_text_tokens: read at most this many tokens of each text, from its beginning; None for all that fit.
    """

    query: str
    texts: Sequence[str]
    model: str | None = None
    raw_scores: bool = False
    truncation: TruncationSide | None = "right"
    max_text_tokens: int | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the work; see `Cost`. The query is tokenized with every text, and shortened texts twice."""
        lengths = [len(self.query) + len(text) for text in self.texts]
        tokens = sum(max_tokens(length, model.max_input_tokens) for length in lengths)
        again = characters_of(self.texts) if self.max_text_tokens is not None else 0
        return Cost(sum(lengths) + again, tokens, len(lengths), answer_numbers=len(lengths))


@dataclass(frozen=True)
class RankedText:
    """A text with its score. index: its place in the request."""

    index: int
    score: float
    text: str


@dataclass(frozen=True)
class RerankResult:
    """The texts by descending score; equal ones keep their order. prompt_tokens: tokens that the model has read."""

    model: str
    ranked: list[RankedText]
    prompt_tokens: int


async def rerank(runtime: Runtime, call: Call, spec: RerankSpec) -> RerankResult:
    """The score of each text."""
    model = runtime.candidates(spec.model, "rerank")[0]
    queries = [spec.query] * len(spec.texts)
    texts, shortened = await _beginnings(runtime, model, spec)
    found = await pair_items(runtime, model, queries, texts, spec.truncation, "texts")
    call.truncated_inputs = sorted({*found.truncated, *shortened})
    message = Encode(call.next_id(), model.name, "classify", found.items, deadline=call.deadline)
    logits = (await vectors(call, message))[:, 0]
    scores = logits if spec.raw_scores else sigmoid(logits)
    order = np.argsort(-logits, kind="stable").tolist()
    ranked = [RankedText(index, float(scores[index]), spec.texts[index]) for index in order]
    return RerankResult(model.name, ranked, sum(item.num_tokens for item in found.items))


async def _beginnings(runtime: Runtime, model: ServedModel, spec: RerankSpec) -> tuple[Sequence[str], list[int]]:
    """The texts up to their `max_text_tokens`-th token, and the indices of those that are longer."""
    limit = spec.max_text_tokens
    if limit is None:
        return spec.texts, []
    encodings = await runtime.encode(model.tokenizer, spec.texts, param="texts", add_special_tokens=False, offsets=True)
    longer = [index for index, encoding in enumerate(encodings) if len(encoding.ids) > limit]
    ends = {index: encodings[index].offsets[limit - 1][1] for index in longer}
    return [text[: ends.get(index)] for index, text in enumerate(spec.texts)], longer
