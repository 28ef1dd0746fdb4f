"""Rank texts by a cross-encoder, which reads query and text as one pair and returns one logit.

Source: Nogueira and Cho 2019, arXiv:1901.04085.
"""

from __future__ import annotations

from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.operations.cost import Cost, characters_of, most_tokens
from server.operations.encode import sigmoid, vectors
from server.operations.ranking.pairs import joined_item, pair_template, text_ids
from server.operations.ranking.rerank_scores import RerankScores, RerankTexts
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.tokens.tokenizer import Encoding


def pair_cost(model: ServedModel, asked: RerankTexts) -> Cost:
    """Upper bounds of the work of `pair_scores`. The query and each text are tokenized once."""
    query = model.tokenizer.token_bound(asked.query)
    limit = model.max_input_tokens
    tokens = sum(min(query + most_tokens(model.tokenizer, text), limit) for text in asked.texts)
    characters = len(asked.query) + characters_of(asked.texts)
    return Cost(characters, tokens, len(asked.texts), answer_numbers=len(asked.texts))


async def pair_scores(runtime: Runtime, call: Call, model: ServedModel, asked: RerankTexts) -> RerankScores:
    """Score each text by the logit of its pair with the query.

    Raises InvalidRequest for a tokenizer that cannot join pairs, and the errors of `joined_item`.
    """
    template = await pair_template(runtime, call, model)
    (query,) = await text_ids(runtime, call, model, [asked.query], "query")

    def item(encoding: Encoding) -> tuple[EncodeItem, bool]:
        text = encoding.ids[: asked.max_text_tokens]
        found, is_long = joined_item(template, model, query, text, asked.truncation, "texts")
        return found, is_long or len(text) < len(encoding.ids)

    found = await runtime.encode_with(
        model.tokenizer, asked.texts, item, param="texts", add_special_tokens=False, call=call
    )
    items = [encoded for encoded, _ in found]
    message = Encode(call.next_id(), model.name, "classify", items)
    logits = (await vectors(call, message))[:, 0]
    truncated = [place for place, (_, is_shorter) in enumerate(found) if is_shorter]
    return RerankScores(logits, sigmoid(logits), sum(encoded.num_tokens for encoded in items), truncated)
