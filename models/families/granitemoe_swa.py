"""Granite with sliding windows, attention sinks and mixtures of experts (Granite Team 2026)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, num_experts, paired_neighbours, rotary_settings
from models.families.shared.granite import shared_width
from models.families.shared.granite_experts import granite_expert_rules, granite_experts
from models.families.shared.granite_windows import (
    SINK_RULE,
    windowed_granite_decoder,
    windowed_granite_gguf_settings,
)
from models.families.shared.rotary_decoder import rotary_rules
from weights.gguf.metadata import Metadata
from weights.rules import Rule, Split

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


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(
        of,
        model_type="granitemoe_swa",
        num_local_experts=num_experts(of),
        num_experts_per_tok=of.integer("expert_used_count"),
        shared_intermediate_size=shared_width(of),
        **windowed_granite_gguf_settings(of),
    )


def gguf_rules(model: ModelConfig) -> Sequence[Rule]:
    """Rules for the queries and keys, and for the shared expert, whose gate and up matrices are one tensor."""
    names = [rf"decoder.layers.\1.feed_forward.shared.{part}.weight" for part in ("gate", "up")]
    return (*paired_neighbours(model), Split(r"blk\.(\d+)\.ffn_up_shexp\.weight", names))


FAMILY = decoder_family(
    "granitemoe_swa",
    "GraniteMoeSWA",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"granite_swa": gguf_settings}, lambda of: num_experts(of) > 0, gguf_rules),
)
