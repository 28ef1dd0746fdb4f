"""Multi-head latent attention: one latent vector per token replaces the keys and values of all heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from models.backends.linear_weights import LinearPacker
from models.config import AttentionConfig, LatentAttentionConfig, RopeConfig
from models.layers.attention import Attention
from models.layers.linear import Linear
from models.layers.norms import make_norm
from models.layers.positions import Rotation


class LatentAttention(Attention):
    """Projections of latent attention, computed as multi-query attention in which the keys are also the values.

    The key of a token is its rotated part and its latent vector, in this order. The query of a head has a rotated part
    and a plain part; `key_heads` maps the plain part to the space of the latent vectors. The result of a head is a
    weighted sum of keys; `value_heads` maps the latent part of this sum to the values of the head.

    query_down: projection to the latent vector from which queries are computed; None if there is no such vector.
    key_down: projection to the latent vector, then the rotated part of the key.
    key_heads: for each head, a linear from the plain part of its query to the space of the latent vectors.
    value_heads: for each head, a linear from the latent vectors to its values. Neither `key_heads` nor `value_heads`
        are packed: they are small, and rounding them would change all keys.
    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.
    """

    config: LatentAttentionConfig
    unadaptable = ("key_heads", "value_heads")

    def _make_projections(self, config: AttentionConfig, hidden_size: int) -> None:
        assert isinstance(config, LatentAttentionConfig) and config.rope is not None
        self._attention_dtype: torch.dtype | None = None
        heads, rank, query_rank = config.num_heads, config.latent_dim, config.query_rank
        self.query_down = None if query_rank is None else Linear(hidden_size, query_rank, config.down_bias)
        self.query_down_norm = None if query_rank is None else make_norm(config.norm, query_rank)
        self.query = Linear(query_rank or hidden_size, heads * config.query_dim, config.query_bias)
        self.key_down = Linear(hidden_size, rank + config.rope.dim, config.down_bias)
        self.key_norm = make_norm(config.norm, rank)
        self.key_heads = nn.ModuleList(Linear(config.plain_dim, rank, False) for _ in range(heads))
        self.value_heads = nn.ModuleList(Linear(rank, config.value_dim, False) for _ in range(heads))
        self.output = Linear(heads * config.value_dim, hidden_size, config.output_bias)

    def queries(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> Tensor:
        """Compute queries in the space of the keys: [tokens, hidden] -> [tokens, heads, head_dim]."""
        if self.query_down is not None and self.query_down_norm is not None:
            hidden = self.query_down_norm(self.query_down(hidden))
        config = self.config
        query = self.query(hidden).view(hidden.shape[0], config.num_heads, config.query_dim)
        plain, turning = query.split([config.plain_dim, config.query_dim - config.plain_dim], -1)
        turned = self._rotate(turning.contiguous(), rotations)
        return self._for_attention(torch.cat([turned, _by_head(self.key_heads, plain)], -1))

    def keys_values(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> tuple[Tensor, Tensor]:
        """Compute the keys, which are also the values. Returns the same tensor twice: [tokens, 1, head_dim].

        hidden: [tokens, hidden], model dtype.
        """
        assert self.key_norm is not None
        latent, turning = self.key_down(hidden).split([self.config.latent_dim, _width(self.config)], -1)
        turned = self._rotate(turning.contiguous()[:, None], rotations)
        key = self._for_attention(torch.cat([turned, self.key_norm(latent.contiguous())[:, None]], -1))
        return key, key

    def project_output(self, attended: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Map the weighted sum of keys to the values of each head, and apply the output projection.

        attended: [tokens, heads, head_dim]. hidden: not used. Returns [tokens, hidden].
        """
        results = attended[..., _width(self.config) :].to(next(self.value_heads.parameters()).dtype)
        values = _by_head(self.value_heads, results)
        output: Tensor = self.output(values.flatten(-2))
        return output

    def pack(self, packer: LinearPacker, projection_packer: LinearPacker, one_input: bool) -> None:
        """Replace the weights of all linears by packed weights, except `key_heads` and `value_heads`.

        packer: packs all of them. projection_packer: its `out_dtype` becomes the dtype of queries and keys. one_input:
            not used.
        """
        for linear in (self.query_down, self.query, self.key_down, self.output):
            if linear is not None:
                linear.pack(packer)
        self._attention_dtype = projection_packer.out_dtype

    def _for_attention(self, x: Tensor) -> Tensor:
        """Convert queries or keys to the dtype of the cache."""
        return x if self._attention_dtype is None else x.to(self._attention_dtype)


def _width(config: LatentAttentionConfig) -> int:
    """Width of the rotated part of a key."""
    assert config.rope is not None
    return config.rope.dim


def _by_head(linears: Sequence[nn.Module] | nn.ModuleList, x: Tensor) -> Tensor:
    """Apply the linear of each head: [tokens, heads, in] -> [tokens, heads, out]."""
    return torch.stack([linear(x[:, head].contiguous()) for head, linear in enumerate(linears)], dim=1)
