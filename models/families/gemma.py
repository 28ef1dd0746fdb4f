"""Gemma (Gemma Team 2024, arXiv:2403.08295): LLaMA with scaled embeddings and a feed-forward gated by GELU.

Its norms multiply by 1 plus their weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, rms_eps, rotary_settings
from models.families.shared.rotary_decoder import gated_feed_forward, llama_decoder, rms_norm, rotary_rules
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 8192,
    "head_dim": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    # Files of the first release have `gelu` here, but the models were trained with its tanh approximation.
    gate = "gelu_pytorch_tanh" if hf.get("hidden_act") in (None, "gelu") else hf["hidden_act"]
    fields = Fields({**hf, "hidden_act": gate}, defaults=_DEFAULTS)
    fields.refuse_unless("hidden_activation", gate)
    fields.refuse_unless("use_bidirectional_attention", False)
    bias = fields.flag("attention_bias", False)
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        norm=rms_norm(fields, "rms_from_one"),
        qkv_bias=bias,
        output_bias=bias,
        default_tied=True,
        embedding_scale=fields.integer("hidden_size") ** 0.5,
    )


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(of, model_type="gemma", **rms_eps(of))


FAMILY = decoder_family(
    "gemma",
    "Gemma",
    config,
    rotary_rules,
    answers=False,
    pad_token_id=0,
    gguf=GgufFamily({"gemma": gguf_settings}),
)
