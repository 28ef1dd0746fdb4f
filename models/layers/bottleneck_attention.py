"""Attention whose queries and keys are computed from a narrower input than its values (MobileBERT)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from models.backends.linear_weights import LinearPacker
from models.config import BottleneckAttentionConfig, RopeConfig
from models.layers.attention import Attention
from models.layers.linear import Linear
from models.layers.norms import make_norm
from models.layers.positions import Rotation


class BottleneckAttention(Attention):
    """Attention that computes queries and keys from a narrow projection of the input, and values from the input itself.

    The input has the width `key_value_width`. The projection and the result of attention have the width `hidden_size`.

    bottleneck: the projection, [tokens, key_value_width] -> [tokens, hidden_size].
    Source: Sun et al. 2020, arXiv:2004.02984, and the code published with it.
    """

    def __init__(self, config: BottleneckAttentionConfig, hidden_size: int) -> None:
        super().__init__(config, hidden_size)
        assert config.key_value_width is not None
        self.key = Linear(hidden_size, config.num_kv_heads * config.head_dim, config.key_bias)
        self.bottleneck = Linear(config.key_value_width, hidden_size, bias=True)
        self.bottleneck_norm = make_norm(config.norm, hidden_size)

    def pack(self, packer: LinearPacker, projection_packer: LinearPacker, one_input: bool) -> None:
        super().pack(packer, projection_packer, one_input=False)
        self.bottleneck.pack(packer)

    def queries_keys_values(
        self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]
    ) -> tuple[Tensor, Tensor, Tensor]:
        narrow = self._narrow(hidden)
        query, key, value = self.query(narrow), self.key(narrow), self.value(hidden)
        return self._split_heads(query), self._split_heads(key), self._split_heads(value)

    def queries(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> Tensor:
        return self._split_heads(self.query(self._narrow(hidden)))

    def keys_values(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> tuple[Tensor, Tensor]:
        return self._split_heads(self.key(self._narrow(hidden))), self._split_heads(self.value(hidden))

    def _narrow(self, hidden: Tensor) -> Tensor:
        """Compute the input of queries and keys: [tokens, key_value_width] -> [tokens, hidden_size]."""
        assert self.bottleneck_norm is not None
        narrow: Tensor = self.bottleneck_norm(self.bottleneck(hidden))
        return narrow
