"""AFM (Arcee AI 2025): LLaMA whose feed-forward has a squared ReLU and no gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import FeedForwardConfig, ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, paired_neighbours, rms_eps, rotary_settings
from models.families.shared.rotary_decoder import llama_decoder, rotary_rules
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 2560,
    "intermediate_size": 18432,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "hidden_act": "relu2",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    bias, width = fields.flag("attention_bias", False), fields.integer("intermediate_size")
    feed_forward = FeedForwardConfig(width, fields.activation("hidden_act"), bias=fields.flag("mlp_bias", False))
    return llama_decoder(fields, feed_forward, qkv_bias=bias, output_bias=bias)


def gguf_settings(of: Metadata) -> Settings:
    bias, mlp_bias = has_bias(of, "attn_q"), has_bias(of, "ffn_up")
    return rotary_settings(of, model_type="arcee", attention_bias=bias, mlp_bias=mlp_bias, **rms_eps(of))


FAMILY = decoder_family(
    "arcee",
    "Arcee",
    config,
    rotary_rules,
    gguf=GgufFamily({"arcee": gguf_settings}, rules=paired_neighbours),
)
