"""The projections around attention; what happens between them is a step's business (`models.steps`)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from models import ops
from models.config import AttentionConfig, RopeConfig
from models.linear import Linear
from models.positions import Rotation


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, arXiv:1706.03762), or grouped-query (Ainslie et al. 2023,
    arXiv:2305.13245).

    Does not know where keys and values are kept, nor which of them a query may see.
    """

    def __init__(self, config: AttentionConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.query = Linear(hidden_size, width, config.query_bias)
        self.key = Linear(hidden_size, kv_width, config.key_bias)
        self.value = Linear(hidden_size, kv_width, config.value_bias)
        self.output = Linear(width, hidden_size, config.output_bias)

    def queries(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> Tensor:
        """[tokens, hidden] -> [tokens, heads, head_dim], rotated where the configuration has rotary positions."""
        return self._rotate(self._heads(self.query(hidden)), rotations)

    def keys_values(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> tuple[Tensor, Tensor]:
        """[tokens, hidden] -> two of [tokens, kv_heads, head_dim], the keys rotated like the queries."""
        return self._rotate(self._heads(self.key(hidden)), rotations), self._heads(self.value(hidden))

    def join(self, attended: Tensor) -> Tensor:
        """[tokens, heads, head_dim] -> [tokens, hidden]."""
        output: Tensor = self.output(attended.flatten(-2))
        return output

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, self.config.head_dim)

    def _rotate(self, x: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> Tensor:
        if self.config.rope is None:
            return x
        rotation = rotations[self.config.rope]
        return ops.rotate(x, rotation.cos, rotation.sin, self.config.rope.pairing == "interleaved")
