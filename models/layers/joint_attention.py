"""Attention of a decoder to its own text and to the encoder output in one softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata
from models.backends.choice import backend
from models.backends.int8_slots import CacheSide
from models.backends.linear_weights import LinearPacker
from models.layers.attention import Attention

KeysOfPart = tuple[CacheSide, CacheSide, AttentionMetadata]
"""Keys, values and metadata of the keys of a text or of its source."""


class JointAttention(Attention):
    """Attention with one softmax over the keys of the text and of the encoder output. See `JointAttentionConfig`.

    It runs eagerly, because the kernels return no sums of exponentials, which are needed to join two results.

    not_captured: see `Mixer`.
    """

    not_captured = "attention to a text and its source in one softmax"

    def source_keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        key = self._normalize(self._clip(self.key(source)), self.key_norm)
        return key, self._normalize_values(self._clip(self.value(source)))

    def attend(self, query: Tensor, parts: Sequence[KeysOfPart]) -> Tensor:
        """Attend to the keys of all parts. query: [tokens, heads, head_dim]. Returns a tensor like it.

        Each part is attended to alone. A part's share of the result is its share of the sum of exponentials.
        """
        found = [backend(query).attention_with_logsumexp(query, *part, self.config.scale) for part in parts]
        shares = torch.stack([logsumexp for _, logsumexp in found]).softmax(0).to(query.dtype)
        return (torch.stack([result for result, _ in found]) * shares[..., None]).sum(0)

    def pack(self, packer: LinearPacker, projection_packer: LinearPacker, one_input: bool) -> None:
        """Replace the weights by packed ones. Keys and values have two inputs, so they are no part of one product."""
        super().pack(packer, projection_packer, one_input=False)
