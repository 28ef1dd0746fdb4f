"""Code that the operations of encoder models share: convert texts to engine items, and read the engine's answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.errors import ContextLengthExceeded, InvalidRequest
from server.ipc.client.call import Call, request_error
from server.ipc.wire.descriptions import ModelInfo
from server.ipc.wire.encode_messages import Encode, Encoded, EncodeItem
from server.ipc.wire.step_messages import Failed
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.system.loop_iterations import next_iteration
from server.text.tokens.tokenizer import Encoding
from server.text.tokens.truncation import TruncationSide, truncate
from server.text.tokens.windows import TokenWindow

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class InputItems:
    """Engine items for texts, in the order of the texts. truncated: indices of the texts that were shortened."""

    items: list[EncodeItem]
    truncated: list[int]


async def text_items(
    runtime: Runtime,
    call: Call,
    model: ServedModel,
    texts: Sequence[str],
    truncation: TruncationSide | None,
    param: str,
    max_tokens: int | None = None,
) -> InputItems:
    """Tokenize texts, and create one engine item for each.

    truncation: side on which a long text loses tokens, or None to refuse it.
    param: the request's field with the texts, for errors.
    max_tokens: limit for the tokens of a text, if it is below the model's limit; None for the model's limit.
    Raises the errors of `encode_item` and `Runtime.encode_with`.
    """

    def item(encoding: Encoding) -> tuple[EncodeItem, bool]:
        return encode_item(encoding, model, truncation, param, limit), len(encoding.ids) > limit

    limit = min(max_tokens or model.max_input_tokens, model.max_input_tokens)
    found = await runtime.encode_with(model.tokenizer, texts, item, param=param, call=call) if texts else []
    return _input_items(found)


async def prompted_items(
    runtime: Runtime,
    call: Call,
    model: ServedModel,
    texts: Sequence[str],
    prompt: str,
    truncation: TruncationSide | None,
    max_tokens: int | None = None,
) -> InputItems:
    """Like `text_items`, for the texts of `inputs`, which begin with `prompt`.

    If the checkpoint excludes the prompt from pooling, each item also has the number of prompt tokens. In this case,
    raises InvalidRequest if a text would be truncated on the left, because this would cut the prompt.
    """
    found = await text_items(runtime, call, model, texts, truncation, "inputs", max_tokens)
    if not texts or not prompt or model.info.include_prompt:
        return found
    (alone,) = await runtime.encode(model.tokenizer, [prompt], param="inputs", call=call)
    ends = bool(alone.ids) and alone.ids[-1] in model.tokenizer.special_ids
    count = len(alone.ids) - ends
    if truncation == "left" and found.truncated:
        raise InvalidRequest(
            f"`truncation_direction` left would cut the prompt, whose {count} tokens `{model.name}` excludes from the "
            "vector",
            "truncation_direction",
        )
    items = [EncodeItem(item.token_ids, item.token_type_ids, prompt_tokens=count) for item in found.items]
    return InputItems(items, found.truncated)


async def pair_items(
    runtime: Runtime,
    call: Call,
    model: ServedModel,
    firsts: Sequence[str],
    seconds: Sequence[str],
    truncation: TruncationSide | None,
    param: str,
) -> InputItems:
    """Tokenize pairs of texts, and create one engine item for each. In a long pair, the longer text loses tokens first.

    The other arguments and the errors are those of `text_items`.
    """

    def item(encoding: Encoding) -> tuple[EncodeItem, bool]:
        return encode_item(encoding, model, truncation, param), len(encoding.ids) > model.max_input_tokens

    if not firsts:
        return InputItems([], [])
    return _input_items(await runtime.encode_with(model.tokenizer, firsts, item, pairs=seconds, param=param, call=call))


def _input_items(found: Sequence[tuple[EncodeItem, bool]]) -> InputItems:
    """Collect items and the indices of truncated texts. found: pairs of an item and whether its text was too long."""
    return InputItems([item for item, _ in found], [place for place, (_, long) in enumerate(found) if long])


def encode_item(
    encoding: Encoding,
    model: ServedModel,
    truncation: TruncationSide | None,
    param: str,
    max_tokens: int | None = None,
) -> EncodeItem:
    """Create the engine item for one tokenized text.

    truncation: side on which a long text loses tokens, or None to refuse it.
    param: the request's field with the text, for errors.
    max_tokens: limit for the tokens of the text, if it is below the model's limit; None for the model's limit.
    Raises InvalidRequest for a text without tokens or with an id outside the vocabulary, and ContextLengthExceeded for
    a long text without truncation.
    """
    if truncation is not None:
        encoding = truncate(encoding, max_tokens or model.max_input_tokens, truncation)
    return EncodeItem(check_tokens(encoding.ids, model, param, max_tokens), type_ids_or_none(encoding.type_ids))


def window_item(encoding: Encoding, window: TokenWindow, model: ServedModel, param: str) -> EncodeItem:
    """Create the engine item for one window of a tokenized text.

    window: indices of its tokens in the encoding. param: the request's field with the text, for errors.
    Raises the errors of `check_tokens`.
    """
    token_ids = check_tokens([encoding.ids[index] for index in window], model, param)
    return EncodeItem(token_ids, type_ids_or_none([encoding.type_ids[index] for index in window]))


def type_ids_or_none(type_ids: list[int]) -> list[int] | None:
    """Token types for an engine item: None if all of them are zero."""
    return type_ids if any(type_ids) else None


def check_tokens(token_ids: list[int], model: ServedModel, param: str, max_tokens: int | None = None) -> list[int]:
    """Check the token ids of one input, and return them.

    param: the request's field with the input, for errors.
    max_tokens: limit for the tokens, if it is below the model's limit; None for the model's limit.

    Raises:
        InvalidRequest: no tokens, or an id outside the vocabulary.
        ContextLengthExceeded: more tokens than the limit.
    """
    if not token_ids:
        raise InvalidRequest(f"`{param}` contains a text without any token", param)
    limit = min(max_tokens or model.max_input_tokens, model.max_input_tokens)
    if len(token_ids) > limit:
        raise ContextLengthExceeded(
            f"`{param}` contains a text of {len(token_ids)} tokens; `{model.name}` reads at most {limit}", param
        )
    return check_ids(token_ids, model.info, param)


def check_ids(token_ids: Sequence[int], info: ModelInfo, param: str) -> list[int]:
    """Return token ids as a list. Raises InvalidRequest for an id outside the model's vocabulary.

    Ids are checked even if they come from the tokenizer, because its vocabulary may be larger than the model's.
    """
    if token_ids and max(token_ids) >= info.vocab_size:
        raise InvalidRequest(
            f"`{param}` contains the id {max(token_ids)}; the vocabulary of `{info.name}` has {info.vocab_size} tokens",
            param,
        )
    return list(token_ids)


async def encoded_items(call: Call, message: Encode) -> list[Encoded]:
    """Submit a message, and return the engine's answer to each item, in order. Raises the error of a failed item."""
    answers: list[Encoded | None] = [None] * len(message.items)
    call.submit(message)
    while events := await call.events():
        for _, event in events:
            if isinstance(event, Failed):
                raise request_error(event)
            if isinstance(event, Encoded):
                answers[event.index] = event
    await next_iteration()
    return [answer for answer in answers if answer is not None]


async def matrices(call: Call, message: Encode) -> list[Numbers]:
    """Submit a message, and return an array [rows, width] for each item, in order. Every item has at least one row."""
    encoded = await encoded_items(call, message)
    return [np.frombuffer(item.values, dtype="<f4").reshape(item.rows, -1) for item in encoded]


async def encoded_rows(call: Call, message: Encode, width: int) -> list[Numbers]:
    """Submit a message, and return an array [rows, width] for each item, in order. An item may have no rows."""
    encoded = await encoded_items(call, message)
    return [np.frombuffer(item.values, dtype="<f4").reshape(-1, width) for item in encoded]


async def vectors(call: Call, message: Encode) -> Numbers:
    """Submit a message whose items have one row each, and return one array [items, width], float32."""
    return np.concatenate(await matrices(call, message))


def sigmoid(logits: Numbers) -> Numbers:
    """Logistic function of each number, without overflow. Any shape; returns float32."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)), dtype=np.float32)
