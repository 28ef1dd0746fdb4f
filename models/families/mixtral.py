"""Mixtral (Jiang et al. 2024, arXiv:2401.04088): Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, NormConfig
from models.families.decoder_heads import with_heads
from models.families.experts import expert_rules, gated_experts, with_experts
from models.families.family import Family
from models.families.fields import Fields
from models.families.rotary_decoder import rotary_decoder
from models.families.rotary_decoder import rules as llama_rules
from weights.rules import Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults={"vocab_size": 32000, "rope_theta": 1000000.0})
    fields.refuse_unless("layer_types")
    layers = fields.integer("num_hidden_layers", 32)
    expert = gated_experts(fields, fields.integer("intermediate_size", 14336))
    model = rotary_decoder(
        fields,
        windows=(fields.optional_integer("sliding_window"),) * layers,
        num_kv_heads=fields.integer("num_key_value_heads", 8),
        max_positions=fields.integer("max_position_embeddings", 131072),
        norm=NormConfig("rms", fields.number("rms_norm_eps", 1e-5), bias=False),
        feed_forward=expert,
    )
    mixture = MixtureOfExpertsConfig(
        expert,
        num_experts=fields.integer("num_local_experts", 8),
        experts_per_token=fields.integer("num_experts_per_tok", 2),
        normalized=True,
    )
    return with_experts(model, mixture, range(layers))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        *expert_rules(model, r"(?:block_sparse_moe|mlp)", gate="w1", up="w3", down="w2"),
        *llama_rules(model, hf, architecture),
    )


FAMILY = with_heads(
    "Mixtral",
    Family(
        name="mixtral",
        model_types=("mixtral",),
        architectures={"MixtralForCausalLM": ("generate",)},
        config=config,
        rules=rules,
    ),
)
