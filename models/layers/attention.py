"""The projections of attention: to queries, keys and values, and from the attention's result to the output.

The attention itself is computed between these projections, by `models.steps.step_inputs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from torch import Tensor, nn

from models.backends.choice import backend
from models.backends.linear_weights import LinearPacker, LinearWeight
from models.backends.operands import CacheSlots
from models.config import AttentionConfig, QueryKeyNorm, RopeConfig
from models.layers.linear import Linear, concatenate, parameter
from models.layers.norms import Norm, PerHeadNorm, make_norm
from models.layers.positions import Rotation

HeadNorm = Norm | PerHeadNorm


class Attention(nn.Module):
    """Projections of multi-head or grouped-query attention.

    The caller computes the attention itself and stores keys and values.

    separable: whether queries can be computed without keys and values, and keys and values without queries.
    merged: weight of the query, key and value projections as one product, after `pack`; or None. It stays None in
        subclasses that pack these projections one by one.
    sinks: [heads], model dtype, score of the sink of each head; or None.
    unadaptable: names of the child modules that adapters cannot change, because they are not applied to the tokens of a
        step in their order.
    Source: Vaswani et al. 2017, arXiv:1706.03762; grouped queries: Ainslie et al. 2023, arXiv:2305.13245.
    """

    separable = True
    unadaptable: tuple[str, ...] = ()

    def __init__(self, config: AttentionConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.gate: Linear | None = None
        self.merged: LinearWeight | None = None
        self.query_norm: HeadNorm | None = None
        self.key_norm: HeadNorm | None = None
        self.value_norm: HeadNorm | None = None
        self.sinks = parameter(config.num_heads) if config.sinks else None
        self._make_projections(config, hidden_size)

    def _make_projections(self, config: AttentionConfig, hidden_size: int) -> None:
        """Create the projections and the norms.

        A layer that reads the keys and values of another layer has no key and value projections.
        """
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        norm = config.query_key_norm
        self.query = Linear(hidden_size, width, config.query_bias)
        if norm is not None:
            self.query_norm = _make_head_norm(norm, config.num_heads, config.head_dim)
        if config.key_value_layer is None:
            source_width = config.key_value_width or hidden_size
            self.key = Linear(source_width, kv_width, config.key_bias)
            if not config.values_of_keys:
                self.value = Linear(source_width, kv_width, config.value_bias)
            self.value_norm = make_norm(config.value_norm, config.head_dim)
            if norm is not None:
                self.key_norm = _make_head_norm(norm, config.num_kv_heads, config.head_dim)
        self.output = Linear(width, hidden_size, config.output_bias)
        self.gate = Linear(hidden_size, width, config.query_bias) if config.output_gate else None

    @property
    def sink_scores(self) -> Tensor | None:
        """Score of the attention sink of each head: [heads], float32; None without sinks."""
        return None if self.sinks is None else self.sinks.float()

    def queries_keys_values(
        self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project queries, keys and values of the same tokens, then normalise and rotate them as configured.

        hidden: [tokens, hidden], model dtype.
        Returns queries, [tokens, heads, head_dim], then keys and values, [tokens, kv_heads, head_dim].
        """
        if self.merged is None:
            return self.queries(hidden, rotations), *self.keys_values(hidden, rotations)
        heads, kv_heads, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        product = self._clip(self.merged.multiply(hidden))
        if self.config.query_key_norm is None:
            # Queries and keys rotate by the same angles, so one call rotates both.
            rotated = self._rotate(self._split_heads(product[:, : (heads + kv_heads) * dim]), rotations)
            query, key = rotated[:, :heads], rotated[:, heads:]
        else:
            query, key = product[:, : heads * dim], product[:, heads * dim : (heads + kv_heads) * dim]
            query = self._normalize_and_rotate(query, self.query_norm, rotations)
            key = self._normalize_and_rotate(key, self.key_norm, rotations)
        first = heads if self.config.values_of_keys else heads + kv_heads
        return query, key, self._normalize_values(product[:, first * dim : (first + kv_heads) * dim])

    @property
    def stores_keys(self) -> bool:
        """Whether `queries_and_store` supports this attention: one merged projection, and only a rotation after it."""
        config = self.config
        return (
            self.merged is not None
            and config.rope is not None
            and config.query_key_norm is None
            and self.value_norm is None
            and not config.values_of_keys
        )

    def queries_and_store(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation], store: CacheSlots) -> Tensor:
        """Compute queries, keys and values in one pass, store keys and values in a cache, and return the queries.

        May be called only if `stores_keys` is true. The keys, values and queries equal the results of
        `queries_keys_values`.

        hidden: [tokens, hidden], model dtype. store: the cache, and the slot of each token.
        Returns [tokens, heads, head_dim].
        """
        rope = self.config.rope
        assert self.merged is not None and rope is not None
        heads = self._split_heads(self._clip(self.merged.multiply(hidden)))
        both = self.config.num_heads + self.config.num_kv_heads
        queries_keys, values = heads[:, :both], heads[:, both:]
        chosen = backend(queries_keys)
        return chosen.rotate_and_store(queries_keys, values, rotations[rope], rope.pairing == "interleaved", store)

    def pack(self, packer: LinearPacker, projection_packer: LinearPacker, one_input: bool) -> None:
        """Pack all weights of the projections, which replaces their dense or quantised weights.

        packer: packs the output projection.
        projection_packer: packs the query, key and value projections, and the gate. Its `out_dtype` becomes the
            dtype of queries, keys and values.
        one_input: whether the three projections have the same input. They are then packed as one product.
        """
        self.output.pack(packer)
        if self.gate is not None:
            self.gate.pack(projection_packer)
        if self.merged is not None:
            return
        linears = [self.query]
        if self.config.key_value_layer is None:
            linears += [self.key] if self.config.values_of_keys else [self.key, self.value]
        merged = concatenate(linears) if one_input and len(linears) > 1 and self.query.packed is None else None
        if merged is None:
            for linear in linears:
                linear.pack(projection_packer)
        else:
            ends = [*accumulate(linear.weight.shape[0] for linear in linears)]
            self.merged = projection_packer(*merged)
            slices = [self.merged.slice(*span) for span in zip([0, *ends], ends, strict=False)]
            self.separable = None not in slices
            for linear, packed in zip(linears, slices, strict=True):
                if packed is not None:
                    linear.use_packed(packed)
            if not self.separable:
                del self.query, self.key
                if not self.config.values_of_keys:
                    del self.value
        for norm in (self.query_norm, self.key_norm):
            if norm is not None:
                norm.to(projection_packer.out_dtype)

    def queries(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> Tensor:
        """Project queries, then normalise and rotate them as configured.

        hidden: [tokens, hidden], model dtype.
        Returns [tokens, heads, head_dim].
        """
        return self._normalize_and_rotate(self._clip(self.query(hidden)), self.query_norm, rotations)

    def keys_values(self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> tuple[Tensor, Tensor]:
        """Project keys and values, then normalise and rotate the keys as configured.

        hidden: [tokens, hidden], model dtype.
        Returns two tensors [tokens, kv_heads, head_dim].
        """
        key = self._clip(self.key(hidden))
        value = key if self.config.values_of_keys else self._clip(self.value(hidden))
        return self._normalize_and_rotate(key, self.key_norm, rotations), self._normalize_values(value)

    def source_keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Project keys and values of the encoder output. source: [tokens, source size], model dtype.

        Returns two tensors [tokens, kv_heads, head_dim].
        """
        return self.keys_values(source, {})

    def project_output(self, attended: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Apply the gate, if there is one, and then the output projection.

        attended: [tokens, heads, head_dim].
        hidden: [tokens, hidden], model dtype, from which the gate is computed; not read without a gate.
        Returns [tokens, hidden].
        """
        attended = attended.flatten(-2)
        if self.gate is not None:
            assert hidden is not None
            attended = self.gate(hidden, "sigmoid", multiplier=attended)
        output: Tensor = self.output(attended)
        return output if self.config.output_scale == 1.0 else output * self.config.output_scale

    def _clip(self, x: Tensor) -> Tensor:
        """Limit the results of projections to the range from `-clip` to `clip`, if configured (MosaicML 2023)."""
        clip = self.config.clip
        return x if clip is None else x.clamp(-clip, clip)

    def _normalize_and_rotate(
        self, x: Tensor, norm: HeadNorm | None, rotations: Mapping[RopeConfig, Rotation]
    ) -> Tensor:
        """Normalise and rotate queries or keys, in the configured order.

        x: [tokens, heads * head_dim]. Returns [tokens, heads, head_dim].
        """
        config = self.config.query_key_norm
        if config is None or norm is None or not config.after_rotation:
            return self._rotate(self._normalize(x, norm), rotations)
        y: Tensor = norm(self._rotate(self._split_heads(x), rotations))
        return y

    def _normalize(self, x: Tensor, norm: HeadNorm | None) -> Tensor:
        """Apply a query or key norm: [tokens, heads * head_dim] -> [tokens, heads, head_dim]."""
        if norm is None:
            return self._split_heads(x)
        assert self.config.query_key_norm is not None
        before_split = self.config.query_key_norm.over == "all"
        y: Tensor = self._split_heads(norm(x)) if before_split else norm(self._split_heads(x))
        return y

    def _normalize_values(self, x: Tensor) -> Tensor:
        """Apply the value norm: [tokens, kv_heads * head_dim] -> [tokens, kv_heads, head_dim]."""
        values = self._split_heads(x)
        return values if self.value_norm is None else self.value_norm(values)

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1] // self.config.head_dim, self.config.head_dim)

    def _rotate(self, x: Tensor, rotations: Mapping[RopeConfig, Rotation]) -> Tensor:
        if self.config.rope is None:
            return x
        return backend(x).rotate(x, rotations[self.config.rope], self.config.rope.pairing == "interleaved")


def _make_head_norm(config: QueryKeyNorm, heads: int, head_dim: int) -> HeadNorm | None:
    if config.over == "own_head":
        return PerHeadNorm(config.norm, heads, head_dim)
    return make_norm(config.norm, heads * head_dim if config.over == "all" else head_dim)
