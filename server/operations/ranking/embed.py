"""Compute embeddings: one vector per text, or one vector per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from server.errors import InvalidRequest, RequestTooLarge
from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.operations.cost import Cost, characters_of, most_tokens
from server.operations.encode import InputItems, Numbers, check_tokens, matrices, prompted_items, vectors
from server.operations.ranking.routes import of_role
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.tokens.truncation import TruncationSide

MAX_NUMBERS = 1 << 24
"""Maximum count of vector components in one `embed_all` result: 64 MiB from the worker, about three times that as JSON.
"""


class EmbedInputs(Protocol):
    """The fields of a specification that describe its inputs, with the same meaning as in `EmbedAllSpec`."""

    @property
    def inputs(self) -> Sequence[str | list[int]]: ...

    @property
    def truncation(self) -> TruncationSide | None: ...

    @property
    def prompt_name(self) -> str | None: ...


@dataclass(frozen=True)
class EmbedAllSpec:
    """Request for one vector per token of each input, including special tokens.

    inputs: texts or lists of token ids.
    model: name of the model, or None for the first model that supports the operation.
    normalize: scale each vector to unit length.
    truncation: side on which a long input loses tokens, or None to refuse it.
    dimensions: number of components to keep of each vector; None for all.
    prompt_name: name of a prompt of the checkpoint (sentence-transformers) to put before each text.
    """

    inputs: Sequence[str | list[int]]
    model: str | None = None
    normalize: bool = True
    truncation: TruncationSide | None = "right"
    dimensions: int | None = None
    prompt_name: str | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission."""
        cost = input_cost(self, model)
        return replace(cost, answer_numbers=min(cost.input_tokens * model.info.hidden_size, MAX_NUMBERS))


@dataclass(frozen=True)
class EmbedSpec(EmbedAllSpec):
    """Request for one vector per input.

    pooling: rule by which the vectors of tokens become one vector; None for the checkpoint's rule.
    max_tokens: limit for the tokens of an input, if it is below the model's limit; None for the model's limit.
    """

    pooling: Literal["mean", "cls", "last", "max"] | None = None
    max_tokens: int | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission."""
        cost = input_cost(self, model)
        return replace(cost, answer_numbers=cost.sequences * vector_size(self.pooling, model))


@dataclass(frozen=True)
class EmbedResult:
    """Vectors of all inputs. vectors: [inputs, size], float32. prompt_tokens: number of tokens of all inputs."""

    model: str
    vectors: Numbers
    prompt_tokens: int


async def embed(runtime: Runtime, call: Call, spec: EmbedSpec) -> EmbedResult:
    """Compute one vector per input. Adds the indices of shortened inputs to `call`.

    Raises InvalidRequest for too many `dimensions`, and the errors of `input_items`.
    """
    model = of_role(runtime, runtime.candidates(spec.model, "embed")[0], spec.prompt_name, "embed")
    check_dimensions(spec.dimensions, vector_size(spec.pooling, model))
    runtime.admission.admit(call, model, spec.cost(model))
    found = await input_items(runtime, call, model, spec, spec.max_tokens)
    call.truncated_inputs = found.truncated
    message = Encode(
        call.next_id(),
        model.name,
        "embed",
        found.items,
        pooling=spec.pooling,
        normalize=spec.normalize and spec.dimensions is None,
    )
    found_vectors = cut_vectors(await vectors(call, message), spec.dimensions, spec.normalize)
    return EmbedResult(model.name, found_vectors, sum(item.num_tokens for item in message.items))


async def embed_all(runtime: Runtime, call: Call, spec: EmbedAllSpec) -> list[Numbers]:
    """Compute the vectors of all tokens: an array [tokens, size], float32, for each input.

    Raises RequestTooLarge for a result of more than `MAX_NUMBERS` components, InvalidRequest for too many `dimensions`,
    and the errors of `input_items`.
    """
    model = of_role(runtime, runtime.candidates(spec.model, "embed_all")[0], spec.prompt_name, "embed_all")
    check_dimensions(spec.dimensions, model.info.hidden_size)
    runtime.admission.admit(call, model, spec.cost(model))
    found = await input_items(runtime, call, model, spec)
    call.truncated_inputs = found.truncated
    numbers = sum(len(item.token_ids) for item in found.items) * model.info.hidden_size
    if numbers > MAX_NUMBERS:
        raise RequestTooLarge(
            f"`inputs` asks for {numbers} numbers; the limit of one answer is {MAX_NUMBERS}", "inputs"
        )
    message = Encode(
        call.next_id(),
        model.name,
        "embed_tokens",
        found.items,
        normalize=spec.normalize and spec.dimensions is None,
    )
    return [cut_vectors(matrix, spec.dimensions, spec.normalize) for matrix in await matrices(call, message)]


def input_cost(spec: EmbedInputs, model: ServedModel) -> Cost:
    """The cost of reading the inputs of a request, without the cost of its answer."""
    prompt = model.text.prompt(spec.prompt_name)
    texts = [text for text in spec.inputs if isinstance(text, str)]
    limit = model.max_input_tokens
    before = model.tokenizer.token_bound(prompt)
    tokens = sum(min(before + most_tokens(model.tokenizer, text), limit) for text in texts)
    tokens += sum(min(len(ids), limit) for ids in spec.inputs if not isinstance(ids, str))
    return Cost(characters_of(texts) + (len(texts) + 1) * len(prompt), tokens, len(spec.inputs))


def vector_size(pooling: str | None, model: ServedModel) -> int:
    """Number of components of one vector before it is cut to `dimensions`.

    The checkpoint's pooling may end in a dense layer, so its vectors may have another size than hidden states.

    pooling: the pooling that a request asks for; None for the checkpoint's.
    """
    own_size = model.info.embedding_size if pooling is None else 0
    return own_size or model.info.hidden_size


def check_dimensions(dimensions: int | None, size: int) -> None:
    """Raise InvalidRequest if `dimensions` exceeds the number of components of the model's vectors, `size`."""
    if dimensions is not None and dimensions > size:
        raise InvalidRequest(f"`dimensions` {dimensions} is more than the model's {size}", "dimensions")


async def input_items(
    runtime: Runtime, call: Call, model: ServedModel, spec: EmbedInputs, max_tokens: int | None = None
) -> InputItems:
    """Create one engine item per input. The named prompt is put before texts; token ids are used unchanged.

    max_tokens: limit for the tokens of an input, if it is below the model's limit; None for the model's limit.
    Raises InvalidRequest for an unknown prompt, or a prompt with token ids, and the errors of `prompted_items`.
    """
    limit = min(max_tokens or model.max_input_tokens, model.max_input_tokens)
    prompt = model.text.prompt(spec.prompt_name)
    if spec.prompt_name is not None and any(not isinstance(entry, str) for entry in spec.inputs):
        raise InvalidRequest("`prompt_name` cannot be combined with token ids", "prompt_name")
    places = [index for index, entry in enumerate(spec.inputs) if isinstance(entry, str)]
    texts = [prompt + entry for entry in spec.inputs if isinstance(entry, str)]
    of_texts = await prompted_items(runtime, call, model, texts, prompt, spec.truncation, limit)
    text_items = iter(of_texts.items)
    truncated = [places[index] for index in of_texts.truncated]
    items = []
    for index, entry in enumerate(spec.inputs):
        if isinstance(entry, str):
            items.append(next(text_items))
            continue
        items.append(EncodeItem(check_tokens(_shorten(entry, limit, spec.truncation), model, "inputs")))
        if len(entry) > limit:
            truncated.append(index)
    return InputItems(items, sorted(truncated))


def _shorten(token_ids: list[int], limit: int, side: TruncationSide | None) -> list[int]:
    if side is None:
        return token_ids
    return token_ids[:limit] if side == "right" else token_ids[-limit:]


def cut_vectors(rows: Numbers, dimensions: int | None, normalize: bool) -> Numbers:
    """Cut each row to its first `dimensions` components (None for all), and scale it to unit length if `normalize`.

    rows: [rows, size], float32. With None, the rows are returned unchanged.
    """
    if dimensions is None:
        return rows
    rows = rows[:, :dimensions]
    if normalize:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / np.maximum(norms, np.finfo(np.float32).tiny)
    return np.ascontiguousarray(rows)
