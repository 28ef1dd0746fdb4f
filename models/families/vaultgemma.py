"""VaultGemma (VaultGemma Team 2025, arXiv:2510.15001): Gemma 2 without norms after its sublayers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.gemma2_layers import gemma2_decoder
from models.families.shared.rotary_decoder import rotary_rules

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
        norm_slots=("input",),
    )


FAMILY = decoder_family(
    "vaultgemma",
    "VaultGemma",
    config,
    rotary_rules,
    refused_dtypes={"float16": "the residual stream of Gemma 2 can exceed float16; use bfloat16 or float32"},
    texts=False,
    tokens=False,
    answers=False,
)
