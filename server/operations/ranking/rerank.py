"""Rank texts by their relevance to a query, with a cross-encoder, late interaction, or a language model's answer."""

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
    """Request for the relevance of texts to a query.

    raw_scores: return logits, or sums of cosines (late interaction), instead of scores from 0 to 1.
    truncation: side on which a long text loses tokens, or None to refuse it.
    max_text_tokens: maximum number of tokens to read from each text, from its beginning; None for all that fit.
    instruction: description of relevance for a language model; None for the default in its prompt.
    """

    query: str
    texts: Sequence[str]
    model: str | None = None
    raw_scores: bool = False
    truncation: TruncationSide | None = "right"
    max_text_tokens: int | None = None
    instruction: str | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission."""
        if model.answers_rerank:
            return answer_cost(model, self)
        return late_interaction_cost(model, self) if "classify" not in model.tasks else pair_cost(model, self)


@dataclass(frozen=True)
class RankedText:
    """A text with its score. index: position of the text in the request."""

    index: int
    score: float
    text: str


@dataclass(frozen=True)
class RerankResult:
    """The texts by descending score. Texts with equal scores keep their order.

    prompt_tokens: number of tokens that the model has read.
    """

    model: str
    ranked: list[RankedText]
    prompt_tokens: int


async def rerank(runtime: Runtime, call: Call, spec: RerankSpec) -> RerankResult:
    """Score the texts, and sort them by descending score. Adds the indices of shortened texts to `call`.

    Raises InvalidRequest for an instruction that the model does not take, and the errors of the ranking method.
    """
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
