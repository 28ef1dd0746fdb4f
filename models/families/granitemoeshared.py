"""Granite 3 with mixtures of experts and a shared expert, which processes every token (Granite Team 2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, paired_neighbours, rotary_settings
from models.families.shared.granite import granite_decoder, granite_gguf_settings, shared_width
from models.families.shared.granite_experts import granite_expert_rules, granite_experts
from models.families.shared.rotary_decoder import rotary_rules
from weights.gguf.metadata import Metadata
from weights.rules import Rule

_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    return granite_decoder(fields, granite_experts(fields))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (*granite_expert_rules(model), *rotary_rules(model, hf, architecture))


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(
        of,
        model_type="granitemoeshared",
        num_local_experts=of.integer("expert_count"),
        num_experts_per_tok=of.integer("expert_used_count"),
        shared_intermediate_size=shared_width(of),
        **granite_gguf_settings(of),
    )


FAMILY = decoder_family(
    "granitemoeshared",
    "GraniteMoeShared",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"granitemoe": gguf_settings}, lambda of: shared_width(of) > 0, paired_neighbours),
)
