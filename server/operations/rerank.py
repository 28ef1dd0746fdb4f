"""Rank texts by their relevance to a query. A cross-encoder reads query and text as one pair and returns one logit.

Source: Nogueira and Cho 2019, arXiv:1901.04085.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server.ipc.call import Call
from server.ipc.messages import Encode, EncodeItem
from server.operations.cost import Cost, characters_of, most_tokens
from server.operations.encode import sigmoid, vectors
from server.operations.pairs import joined_item, pair_template, text_ids
from server.operations.runtime import Runtime, ServedModel
from server.text.tokenizer import Encoding
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
        """Upper bounds of the work; see `Cost`. Query and texts are tokenized once each."""
        query = model.tokenizer.token_bound(self.query)
        limit = model.max_input_tokens
        tokens = sum(min(query + most_tokens(model.tokenizer, text), limit) for text in self.texts)
        characters = len(self.query) + characters_of(self.texts)
        return Cost(characters, tokens, len(self.texts), answer_numbers=len(self.texts))


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
    runtime.admission.admit(call, model, spec.cost(model), "texts")
    items, call.truncated_inputs = await _items(runtime, call, model, spec)
    message = Encode(call.next_id(), model.name, "classify", items, deadline=call.deadline)
    logits = (await vectors(call, message))[:, 0]
    scores = logits if spec.raw_scores else sigmoid(logits)
    order = np.argsort(-logits, kind="stable").tolist()
    ranked = [RankedText(index, float(scores[index]), spec.texts[index]) for index in order]
    return RerankResult(model.name, ranked, sum(item.num_tokens for item in items))


async def _items(
    runtime: Runtime, call: Call, model: ServedModel, spec: RerankSpec
) -> tuple[list[EncodeItem], list[int]]:
    """One item per text, and the places of the texts that lost tokens. The query is tokenized once."""
    template = await pair_template(runtime, call, model)
    (query,) = await text_ids(runtime, call, model, [spec.query], "query")

    def item(encoding: Encoding) -> tuple[EncodeItem, bool]:
        text = encoding.ids[: spec.max_text_tokens]
        found, is_long = joined_item(template, model, query, text, spec.truncation, "texts")
        return found, is_long or len(text) < len(encoding.ids)

    found = await runtime.encode_with(
        model.tokenizer, spec.texts, item, param="texts", add_special_tokens=False, call=call
    )
    return [one for one, _ in found], [place for place, (_, is_shorter) in enumerate(found) if is_shorter]
