"""Late interaction: one vector per token of a query or document, and scores of documents for a query (MaxSim).

The engine computes the scores next to the vectors of the documents, so that it sends only one number per document.
Source: Khattab and Zaharia 2020, arXiv:2004.12832.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from server.errors import RequestTooLarge
from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.operations.cost import MAX_ADDED_TOKENS, Cost, characters_of
from server.operations.encode import InputItems, Numbers, check_tokens, encoded_rows, matrices, type_ids_or_none
from server.operations.ranking.embed import MAX_NUMBERS, check_dimensions, cut_vectors
from server.operations.ranking.rerank_scores import RerankScores, RerankTexts
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.operations.side_tokens import SideTokens, sides_of
from server.text.tokens.tokenizer import Encoding
from server.text.tokens.truncation import TruncationSide

Side = Literal["query", "document"]


@dataclass(frozen=True)
class LateInteractionSpec:
    """Request for one vector per token of each text.

    side: whether the texts are queries or documents.
    normalize: scale each vector to unit length.
    truncation: side on which a long text loses tokens, or None to refuse it.
    dimensions: number of components to keep of each vector; None for all.
    """

    inputs: Sequence[str]
    side: Side
    model: str | None = None
    normalize: bool = True
    truncation: TruncationSide | None = "right"
    dimensions: int | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission."""
        tokens = most_side_tokens(model, self.side, self.inputs)
        about = model.info.late_interaction
        width = 0 if about is None else about.width
        characters = characters_of(self.inputs) + len(self.inputs) * len(side_tokens(model, self.side).prompt)
        return Cost(characters, tokens, len(self.inputs), answer_numbers=min(tokens * width, MAX_NUMBERS))


async def embed_late_interaction(runtime: Runtime, call: Call, spec: LateInteractionSpec) -> list[Numbers]:
    """Compute the vectors of each text: an array [vectors, size], float32. Some tokens have no vector.

    Raises RequestTooLarge for a result that could have more than `MAX_NUMBERS` components, InvalidRequest for too many
    `dimensions`, and the errors of `side_items`.
    """
    model = runtime.candidates(spec.model, "late_interaction")[0]
    about = model.info.late_interaction
    assert about is not None, "a model that supports the operation describes it"
    check_dimensions(spec.dimensions, about.width)
    runtime.admission.admit(call, model, spec.cost(model))
    found = await side_items(runtime, call, model, spec.side, spec.inputs, spec.truncation, "inputs")
    call.truncated_inputs = found.truncated
    numbers = sum(len(item.token_ids) for item in found.items) * about.width
    if numbers > MAX_NUMBERS:
        raise RequestTooLarge(
            f"`inputs` asks for up to {numbers} numbers; the limit of one answer is {MAX_NUMBERS}", "inputs"
        )
    message = Encode(
        call.next_id(),
        model.name,
        "late_interaction",
        found.items,
        normalize=spec.normalize and spec.dimensions is None,
        skipped_ids=side_tokens(model, spec.side).skipped_ids,
    )
    found_rows = await encoded_rows(call, message, about.width)
    return [cut_vectors(rows, spec.dimensions, spec.normalize) for rows in found_rows]


async def late_interaction_scores(runtime: Runtime, call: Call, model: ServedModel, asked: RerankTexts) -> RerankScores:
    """Score all texts for the query. A score from 0 to 1 is `(1 + mean of the best cosines) / 2`.

    The raw score is the sum of the best cosines of the query's tokens, or their mean if the checkpoint says so.
    """
    about = model.info.late_interaction
    assert about is not None, "a model that supports the operation describes it"
    query = await side_items(runtime, call, model, "query", [asked.query], asked.truncation, "query")
    texts = await side_items(
        runtime, call, model, "document", asked.texts, asked.truncation, "texts", asked.max_text_tokens
    )
    message = Encode(
        call.next_id(),
        model.name,
        "late_interaction",
        query.items,
        skipped_ids=side_tokens(model, "query").skipped_ids,
    )
    (vectors,) = await encoded_rows(call, message, about.width)
    message = Encode(
        call.next_id(),
        model.name,
        "max_sim",
        texts.items,
        skipped_ids=side_tokens(model, "document").skipped_ids,
        query=vectors.astype("<f4").tobytes(),
    )
    sums = np.concatenate(await matrices(call, message))[:, 0]
    means = (sums / max(len(vectors), 1)).astype(np.float32)
    tokens = sum(item.num_tokens for item in (*query.items, *texts.items))
    scores = np.clip((1.0 + means) / 2.0, 0.0, 1.0).astype(np.float32)
    return RerankScores(means if about.averages else sums, scores, tokens, texts.truncated)


def late_interaction_cost(model: ServedModel, asked: RerankTexts) -> Cost:
    """Upper bounds of the work of `late_interaction_scores`. The query's vectors are received once and sent once."""
    about = model.info.late_interaction
    query = most_side_tokens(model, "query", [asked.query])
    tokens = query + most_side_tokens(model, "document", asked.texts)
    prompts = len(side_tokens(model, "query").prompt), len(side_tokens(model, "document").prompt)
    characters = len(asked.query) + prompts[0] + characters_of(asked.texts) + len(asked.texts) * prompts[1]
    numbers = len(asked.texts) + (0 if about is None else 2 * query * about.width)
    return Cost(characters, tokens, 1 + len(asked.texts), answer_numbers=numbers)


def side_tokens(model: ServedModel, side: Side) -> SideTokens:
    """The rules by which queries, or documents, are tokenized. side: `query` or `document`."""
    about = model.info.late_interaction
    assert about is not None, "a model that supports the operation describes it"
    sides = sides_of(about, model.tokenizer)
    return sides.query if side == "query" else sides.document


def most_side_tokens(model: ServedModel, side: Side, texts: Sequence[str]) -> int:
    """Upper bound of the tokens in some texts together. All texts are queries, or all are documents."""
    tokens = side_tokens(model, side)
    limit = min(tokens.max_tokens or model.max_input_tokens, model.max_input_tokens)
    around = model.tokenizer.token_bound(tokens.prompt) + MAX_ADDED_TOKENS
    return sum(max(min(model.tokenizer.token_bound(text) + around, limit), tokens.filled_tokens) for text in texts)


async def side_items(
    runtime: Runtime,
    call: Call,
    model: ServedModel,
    side: Side,
    texts: Sequence[str],
    truncation: TruncationSide | None,
    param: str,
    max_text_tokens: int | None = None,
) -> InputItems:
    """Create one engine item per text. The texts are all queries or all documents.

    side: `query` or `document`.
    truncation: side on which a long text loses tokens, or None to refuse it.
    param: the request's field with the texts, for errors.
    max_text_tokens: maximum number of tokens to read from each text, from its beginning; None for all that fit.
    Raises the errors of `check_tokens` and `Runtime.encode_with`.
    """
    tokens, about = side_tokens(model, side), model.info.late_interaction
    assert about is not None

    def item(encoding: Encoding) -> tuple[EncodeItem, bool]:
        made = tokens.of(encoding, model.max_input_tokens, truncation, max_text_tokens)
        ids = check_tokens(made.ids, model, param, tokens.max_tokens)
        types = type_ids_or_none(made.type_ids)
        found = EncodeItem(ids, types, prompt_tokens=about.first_skipped, attended_tokens=made.attended)
        return found, made.is_shorter

    found = await runtime.encode_with(
        model.tokenizer, [tokens.prompt + text for text in texts], item, param=param, call=call
    )
    shorter = [place for place, (_, is_shorter) in enumerate(found) if is_shorter]
    return InputItems([shortened for shortened, _ in found], shorter)
