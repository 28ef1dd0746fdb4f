"""Gemma 2 (Gemma Team 2024, arXiv:2408.00118): Gemma with input and output norms in each sublayer.

Every other layer has a sliding window. Attention scores and logits are soft-capped: x becomes cap * tanh(x / cap).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.gemma2_layers import gemma2_decoder
from models.families.shared.gguf import GgufFamily, Settings, query_scalar, rms_eps, rotary_settings
from models.families.shared.rotary_decoder import rotary_rules
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "head_dim": 256,
    "query_pre_attn_scalar": 256.0,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    return gemma2_decoder(
        hf,
        _DEFAULTS,
        score_cap=50.0,
        logit_cap=30.0,
        window=4096,
        activation="gelu_pytorch_tanh",
        norm_slots=("input", "output"),
    )


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(
        of,
        model_type="gemma2",
        sliding_window=of.integer("attention.sliding_window", 4096),
        attn_logit_softcapping=of.number("attn_logit_softcapping", 50.0),
        final_logit_softcapping=of.number("final_logit_softcapping", 30.0),
        query_pre_attn_scalar=query_scalar(of, largest=46),
        **rms_eps(of),
    )


FAMILY = decoder_family(
    "gemma2",
    "Gemma2",
    config,
    rotary_rules,
    refused_dtypes={"float16": "Gemma 2's residual stream can exceed float16; use bfloat16 or float32"},
    answers=False,
    pad_token_id=0,
    gguf=GgufFamily({"gemma2": gguf_settings}),
)
