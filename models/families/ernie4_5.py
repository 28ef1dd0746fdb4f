"""ERNIE 4.5, the dense models (Baidu 2025): LLaMA with biases everywhere or nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.ernie4_5 import ernie4_5_decoder
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, rms_eps, rotary_settings
from models.families.shared.rotary_decoder import gated_feed_forward, rotary_rules
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 103424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    # Null means one head for keys and values per query head; absent means two heads.
    kv_heads = {} if "num_key_value_heads" in hf else {"num_key_value_heads": 2}
    fields = Fields(hf, defaults={**_DEFAULTS, **kv_heads})
    feed_forward = gated_feed_forward(fields, bias=fields.flag("use_bias", False))
    return ernie4_5_decoder(fields, lambda index: feed_forward, fields.raw("head_dim", 128))


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(of, model_type="ernie4_5", use_bias=has_bias(of, "attn_q"), **rms_eps(of))


FAMILY = decoder_family(
    "ernie4_5",
    "Ernie4_5",
    config,
    rotary_rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"ernie4_5": gguf_settings}),
)
