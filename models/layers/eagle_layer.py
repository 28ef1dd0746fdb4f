"""The layer of an EAGLE-3 head: its attention reads token vectors and hidden states.

Source: Li et al. 2025, arXiv:2503.01840, section 3, and the published code of its authors.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from models.backends.linear_weights import LinearPacker, LinearWeight
from models.config import AttentionConfig, RopeConfig
from models.config.draft_head import EagleHeadConfig
from models.layers.attention import Attention
from models.layers.layer import Layer
from models.layers.linear import Linear, concatenate
from models.layers.positions import Rotation
from models.steps.step_inputs.base import StepInputs


class InputProjections(nn.Module):
    """Projections to queries, keys and values from one of two inputs: token vectors or hidden states.

    merged: the three weights as one product, after `pack`; None before.
    """

    def __init__(self, config: AttentionConfig, hidden_size: int, bias: bool) -> None:
        super().__init__()
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.query = Linear(hidden_size, width, bias and config.query_bias)
        self.key = Linear(hidden_size, kv_width, bias and config.key_bias)
        self.value = Linear(hidden_size, kv_width, bias and config.value_bias)
        self.merged: LinearWeight | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Compute queries, keys and values, concatenated.

        x: [tokens, hidden], token vectors or hidden states. Returns [tokens, (heads + 2 * kv_heads) * head_dim].
        """
        if self.merged is not None:
            return self.merged.multiply(x)
        # Without kernels, weights stay dense and are merged here.
        merged = concatenate([self.query, self.key, self.value])
        assert merged is not None
        weight, bias = merged
        assert isinstance(weight, Tensor), "a quantised matrix must be packed first"
        return nn.functional.linear(x, weight, bias)

    def pack(self, packer: LinearPacker) -> None:
        """Replace the weights by one packed weight."""
        merged = concatenate([self.query, self.key, self.value])
        assert merged is not None, "the matrices of a draft head are dequantised"
        self.merged = packer(*merged)
        del self.query, self.key, self.value


class EagleAttention(Attention):
    """Attention of an EAGLE head: it projects token vectors and hidden states separately, and adds both results.

    This equals one projection of the concatenated inputs. The layer computes the sum with `project`; the step then
    divides it into queries, keys and values.
    """

    separable = False

    def _make_projections(self, config: AttentionConfig, hidden_size: int) -> None:
        self.of_tokens = InputProjections(config, hidden_size, bias=True)
        self.of_states = InputProjections(config, hidden_size, bias=False)
        self.output = Linear(config.num_heads * config.head_dim, hidden_size, config.output_bias)

    def project(self, vectors: Tensor, states: Tensor) -> Tensor:
        """Compute queries, keys and values of each token, concatenated.

        vectors, states: [tokens, hidden], normed token vectors and normed hidden states.
        Returns [tokens, (heads + 2 * kv_heads) * head_dim].
        """
        projected: Tensor = self.of_states(states)
        projected = projected + self.of_tokens(vectors)
        return projected

    def queries_keys_values(
        self, hidden: Tensor, rotations: Mapping[RopeConfig, Rotation]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Divide the result of `project` into queries, keys and values, and rotate queries and keys.

        hidden: [tokens, (heads + 2 * kv_heads) * head_dim]. Returns queries, [tokens, heads, head_dim], then keys and
            values, [tokens, kv_heads, head_dim].
        """
        heads, kv_heads, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        rotated = self._rotate(self._split_heads(hidden[:, : (heads + kv_heads) * dim]), rotations)
        values = self._split_heads(hidden[:, (heads + kv_heads) * dim :])
        return rotated[:, :heads], rotated[:, heads:], values

    def pack(self, packer: LinearPacker, projection_packer: LinearPacker, one_input: bool) -> None:
        self.output.pack(packer)
        if self.of_tokens.merged is None:
            self.of_tokens.pack(projection_packer)
            self.of_states.pack(projection_packer)


class EagleLayer(Layer):
    """Decoder layer whose attention reads `StepInputs.token_vectors` beside the hidden states."""

    def __init__(self, config: EagleHeadConfig, index: int) -> None:
        super().__init__(config.layer, config.hidden_size, index)
        assert config.layer.attention is not None
        self.attention = EagleAttention(config.layer.attention, config.hidden_size)
        self.normed_residual = config.normed_residual

    def forward(self, x: Tensor, step: StepInputs) -> Tensor:
        assert isinstance(self.attention, EagleAttention) and step.token_vectors is not None
        states = self.attention_norms.norm_input(x)
        projected = self.attention.project(step.token_vectors, states)
        x = step.select_rows(self.index, states if self.normed_residual else x)
        result = step.self_attention(self.index, self.attention, projected)
        x, hidden = self.attention_norms.add_residual_and_norm(x, result, self.feed_forward_norms)
        return self.feed_forward_norms.add_residual(x, self._run_feed_forward(hidden, step))
