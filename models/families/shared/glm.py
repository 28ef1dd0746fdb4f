"""GLM-4: LLaMA with biases of queries, keys and values, and one matrix for gate and values.

Half of each head rotates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from models.config import ModelConfig
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rms_norm,
    rotary_decoder,
    rotary_layer,
    rotary_rules,
)
from weights.rules import Rule, Split

PAD_TOKEN_ID = 151329


def glm_decoder(hf: Mapping[str, Any], norm_slots: Sequence[Literal["input", "output"]]) -> ModelConfig:
    """A decoder. norm_slots: places of a norm in each sublayer."""
    fields = Fields(hf, defaults={"vocab_size": 151552})
    head_dim, norm = head_dim_of(fields, 128), rms_norm(fields, 1.5625e-07)
    rope = rope_config(fields, head_dim, default_share=0.5, pairing="interleaved")
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", 2),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(fields, fields.integer("intermediate_size", 13696)),
        qkv_bias=fields.flag("attention_bias", True),
        norm_slots=norm_slots,
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 40)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 131072))
    return rotary_decoder(fields, layers, norm, max_positions)


def glm_rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    gate_up = [rf"decoder.layers.\1.feed_forward.{name}.weight" for name in ("gate", "up")]
    return (
        Split(r"model\.layers\.(\d+)\.mlp\.gate_up_proj\.weight", gate_up),
        *rotary_rules(model, hf, architecture),
    )
