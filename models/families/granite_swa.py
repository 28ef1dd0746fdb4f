"""Granite with sliding windows and attention sinks (Granite Team 2026)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, num_experts, paired_neighbours, rotary_settings
from models.families.shared.granite_windows import (
    SINK_RULE,
    windowed_granite_decoder,
    windowed_granite_gguf_settings,
)
from models.families.shared.rotary_decoder import gated_feed_forward, rotary_rules
from weights.gguf.metadata import Metadata
from weights.rules import Rule

_DEFAULTS = {
    "vocab_size": 100352,
    "hidden_size": 2560,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 20,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    return windowed_granite_decoder(
        fields,
        gated_feed_forward(fields, bias=fields.flag("mlp_bias", False)),
        # Null means one head of keys and values per query head; absent means four heads.
        num_kv_heads=fields.optional_integer("num_key_value_heads", absent=4) or fields.integer("num_attention_heads"),
        window=128,
        default_tied=True,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (SINK_RULE, *rotary_rules(model, hf, architecture))


def gguf_settings(of: Metadata) -> Settings:
    bias = has_bias(of, "ffn_up")
    return rotary_settings(of, model_type="granite_swa", mlp_bias=bias, **windowed_granite_gguf_settings(of))


FAMILY = decoder_family(
    "granite_swa",
    "GraniteSWA",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"granite_swa": gguf_settings}, lambda of: not num_experts(of), paired_neighbours),
)
