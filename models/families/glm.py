"""GLM-4 of 2024 (GLM Team 2024, arXiv:2406.12793), with the tensor names of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import (
    GgufFamily,
    Settings,
    fused_gate_rules,
    has_bias,
    partly_rotary_settings,
    rms_eps,
)
from models.families.shared.glm import PAD_TOKEN_ID, glm_decoder, glm_rules
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1.5625e-07,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    return glm_decoder(Fields(hf, defaults=_DEFAULTS), ("input",))


def gguf_settings(of: Metadata) -> Settings:
    bias = has_bias(of, "attn_q")
    return partly_rotary_settings(of, model_type="glm", attention_bias=bias, **rms_eps(of))


FAMILY = decoder_family(
    "glm",
    "Glm",
    config,
    glm_rules,
    answers=False,
    pad_token_id=PAD_TOKEN_ID,
    gguf=GgufFamily({"chatglm": gguf_settings}, rules=fused_gate_rules),
)
