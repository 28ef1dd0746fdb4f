"""Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv:2407.10671): LLaMA with biases of queries, keys and values.

Some layers may have a sliding window, if `use_sliding_window` is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, rms_eps, rotary_settings
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    llama_decoder,
    rotary_rules,
)
from models.families.shared.windows import upper_windows
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        num_kv_heads=fields.integer("num_key_value_heads"),
        windows=upper_windows(fields, absent=4096),
        qkv_bias=True,
    )


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(of, model_type="qwen2", use_sliding_window=False, **rms_eps(of))


FAMILY = decoder_family(
    "qwen2",
    "Qwen2",
    config,
    rotary_rules,
    gguf=GgufFamily(dict.fromkeys(("qwen2", "qwen2vl"), gguf_settings)),
)
