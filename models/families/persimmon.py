"""Persimmon (Adept 2023): pre-norm decoder with normed queries and keys, and squared ReLU in the feed-forward.

Half of each head rotates. One tensor holds queries, keys and values, head by head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, ModelConfig, NormConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.language_model import token_rules
from models.families.shared.megatron_layers import megatron_layer_rules
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import rotary_decoder, rotary_layer
from weights.rules import Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults={"vocab_size": 262144, "hidden_size": 4096, "num_attention_heads": 64})
    fields.refuse_unless("is_causal", True)
    heads = fields.integer("num_attention_heads")
    head_dim = head_width(fields.integer("hidden_size"), heads)
    norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-5))
    rope = rope_config(fields, head_dim, default_share=0.5)
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=heads,
        rope=rope,
        norm=norm,
        feed_forward=FeedForwardConfig(
            fields.integer("intermediate_size", 16384), fields.activation("hidden_act", "relu2")
        ),
        qkv_bias=True,
        output_bias=True,
        query_key_norm=QueryKeyNorm(norm) if fields.flag("qk_layernorm", True) else None,
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 36)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 16384))
    return rotary_decoder(fields, layers, norm, max_positions)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        *token_rules(model, r"model\.embed_tokens"),
        *megatron_layer_rules(layer, "self_attn", model.decoder.first_attention),
        Rename(layer + r"self_attn\.q_layernorm\.(weight|bias)", ours + r"attention.query_norm.\2"),
        Rename(layer + r"self_attn\.k_layernorm\.(weight|bias)", ours + r"attention.key_norm.\2"),
        Rename(r"model\.final_layernorm\.(weight|bias)", r"decoder.final_norm.\1"),
    )


FAMILY = decoder_family(
    "persimmon",
    "Persimmon",
    config,
    rules,
    answers=False,
)
