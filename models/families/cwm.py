"""Code World Model (Copet et al. 2025, arXiv:2510.02387): LLaMA 3 with sliding windows in three of four layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    llama_decoder,
    rotary_rules,
)
from models.families.shared.windows import windows_by_type

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
_DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 6144,
    "intermediate_size": 21504,
    "num_hidden_layers": 64,
    "num_attention_heads": 48,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    scaled = hf.get("rope_scaling") or hf.get("rope_parameters")
    fields = Fields(hf, defaults=_DEFAULTS if scaled else {**_DEFAULTS, "rope_parameters": _LLAMA3})
    fields.refuse_unless("attention_bias", False)
    feed_forward = gated_feed_forward(fields, bias=fields.flag("mlp_bias", False))
    # Null means one head of keys and values per query head; absent means eight heads.
    heads = fields.optional_integer("num_key_value_heads", absent=8) or fields.integer("num_attention_heads")
    width = fields.optional_integer("sliding_window", absent=8192)
    return llama_decoder(
        fields,
        feed_forward,
        head_dim=head_dim_of(fields, fields.raw("head_dim", 128)),
        num_kv_heads=heads,
        windows=windows_by_type(fields, width, lambda index: index % 4 == 0),
    )


FAMILY = decoder_family(
    "cwm",
    "Cwm",
    config,
    rotary_rules,
    texts=False,
    tokens=False,
    answers=False,
)
