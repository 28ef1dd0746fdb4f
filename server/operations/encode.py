"""Shared by the operations of encoder models: texts to engine items, and the numbers that come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.errors import ContextLengthExceeded, InvalidRequest
from server.ipc.client.call import Call, request_error
from server.ipc.wire.descriptions import ModelInfo
from server.ipc.wire.messages import Encode, Encoded, EncodeItem, Failed
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.system.loop_iterations import next_iteration
from server.text.tokens.tokenizer import Encoding
from server.text.tokens.truncation import TruncationSide, truncate
from server.text.tokens.windows import TokenWindow

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class InputItems:
    """Message items of texts, in the order of the texts. truncated: indices of the texts that lost tokens."""

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
    """One item per text.

    truncation: side on which a long text loses tokens, or None to refuse it.
    param: the field that an error names.
    max_tokens: longest text in tokens if it is below the limit of the model, or None.
    Raises the errors of `encode_item`.
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
    param: str,
    max_tokens: int | None = None,
) -> InputItems:
    """`text_items` of texts that begin with `prompt`. Some checkpoints exclude the prompt's tokens from the pooling."""
    found = await text_items(runtime, call, model, texts, truncation, param, max_tokens)
    if not texts or not prompt or model.info.include_prompt:
        return found
    (alone,) = await runtime.encode(model.tokenizer, [prompt], param=param, call=call)
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
    """One item per pair of texts. In a pair that is too long, the longer text loses tokens first."""

    def item(encoding: Encoding) -> tuple[EncodeItem, bool]:
        return encode_item(encoding, model, truncation, param), len(encoding.ids) > model.max_input_tokens

    if not firsts:
        return InputItems([], [])
    return _input_items(await runtime.encode_with(model.tokenizer, firsts, item, pairs=seconds, param=param, call=call))


def _input_items(found: Sequence[tuple[EncodeItem, bool]]) -> InputItems:
    """Collect the items, and the indices of the truncated ones. found: each item, and whether its text was too long."""
    return InputItems([item for item, _ in found], [place for place, (_, long) in enumerate(found) if long])


def encode_item(
    encoding: Encoding,
    model: ServedModel,
    truncation: TruncationSide | None,
    param: str,
    max_tokens: int | None = None,
) -> EncodeItem:
    """The message item that asks the engine to encode one tokenized text.

    truncation: the side that loses tokens if the text is too long; None to refuse a text that the model cannot read.
    param: name of the request's field with the text, for errors.
    max_tokens: length to which the text is truncated; None for the longest input of the model. Without `truncation` it
        has no effect.
    Raises the errors of `check_tokens`.
    """
    if truncation is not None:
        encoding = truncate(encoding, max_tokens or model.max_input_tokens, truncation)
    return EncodeItem(check_tokens(encoding.ids, model, param, max_tokens), type_ids_or_none(encoding.type_ids))


def window_item(encoding: Encoding, window: TokenWindow, model: ServedModel, param: str) -> EncodeItem:
    """The message item that asks the engine to encode one window of a tokenized text.

    Raises the errors of `check_tokens`.
    """
    token_ids = check_tokens([encoding.ids[index] for index in window], model, param)
    return EncodeItem(token_ids, type_ids_or_none([encoding.type_ids[index] for index in window]))


def type_ids_or_none(type_ids: list[int]) -> list[int] | None:
    """Token types as the message has them: None where all are zero."""
    return type_ids if any(type_ids) else None


def check_tokens(token_ids: list[int], model: ServedModel, param: str, max_tokens: int | None = None) -> list[int]:
    """Check the token ids of one input, and return them.

    max_tokens: longest input in tokens if it is below the limit of the model, or None.

    Raises:
        InvalidRequest: no tokens, or an id outside the vocabulary.
        ContextLengthExceeded: more tokens than the model reads.
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
    """Return the ids. Raises InvalidRequest for an id outside the vocabulary; tokenizers can produce such ids too."""
    if token_ids and max(token_ids) >= info.vocab_size:
        raise InvalidRequest(
            f"`{param}` contains the id {max(token_ids)}; the vocabulary of `{info.name}` has {info.vocab_size} tokens",
            param,
        )
    return list(token_ids)


async def encoded_items(call: Call, message: Encode) -> list[Encoded]:
    """Submit a message and return the engine's answer to each item, in order. Raises the error of a failed item."""
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
    """Submit a message and return [rows, width] of each item, in order. Every item has a row."""
    encoded = await encoded_items(call, message)
    return [np.frombuffer(item.values, dtype="<f4").reshape(item.rows, -1) for item in encoded]


async def encoded_rows(call: Call, message: Encode, width: int) -> list[Numbers]:
    """Submit a message and return [rows, width] of each item, in order. An item may have no rows."""
    encoded = await encoded_items(call, message)
    return [np.frombuffer(item.values, dtype="<f4").reshape(-1, width) for item in encoded]


async def vectors(call: Call, message: Encode) -> Numbers:
    """Submit a message whose items have one row each, and return [items, width]."""
    return np.concatenate(await matrices(call, message))


def sigmoid(logits: Numbers) -> Numbers:
    """Logistic function of each number, without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)), dtype=np.float32)
