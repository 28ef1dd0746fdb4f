"""Qwen3 (Yang et al. 2025, arXiv:2505.09388): Qwen2 with norms of queries and keys instead of their biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, rms_eps, rotary_settings
from models.families.shared.qwen3_layers import DEFAULTS, qwen3_decoder
from models.families.shared.rotary_decoder import rotary_rules
from weights.gguf.metadata import Metadata


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    return qwen3_decoder(Fields(hf, defaults=DEFAULTS), window=4096)


def gguf_settings(of: Metadata) -> Settings:
    bias = has_bias(of, "attn_q")
    return rotary_settings(of, model_type="qwen3", use_sliding_window=False, attention_bias=bias, **rms_eps(of))


FAMILY = decoder_family(
    "qwen3",
    "Qwen3",
    config,
    rotary_rules,
    gguf=GgufFamily(dict.fromkeys(("qwen3", "qwen3vl"), gguf_settings)),
)
