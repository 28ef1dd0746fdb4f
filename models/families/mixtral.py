"""Mixtral (Jiang et al. 2024, arXiv:2401.04088): Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, RouterConfig
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
    fields = Fields(hf, defaults={"vocab_size": 32000, "rope_theta": 1000000.0})
    fields.refuse_unless("layer_types")
    head_dim, norm = head_dim_of(fields), rms_norm(fields, 1e-5)
    rope = rope_config(fields, head_dim)
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", 8),
        rope=rope,
        norm=norm,
        feed_forward=MixtureOfExpertsConfig(
            gated_feed_forward(fields, fields.integer("intermediate_size", 14336)),
            num_experts=fields.integer("num_local_experts", 8),
            experts_per_token=fields.integer("num_experts_per_tok", 2),
            router=RouterConfig(normalized=True),
        ),
        window=fields.optional_integer("sliding_window"),
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 32)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 131072))
    return rotary_decoder(fields, layers, norm, max_positions)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        *expert_rules(model, r"(?:block_sparse_moe|mlp)", gate="w1", up="w3", down="w2"),
        *rotary_rules(model, hf, architecture),
    )


FAMILY = decoder_family(
    "mixtral",
    "Mixtral",
    config,
    rules,
)
