"""GLM-4-0414 and GLM-Z1 (GLM Team 2025): GLM-4 with additional norms of the sublayer outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from weights.rules import Rename, Rule

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
    return glm_decoder(Fields(hf, defaults=_DEFAULTS), ("input", "output"))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(layer + r"post_self_attn_layernorm\.weight", ours + "attention_norms.output.weight"),
        Rename(layer + r"post_attention_layernorm\.weight", ours + "feed_forward_norms.input.weight"),
        Rename(layer + r"post_mlp_layernorm\.weight", ours + "feed_forward_norms.output.weight"),
        *glm_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    return partly_rotary_settings(of, model_type="glm4", attention_bias=has_bias(of, "attn_q"), **rms_eps(of))


FAMILY = decoder_family(
    "glm4",
    "Glm4",
    config,
    rules,
    answers=False,
    pad_token_id=PAD_TOKEN_ID,
    gguf=GgufFamily({"glm4": gguf_settings}, rules=fused_gate_rules),
)
