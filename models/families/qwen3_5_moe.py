"""Qwen3.5-MoE (Qwen Team 2026): Qwen3.5 with mixtures of experts.

Multimodal checkpoints are served without their vision part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gated_delta_decoder import (
    gated_delta_decoder,
    gated_delta_gguf,
    gated_delta_rules,
    separate_input_rules,
)
from models.families.shared.gguf import Settings, qwen_experts
from models.families.shared.mixture_of_experts import expert_rules
from models.families.shared.prediction_head import named_mtp
from models.families.shared.rename_rules import renamed
from models.families.shared.rotary_decoder import gated_feed_forward
from models.families.shared.text_part import text_settings
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rule

_MULTIMODAL = "Qwen3_5MoeForConditionalGeneration"
_DEFAULTS = {
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
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
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields, fields.integer("moe_intermediate_size")),
        num_experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(normalized=True),
        shared=gated_feed_forward(fields, fields.integer("shared_expert_intermediate_size")),
        shared_gate=True,
    )
    return gated_delta_decoder(fields, [experts] * fields.integer("num_hidden_layers"))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    text = (
        *expert_rules(model),
        *separate_input_rules(model),
        *gated_delta_rules(model, hf, architecture),
    )
    if architecture != _MULTIMODAL:
        return text
    return (*renamed(text, r"model\.", r"model\.language_model\."), Drop(r"model\.visual\..*"))


def gguf_settings(of: Metadata) -> Settings:
    shared = of.integer("expert_shared_feed_forward_length")
    return {"model_type": "qwen3_5_moe_text", "shared_expert_intermediate_size": shared, **qwen_experts(of)}


FAMILY = decoder_family(
    "qwen3_5_moe",
    "Qwen3_5MoeText",
    config,
    rules,
    model_types=("qwen3_5_moe_text", "qwen3_5_moe"),
    texts=False,
    generating=("Qwen3_5MoeForCausalLM", _MULTIMODAL),
    tokens=False,
    answers=False,
    gguf=gated_delta_gguf("qwen35moe", gguf_settings, reordered=True),
    prediction_head=named_mtp(rules),
)
