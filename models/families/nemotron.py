"""Nemotron and Minitron (Parmar et al. 2024, arXiv:2402.16819): layer norms and squared ReLU.

Half of each head rotates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, ModelConfig, NormConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import head_dim_of, rotary_decoder, rotary_layer, rotary_rules
from weights.rules import Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults={"vocab_size": 256000, "hidden_size": 6144, "num_attention_heads": 48})
    head_dim, norm = head_dim_of(fields), NormConfig("layer", fields.number("norm_eps", 1e-5))
    rope, bias = rope_config(fields, head_dim, default_share=0.5), fields.flag("attention_bias", False)
    feed_forward = FeedForwardConfig(
        fields.integer("intermediate_size", 24576),
        fields.activation("hidden_act", "relu2"),
        bias=fields.flag("mlp_bias", False),
    )
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads")),
        rope=rope,
        norm=norm,
        feed_forward=feed_forward,
        qkv_bias=bias,
        output_bias=bias,
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 32)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 4096))
    return rotary_decoder(fields, layers, norm, max_positions)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        _from_one(layer + r"input_layernorm\.weight", ours + "attention_norms.input.weight"),
        _from_one(layer + r"post_attention_layernorm\.weight", ours + "feed_forward_norms.input.weight"),
        _from_one(r"model\.norm\.weight", "decoder.final_norm.weight"),
        *rotary_rules(model, hf, architecture),
    )


def _from_one(pattern: str, name: str) -> Rule:
    """Rule for the weight of a norm, which multiplies by one plus the stored number.

    The sum is exact: it is rounded to the dtype of the model once, as in the published code.
    """
    return Rule(pattern, (name,), (_plus_one,))


def _plus_one(tensors: Sequence[Any]) -> Sequence[Any]:
    return [tensor.float() + 1 for tensor in tensors]


FAMILY = decoder_family(
    "nemotron",
    "Nemotron",
    config,
    rules,
)
