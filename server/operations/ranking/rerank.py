"""Rank texts by their relevance to a query: cross-encoder, late interaction, or answer of a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.operations.cost import Cost
from server.operations.ranking.late_interaction import late_interaction_cost, late_interaction_scores
from server.operations.ranking.rerank_answers import answer_cost, answer_scores, takes_instruction
from server.operations.ranking.rerank_pairs import pair_cost, pair_scores
from server.operations.ranking.rerank_scores import RerankScores
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.tokens.truncation import TruncationSide


@dataclass(frozen=True)
class RerankSpec:
    """Ask for the relevance of texts.

    raw_scores: return logits, or sums of cosines, instead of numbers from 0 to 1.
    max_text_tokens: read at most this many tokens of each text, from its beginning; None for all that fit.
    instruction: what makes a text relevant, for a language model; None for the default of its prompt.
    """

    query: str
    texts: Sequence[str]
    model: str | None = None
    raw_scores: bool = False
    truncation: TruncationSide | None = "right"
    max_text_tokens: int | None = None
    instruction: str | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the work; see `Cost`."""
        if model.answers_rerank:
            return answer_cost(model, self)
        return late_interaction_cost(model, self) if "classify" not in model.tasks else pair_cost(model, self)


@dataclass(frozen=True)
class RankedText:
    """A text with its score. index: index of the text in the request."""

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
    if spec.instruction is not None and not (model.answers_rerank and takes_instruction(model)):
        raise InvalidRequest(f"`{model.name}` takes no `instruction`", "instruction")
    runtime.admission.admit(call, model, spec.cost(model), "texts")
    found = await _scores(runtime, call, model, spec)
    call.truncated_inputs = found.truncated
    scores = found.raw if spec.raw_scores else found.scores
    order = np.argsort(-found.raw, kind="stable").tolist()
    ranked = [RankedText(index, float(scores[index]), spec.texts[index]) for index in order]
    return RerankResult(model.name, ranked, found.tokens)


async def _scores(runtime: Runtime, call: Call, model: ServedModel, spec: RerankSpec) -> RerankScores:
    if model.answers_rerank:
        return await answer_scores(runtime, call, model, spec)
    if "classify" not in model.tasks:
        return await late_interaction_scores(runtime, call, model, spec)
    return await pair_scores(runtime, call, model, spec)
