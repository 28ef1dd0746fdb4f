"""Jais 2 (Inception 2025): LLaMA with layer norms, biases in all linear layers, and a squared ReLU without gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import FeedForwardConfig, ModelConfig, NormConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, layer_eps, rotary_settings
from models.families.shared.rotary_decoder import llama_decoder, rotary_rules
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 150272,
    "hidden_size": 3328,
    "intermediate_size": 26624,
    "num_hidden_layers": 32,
    "num_attention_heads": 26,
    "max_position_embeddings": 8192,
    "hidden_act": "relu2",
    "layer_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    bias = fields.flag("attention_bias", True)
    feed_forward = FeedForwardConfig(
        fields.integer("intermediate_size"), fields.activation("hidden_act"), bias=fields.flag("mlp_bias", True)
    )
    norm = NormConfig("layer", fields.number("layer_norm_eps"))
    return llama_decoder(fields, feed_forward, norm=norm, qkv_bias=bias, output_bias=bias)


def gguf_settings(of: Metadata) -> Settings:
    bias, mlp_bias = has_bias(of, "attn_q"), has_bias(of, "ffn_up")
    eps = layer_eps(of)
    return rotary_settings(of, model_type="jais2", attention_bias=bias, mlp_bias=mlp_bias, layer_norm_eps=eps)


FAMILY = decoder_family(
    "jais2",
    "Jais2",
    config,
    rotary_rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"jais2": gguf_settings}),
)
