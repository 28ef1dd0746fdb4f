"""Attention of a decoder to its text and to the encoder output, in one softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata
from models.backends.choice import backend
from models.backends.linear_weights import LinearPacker
from models.backends.rounded_slots import CacheSide
from models.layers.attention import Attention

KeysOfPart = tuple[CacheSide, CacheSide, AttentionMetadata]
"""Keys, values and attention metadata of one part: the text, or its source."""


class JointAttention(Attention):
    """Attention with one softmax over the keys of the text and of the encoder output.

    It runs eagerly. To join the results of two parts, the log-sum-exp of their scores is needed, which the kernels do
    not return.

    not_captured: why a step with this attention cannot be captured as a CUDA graph.
    """

    not_captured = "attention to a text and its source in one softmax"

    def source_keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        key = self._normalize(self._clip(self.key(source)), self.key_norm)
        return key, self._normalize_values(self._clip(self.value(source)))

    def attend(self, query: Tensor, parts: Sequence[KeysOfPart]) -> Tensor:
        """Attend to the keys of all parts. query: [tokens, heads, head_dim]. Returns a tensor like the query.

        Attention is computed for each part separately. The results are added, each weighted by the softmax of the
        parts' log-sum-exp.
        """
        found = [backend(query).attention_with_logsumexp(query, *part, self.config.scale) for part in parts]
        shares = torch.stack([logsumexp for _, logsumexp in found]).softmax(0).to(query.dtype)
        return (torch.stack([result for result, _ in found]) * shares[..., None]).sum(0)

    def pack(self, packer: LinearPacker, projection_packer: LinearPacker, one_input: bool) -> None:
        """Replace the weights by packed weights.

        Queries have another input than keys and values of the encoder output, so their projections are not merged.
        """
        super().pack(packer, projection_packer, one_input=False)
