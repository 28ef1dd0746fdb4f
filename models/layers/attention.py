"""The projections around attention; what happens between them is a step's business (`models.step_inputs`)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from torch import Tensor, nn

from models.backends import interface as ops
from models.config import AttentionConfig, QueryKeyNorm, RopeConfig
from models.layers.linear import ClippedLinear, Linear, Packer, merged
from models.layers.norms import LayerNorm, NormOfHeads, RMSNorm, make_norm
from models.layers.positions import Rotation

Norm = LayerNorm | RMSNorm | NormOfHeads


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, arXiv:1706.03762), or grouped-query (Ainslie et al. 2023,
    arXiv:2305.13245).

    Does not know where keys and values are kept, nor which of them a query may see.

    apart: whether queries can be made without keys and values, and these without them.
    """

    apart = True

    def __init__(self, config: AttentionConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.query = _projection(hidden_size, width, config.query_bias, config.clip)
        self.key = _projection(hidden_size, kv_width, config.key_bias, config.clip)
        self.value = _projection(hidden_size, kv_width, config.value_bias, config.clip)
        self.output = Linear(width, hidden_size, config.output_bias)
        self.merged: ops.Product | None = None
        self.query_norm: Norm | None = None
        self.key_norm: Norm | None = None
        if config.query_key_norm is not None:
            self.query_norm = _norm(config.query_key_norm, config.num_heads, config.head_dim)
            self.key_norm = _norm(config.query_key_norm, config.num_kv_heads, config.head_dim)

    def projections(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the same tokens: see `queries` and `keys_values`."""
        if self.merged is None:
            return self.queries(hidden, rotations), *self.keys_values(hidden, rotations)
        heads, kv_heads, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        joined = self.merged(hidden)
        if self.config.query_key_norm is None:
            # Queries and keys turn by the same angles: one call for both.
            turned = self._rotate(self._heads(joined[:, : (heads + kv_heads) * dim]), rotations)
            query, key = turned[:, :heads], turned[:, heads:]
        else:
            query, key = joined[:, : heads * dim], joined[:, heads * dim : (heads + kv_heads) * dim]
            query = self._rotate(self._normalised(query, self.query_norm), rotations)
            key = self._rotate(self._normalised(key, self.key_norm), rotations)
        return query, key, self._heads(joined[:, (heads + kv_heads) * dim :])

    def pack(self, packer: Packer, projecting: Packer, one_input: bool) -> None:
        """Put the weights into their fastest layout, by `projecting` those of queries, keys and values: together where
        they are all of one input. What lies between them and the output is then of the dtype that it writes."""
        self.output.pack(packer)
        if self.config.clip is not None or not one_input:
            for part in (self.query, self.key, self.value):
                part.pack(projecting)
        elif self.merged is None:
            parts = [self.query, self.key, self.value]
            ends = [*accumulate(part.weight.shape[0] for part in parts)]
            self.merged = projecting(*merged(parts))
            spans = [self.merged.part(*span) for span in zip([0, *ends], ends, strict=False)]
            self.apart = None not in spans
            for part, span in zip(parts, spans, strict=True):
                if span is not None:
                    part.become(span)
            if not self.apart:
                del self.query, self.key, self.value
        for norm in (self.query_norm, self.key_norm):
            if norm is not None:
                norm.to(projecting.writes)

    def queries(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> Tensor:
        """[tokens, hidden] -> [tokens, heads, head_dim], normalised and rotated where the configuration says so."""
        return self._rotate(self._normalised(self.query(hidden), self.query_norm), rotations)

    def keys_values(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> tuple[Tensor, Tensor]:
        """[tokens, hidden] -> two of [tokens, kv_heads, head_dim], the keys treated like the queries."""
        keys = self._rotate(self._normalised(self.key(hidden), self.key_norm), rotations)
        return keys, self._heads(self.value(hidden))

    def join(self, attended: Tensor) -> Tensor:
        """[tokens, heads, head_dim] -> [tokens, hidden]."""
        output: Tensor = self.output(attended.flatten(-2))
        return output

    def _normalised(self, x: Tensor, norm: Norm | None) -> Tensor:
        if norm is None:
            return self._heads(x)
        assert self.config.query_key_norm is not None
        whole = self.config.query_key_norm.over == "all"
        y: Tensor = self._heads(norm(x)) if whole else norm(self._heads(x))
        return y

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1] // self.config.head_dim, self.config.head_dim)

    def _rotate(self, x: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> Tensor:
        if self.config.rope is None:
            return x
        rotation = rotations[self.config.rope]
        return ops.rotate(x, rotation.cos, rotation.sin, self.config.rope.pairing == "interleaved")


def _projection(hidden_size: int, width: int, bias: bool, clip: float | None) -> Linear:
    return Linear(hidden_size, width, bias) if clip is None else ClippedLinear(hidden_size, width, bias, clip)


def _norm(config: QueryKeyNorm, heads: int, head_dim: int) -> Norm | None:
    if config.over == "own_head":
        return NormOfHeads(config.norm, heads, head_dim)
    return make_norm(config.norm, heads * head_dim if config.over == "all" else head_dim)
