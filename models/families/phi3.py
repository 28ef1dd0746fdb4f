"""Phi-3 and Phi-4 (Abdin et al. 2024, arXiv:2404.14219): LLaMA with fused projections and optional windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ConfigError, ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.published_code import PublishedCode
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

_CODE = PublishedCode("microsoft", "phi3", "Phi3")


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    # Phi-3 has a default for this setting, which takes precedence over the same setting inside `rope_scaling`.
    fields = Fields(hf, published_code=_CODE, defaults={"original_max_position_embeddings": 4096})
    older = hf.get("rope_scaling") or hf.get("rope_parameters")
    if isinstance(older, dict) and older.get("type", older.get("rope_type")) in ("yarn", "dynamic"):
        raise ConfigError("'rope_scaling': types 'yarn' and 'dynamic' are not supported for Phi-3, only 'longrope'")
    head_dim, norm = head_dim_of(fields), rms_norm(fields, 1e-5)
    # The published code discards the cache once a text outgrows the length of the short factors.
    rope = rope_config(fields, head_dim, default_share=1.0, restarts=True)
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads", 32)),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(fields, fields.integer("intermediate_size")),
        window=fields.optional_integer("sliding_window"),
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 32)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 4096))
    return rotary_decoder(fields, layers, norm, max_positions)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    attention, ours = model.decoder.first_attention, r"decoder.layers.\1."
    width, kv_width = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    return (
        Split(
            r"model\.layers\.(\d+)\.self_attn\.qkv_proj\.weight",
            [f"{ours}attention.{name}.weight" for name in ("query", "key", "value")],
            sizes=(width, kv_width, kv_width),
        ),
        Split(
            r"model\.layers\.(\d+)\.mlp\.gate_up_proj\.weight",
            [f"{ours}feed_forward.{name}.weight" for name in ("gate", "up")],
        ),
        *rotary_rules(model, hf, architecture),
    )


FAMILY = decoder_family(
    "phi3",
    "Phi3",
    config,
    rules,
    answers=False,
    pad_token_id=32000,
)
