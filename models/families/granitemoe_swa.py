"""Granite with sliding windows, attention sinks and mixtures of experts (Granite Team 2026)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.granite_experts import granite_expert_rules, granite_experts
from models.families.shared.granite_windows import SINK_RULE, windowed_granite_decoder
from models.families.shared.rotary_decoder import rotary_rules
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
    return windowed_granite_decoder(
        fields,
        granite_experts(fields),
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads")),
        window=128,
        default_tied=False,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (SINK_RULE, *granite_expert_rules(model), *rotary_rules(model, hf, architecture))


FAMILY = decoder_family(
    "granitemoe_swa",
    "GraniteMoeSWA",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
)
