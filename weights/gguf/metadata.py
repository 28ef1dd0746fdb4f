"""The settings of a model in the metadata of a GGUF file.

Keys are given without the architecture's name, with which they start in the file: `block_count`, not
`llama.block_count`.
"""

from __future__ import annotations

import struct
from typing import Any

from weights.errors import GgufError
from weights.gguf.container import Gguf

MAX_LAYERS = 4096
_LARGEST = 3e38
"""Numbers up to this magnitude can be packed as a float32."""


class Metadata:
    """Strict reading of a model's settings in GGUF metadata.

    Methods raise GgufError, with the key, for a value that is missing or has a wrong type.
    """

    def __init__(self, gguf: Gguf) -> None:
        self.gguf = gguf
        self.architecture = gguf.get("general.architecture")
        if not isinstance(self.architecture, str):
            raise GgufError(f"{gguf.name!r} does not state 'general.architecture'")

    def optional(self, key: str) -> Any:
        """The value of a key, unchecked, or None without the key. An array of equal values counts as one value.

        Raises GgufError for an array of different values.
        """
        value = self.gguf.get(f"{self.architecture}.{key}")
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise self.error(key, "differs between layers, which is not supported")
            return value[0]
        return value

    def by_layer(self, key: str) -> list[Any]:
        """The value of a key for each layer, unchecked. A single value, or None without the key, is repeated.

        Raises GgufError for an array that is shorter than the number of layers.
        """
        value = self.gguf.get(f"{self.architecture}.{key}")
        if isinstance(value, list) and len(value) < self.layers:
            raise self.error(key, f"has {len(value)} values for {self.layers} layers")
        return value[: self.layers] if isinstance(value, list) else [value] * self.layers

    def largest(self, key: str, default: int | None = None) -> int:
        """The largest value of a key with one integer per layer, such as the number of heads.

        default: value without the key. None: the key is required.
        """
        values = [number for number in self.by_layer(key) if isinstance(number, int) and not isinstance(number, bool)]
        return max(values) if len(values) == self.layers > 0 else self.integer(key, default)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.optional(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, "is missing" if value is None else "is not an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.optional(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(key, "is missing" if value is None else "is not a number")
        return shortest(value)

    def error(self, key: str, reason: str) -> GgufError:
        return GgufError(f"{self.gguf.name!r}: '{self.architecture}.{key}' {reason}")

    @property
    def layers(self) -> int:
        """Number of decoder or encoder layers, without the layers for multi-token prediction."""
        blocks, heads = self.integer("block_count"), self.integer("nextn_predict_layers", 0)
        if not 0 <= blocks <= MAX_LAYERS:  # lists of this length are made
            raise self.error("block_count", f"must be at most {MAX_LAYERS:,}, not {blocks:,}")
        if not 0 <= heads <= blocks:
            raise self.error("nextn_predict_layers", f"must be from 0 to {blocks:,}, not {heads:,}")
        return blocks - heads

    def layers_with(self, tensor: str) -> list[int]:
        """Indices of the layers that have a tensor. tensor: its name inside a layer, such as `attn_q.bias`."""
        return [layer for layer in range(self.layers) if self.has(f"blk.{layer}.{tensor}")]

    def rows(self, tensor: str) -> int:
        """Number of rows (first dimension) of a tensor. Raises GgufError without this tensor."""
        if tensor not in self.gguf.tensors:
            raise GgufError(f"{self.gguf.name!r} has no tensor {tensor!r}")
        return self.gguf.tensors[tensor].shape[0]

    def is_matrix(self, tensor: str) -> bool:
        """Whether a tensor exists and has two dimensions. The converter writes a table with one row as a vector."""
        return len(self.gguf.tensors[tensor].shape) == 2 if self.has(tensor) else False

    def has(self, tensor: str) -> bool:
        return tensor in self.gguf.tensors

    @property
    def head_dim(self) -> int:
        """Width of one attention head: `attention.key_length`, else the hidden size divided by the number of heads."""
        heads = self.integer("attention.head_count")
        if heads < 1:
            raise self.error("attention.head_count", "is below one")
        return self.integer("attention.key_length", self.integer("embedding_length") // heads)


def shortest(value: float) -> float:
    """The decimal number with the fewest digits that rounds to the same float32 as `value`.

    This recovers a number of the original settings, such as 1e-06, which files store as float32.
    """
    if abs(value) > _LARGEST:
        return float(value)
    for digits in range(1, 9):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", value):
            return short
    return float(value)
