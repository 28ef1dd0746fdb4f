"""OLMoE (Muennighoff et al. 2024, arXiv:2409.02060): mixtures of experts, and norms of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, QueryKeyNorm, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.mixture_of_experts import expert_rules
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rms_norm,
    rotary_decoder,
    rotary_layer,
    rotary_rules,
)
from weights.rules import Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults={"vocab_size": 50304, "hidden_size": 2048, "num_attention_heads": 16})
    # Not supported, because this family clips after the norms of queries and keys. No published checkpoint sets it.
    fields.refuse_unless("clip_qkv")
    head_dim, norm, bias = head_dim_of(fields), rms_norm(fields, 1e-5), fields.flag("attention_bias", False)
    rope = rope_config(fields, head_dim)
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads")),
        rope=rope,
        norm=norm,
        feed_forward=MixtureOfExpertsConfig(
            gated_feed_forward(fields, fields.integer("intermediate_size", 2048)),
            num_experts=fields.integer("num_experts", 64),
            experts_per_token=fields.integer("num_experts_per_tok", 8),
            router=RouterConfig(normalized=fields.flag("norm_topk_prob", False)),
        ),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm(norm, "all"),
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 16)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 4096))
    return rotary_decoder(fields, layers, norm, max_positions)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        *expert_rules(model, "mlp", gate="gate_proj", up="up_proj", down="down_proj"),
        *rotary_rules(model, hf, architecture),
    )


FAMILY = decoder_family(
    "olmoe",
    "Olmoe",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
)
