"""All inputs of programs: the values that a run sets, each declared once with its dtype and shape.

While a program is traced, the symbolic step inputs refer to an input; in each run, the step inputs, the caches and the
executor give its value. Both sides get the same object, because the functions of this file cache their results. Inputs
are therefore compared and hashed by identity, which is faster than by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

import torch

from models.backends.logits import LogitsTopK
from models.config import QueryScale, RopeConfig

CacheRole = Literal["self", "cross"]
Side = Literal["keys", "values"]
Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class ProgramInput:
    """A number or an address that each run of a program sets. name: for messages."""

    name: str


@dataclass(frozen=True, eq=False)
class TensorInput(ProgramInput):
    """The address of a contiguous tensor [rows, *row_shape] that each run of a program sets."""

    dtype: torch.dtype
    row_shape: tuple[int, ...] = ()


InputValues: TypeAlias = Mapping[ProgramInput, int]
"""Values of program inputs: numbers and addresses. A mapping has the inputs that change in each run, or static inputs,
whose values stay the same in many runs."""

OUT = ProgramInput("out")
"""Address of the memory to which the program writes its output."""

TOKEN_IDS = TensorInput("token ids", torch.int64)
TOKEN_POSITIONS = TensorInput("positions of the tokens", torch.int64)

OUTPUT_ROWS = TensorInput("output rows", torch.int64)
"""Indices of the rows whose outputs the caller needs. There are `NUM_OUTPUT_ROWS` of them."""
NUM_OUTPUT_ROWS = ProgramInput("number of output rows")

CACHE_SLOTS = TensorInput("cache slots", torch.int64)
"""For each token, the slot of the self-attention cache that its keys and values are stored in."""
STATE_SLOTS = TensorInput("state slots", torch.int64)
"""The slot of each row in the state memory, which mixers read and write."""

NUM_TOP_K = ProgramInput("number of top logits")
TOP_K: Mapping[str, ProgramInput] = {name: ProgramInput(f"top {name}") for name in LogitsTopK._fields}
"""Addresses to which a run writes the fields of `LogitsTopK`, by field name. 0 for a field that is not needed."""


@cache
def hidden(dtype: torch.dtype, width: int) -> TensorInput:
    """Program input: hidden states that enter the first layer, in a program without embedding."""
    return TensorInput("hidden states", dtype, (width,))


@cache
def draft_states(dtype: torch.dtype, width: int) -> TensorInput:
    """Program input: hidden states of the model, which a draft head reads together with token ids."""
    return TensorInput("hidden states for a draft head", dtype, (width,))


@cache
def tap(place: int, dtype: torch.dtype, width: int) -> TensorInput:
    """Program input: memory for the input of a layer that a draft head reads. place: index in `Stack.taps`."""
    return TensorInput(f"copied layer input {place}", dtype, (width,))


@cache
def logits(vocab_size: int) -> TensorInput:
    """Program input: memory for the logits of the output rows."""
    return TensorInput("logits", torch.float32, (vocab_size,))


class RotationInputs(NamedTuple):
    """Program inputs with the angles of one rotary configuration.

    cos, sin: tables with one row per position.
    positions, output_positions: the table row of each token, and of each output row.
    """

    cos: TensorInput
    sin: TensorInput
    positions: TensorInput
    output_positions: TensorInput


@cache
def rotation(rope: RopeConfig) -> RotationInputs:
    """The program inputs of a rotary configuration. Equal configurations give the same objects."""
    tables = (TensorInput(f"{name} of {rope}", torch.float32, (rope.dim // 2,)) for name in ("cos", "sin"))
    rows = (TensorInput(f"{name} of {rope}", torch.int64) for name in ("positions", "output positions"))
    return RotationInputs(*tables, *rows)


@cache
def query_scale(config: QueryScale) -> TensorInput:
    """Program input: the factor by which the queries of each token are multiplied, [tokens, 1]."""
    return TensorInput(f"factors of {config}", torch.float32, (1,))


@cache
def score_bias(layer: int | None) -> ProgramInput:
    """Program input: the bias of attention scores. layer: index of the layer; None where all layers share one bias."""
    return ProgramInput("score bias" if layer is None else f"score bias of layer {layer}")


class AttentionFields(NamedTuple, Generic[Value]):
    """Fields of `struct Attention` (`kernels/kernels.h`) that are equal for all layers of a step with one pattern.

    Their values are numbers and addresses in a run, and program inputs in a trace.
    """

    tables: Value
    table_width: Value
    block_size: Value
    rows: Value
    starts: Value
    ends: Value
    origins: Value
    tiles: Value
    num_tiles: Value
    bias_stride: Value
    bias_zero: Value


@cache
def attention(pattern: Hashable) -> AttentionFields[ProgramInput]:
    """Program inputs that describe the attention of one pattern, one for each field. pattern: an `AttentionPattern`."""
    return AttentionFields(*(ProgramInput(f"{name} of {pattern}") for name in AttentionFields._fields))


class CacheSideInputs(NamedTuple):
    """Program inputs with the keys, or the values, of one layer in a cache.

    numbers: the keys or values, or the int8 codes that represent them. scales: used for an int8 cache only.
    """

    numbers: TensorInput
    scales: TensorInput


@cache
def cache_side(role: CacheRole, side: Side, layer: int, heads: int, head_dim: int, is_int8: bool) -> CacheSideInputs:
    """Program inputs: the keys, or the values, of one layer in a cache.

    heads, head_dim: number of key/value heads, and width of one.
    is_int8: whether the cache holds int8 codes. Otherwise the declared dtype of the input has no effect: the kernels
        read the numbers in the dtype of the query.
    """
    name = f"{side} of layer {layer} in the {role} cache"
    numbers = TensorInput(name, torch.int8 if is_int8 else torch.float32, (heads, head_dim))
    return CacheSideInputs(numbers, TensorInput(f"scales of the {name}", torch.bfloat16))


@cache
def block_size(role: CacheRole) -> ProgramInput:
    """Program input: number of slots in a block of the self-attention or cross-attention cache."""
    return ProgramInput(f"block size of the {role} cache")


@cache
def state(layer: int, index: int, shape: tuple[int, ...]) -> TensorInput:
    """Program input: the memory of one state tensor of a layer's mixer.

    layer: index of the layer. index: index of the tensor in `MixerConfig.state_shapes`. shape: shape of one slot.
    """
    return TensorInput(f"state {index} of layer {layer}", torch.float32, shape)
