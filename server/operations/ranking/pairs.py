"""Create engine items for pairs of texts. Each text is tokenized only once, even if it is in many pairs."""

from __future__ import annotations

from collections.abc import Sequence

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import EncodeItem
from server.operations.encode import check_tokens, type_ids_or_none
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.tokens.pairs import NoPairs, PairTemplate, lengths_in
from server.text.tokens.truncation import TruncationSide


async def pair_template(runtime: Runtime, call: Call, model: ServedModel) -> PairTemplate:
    """The template by which a model's tokenizer joins two texts. It is computed by the first request that needs it.

    Raises InvalidRequest for a tokenizer that cannot encode pairs, or not by a fixed template.
    """
    found = runtime.pair_templates.get(model.name)
    if found is None:
        try:
            found = await runtime.pools.tokenize.run(lambda: PairTemplate.of(model.tokenizer), call)
        except NoPairs as error:
            raise InvalidRequest(f"`{model.name}` cannot read pairs of texts: {error}", "model") from None
        runtime.pair_templates[model.name] = found
    return found


async def text_ids(
    runtime: Runtime, call: Call, model: ServedModel, texts: Sequence[str], param: str
) -> list[list[int]]:
    """Token ids of each text, without special tokens. param: the request's field with the texts, for errors."""
    return await runtime.encode_with(
        model.tokenizer, texts, lambda encoding: encoding.ids, param=param, add_special_tokens=False, call=call
    )


def joined_item(
    template: PairTemplate,
    model: ServedModel,
    first: Sequence[int],
    second: Sequence[int],
    truncation: TruncationSide | None,
    param: str,
) -> tuple[EncodeItem, bool]:
    """Create the engine item of a pair. Returns it, and whether the pair was too long.

    In a long pair, the longer text loses tokens first.

    first, second: token ids of the texts.
    truncation: side on which the texts lose tokens, or None to refuse a pair that is too long.
    param: the request's field with the texts, for errors.
    Raises the errors of `check_tokens`.
    """
    room = model.max_input_tokens - template.num_special
    is_long = len(first) + len(second) > room
    if is_long and truncation is not None:
        kept = lengths_in(room, len(first), len(second))
        first, second = (
            ids[:count] if truncation == "right" else ids[len(ids) - count :]
            for ids, count in zip((first, second), kept, strict=True)
        )
    pair = template.join(first, second)
    if truncation is not None:
        pair.ids[model.max_input_tokens :] = []
        pair.type_ids[model.max_input_tokens :] = []
    return EncodeItem(check_tokens(pair.ids, model, param), type_ids_or_none(pair.type_ids)), is_long
