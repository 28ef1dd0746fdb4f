"""Qwen3.5 (Qwen Team 2026): Qwen3-Next with separate input projections, and dense feed-forwards.

Multimodal checkpoints are served without their vision part. Their rotary positions have three axes (time, height,
width). All three have the same value for text, so ordinary rotary positions compute the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gated_delta_decoder import (
    gated_delta_decoder,
    gated_delta_gguf,
    gated_delta_rules,
    separate_input_rules,
)
from models.families.shared.prediction_head import named_mtp
from models.families.shared.rename_rules import renamed
from models.families.shared.rotary_decoder import gated_feed_forward
from models.families.shared.text_part import text_settings
from weights.rules import Drop, Rule

_MULTIMODAL = "Qwen3_5ForConditionalGeneration"
_DEFAULTS = {
    "vocab_size": 248320,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(text_settings(hf) if architecture == _MULTIMODAL else hf, defaults=_DEFAULTS)
    feed_forward = gated_feed_forward(fields)
    return gated_delta_decoder(fields, [feed_forward] * fields.integer("num_hidden_layers"))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    text = (*separate_input_rules(model), *gated_delta_rules(model, hf, architecture))
    if architecture != _MULTIMODAL:
        return text
    return (*renamed(text, r"model\.", r"model\.language_model\."), Drop(r"model\.visual\..*"))


FAMILY = decoder_family(
    "qwen3_5",
    "Qwen3_5Text",
    config,
    rules,
    model_types=("qwen3_5_text", "qwen3_5"),
    generating=("Qwen3_5ForCausalLM", _MULTIMODAL),
    tokens=False,
    answers=False,
    gguf=gated_delta_gguf("qwen35", lambda of: {"model_type": "qwen3_5_text"}, reordered=True),
    prediction_head=named_mtp(rules),
)
