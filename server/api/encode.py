"""Texts to an encoder and its numbers back: what the encoder routes share. API.md section 5."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from server.api import generation
from server.api.answers import failure
from server.api.replies import attended
from server.api.state import Model, State
from server.errors import ContextLengthExceeded, InvalidRequest
from server.ipc.call import Call
from server.ipc.descriptions import ModelInfo
from server.ipc.messages import (
    Encode,
    Encoded,
    EncodeItem,
    Failed,
)
from server.text.tokenizer import Encoding

Numbers = NDArray[np.float32]


async def text_items(
    state: State, model: Model, texts: Sequence[str], truncate: bool, side: str, param: str
) -> list[EncodeItem]:
    """Every text as ids, cut to what the model reads. param: the field that the texts came in."""
    encodings = await state.encode(model.tokenizer, texts, param=param) if texts else []
    return [item(encoding, model.info, truncate, side, param) for encoding in encodings]


async def prompted_items(
    state: State, model: Model, texts: Sequence[str], prompt: str, truncate: bool, side: str, param: str
) -> list[EncodeItem]:
    """`text_items` of texts that begin with a prompt, which some checkpoints leave out of the vector."""
    items = await text_items(state, model, texts, truncate, side, param)
    if not items or not prompt or model.info.include_prompt:
        return items
    (alone,) = await state.encode(model.tokenizer, [prompt], param=param)
    ends = bool(alone.ids) and alone.ids[-1] in model.tokenizer.special_ids
    count = len(alone.ids) - ends
    if side == "left" and any(len(one.token_ids) == limit(model.info) for one in items):
        raise InvalidRequest(
            f"`truncation_direction` left would cut the prompt, whose tokens `{model.name}` leaves out of the vector",
            "truncation_direction",
        )
    return [EncodeItem(one.token_ids, one.token_type_ids, prompt_tokens=count) for one in items]


async def pair_items(
    state: State, model: Model, firsts: Sequence[str], seconds: Sequence[str], truncate: bool, side: str, param: str
) -> list[EncodeItem]:
    """Every pair of texts as ids; where one is too long, the longer text of it loses tokens first."""
    encodings = await state.encode(model.tokenizer, firsts, pairs=seconds, param=param) if firsts else []
    return [item(encoding, model.info, truncate, side, param) for encoding in encodings]


def item(encoding: Encoding, info: ModelInfo, truncate: bool, side: str, param: str) -> EncodeItem:
    """What the worker needs of a text. Raises InvalidRequest for a text without tokens or, uncut, too long."""
    if truncate:
        encoding = generation.shorten(encoding, limit(info), side)
    return EncodeItem(fitting(encoding.ids, info, param), types(encoding.type_ids))


def types(type_ids: list[int]) -> list[int] | None:
    """Token types as the wall carries them: None where all are zero."""
    return type_ids if any(type_ids) else None


def fitting(ids: list[int], info: ModelInfo, param: str) -> list[int]:
    """The ids. Raises InvalidRequest for none, for too many, and for what the model has no embedding of."""
    if not ids:
        raise InvalidRequest(f"`{param}` holds a text without any token", param)
    if len(ids) > limit(info):
        raise ContextLengthExceeded(
            f"`{param}` holds a text of {len(ids)} tokens; `{info.name}` reads at most {limit(info)}", param
        )
    return generation.check_ids(ids, info, param)


def limit(info: ModelInfo) -> int:
    """Longest text in tokens."""
    return (info.source_tokens if info.is_encoder_decoder else 0) or info.context_tokens


async def answers(request: Request, state: State, message: Encode, deadline: float) -> list[Encoded]:
    """What the engine says of each item, in order."""
    found: list[Encoded | None] = [None] * len(message.items)
    with state.client.submit(message, deadline) as call:
        async with attended(request, call.leave):
            await _collect(call, found)
    return [one for one in found if one is not None]


async def _collect(call: Call, found: list[Encoded | None]) -> None:
    while events := await call.events():
        for _, event in events:
            if isinstance(event, Failed):
                raise failure(event)
            if isinstance(event, Encoded):
                found[event.index] = event


async def matrices(request: Request, state: State, message: Encode, deadline: float) -> list[Numbers]:
    """[rows, width] of each item, in order."""
    encoded = await answers(request, state, message, deadline)
    return [np.frombuffer(one.values, dtype="<f4").reshape(one.rows, -1) for one in encoded]


async def vectors(request: Request, state: State, message: Encode, deadline: float) -> Numbers:
    """[items, width]: the one row of each item, in order."""
    return np.concatenate(await matrices(request, state, message, deadline))


def sigmoid(logits: Numbers) -> Numbers:
    """Each on its own, from 0 to 1; never overflows."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)), dtype=np.float32)
