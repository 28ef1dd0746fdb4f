"""Qwen3-Next (Qwen Team 2025): gated delta rule in most layers, gated attention in the others, mixtures of experts."""

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
    grouped_input_rules,
)
from models.families.shared.gguf import Settings, qwen_experts
from models.families.shared.mixture_of_experts import expert_rules, sparse_layers
from models.families.shared.prediction_head import named_mtp
from models.families.shared.rotary_decoder import gated_feed_forward
from weights.gguf.metadata import Metadata
from weights.rules import Rule

_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "decoder_sparse_step": 1,
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
    fields = Fields(hf, defaults=_DEFAULTS)
    dense = gated_feed_forward(fields)
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields, fields.integer("moe_intermediate_size")),
        num_experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(normalized=fields.flag("norm_topk_prob", True)),
        shared=gated_feed_forward(fields, fields.integer("shared_expert_intermediate_size")),
        shared_gate=True,
    )
    return gated_delta_decoder(fields, [experts if sparse else dense for sparse in sparse_layers(fields)])


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        *expert_rules(model),
        *grouped_input_rules(model),
        *gated_delta_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    shared = of.integer("expert_shared_feed_forward_length")
    more = {"norm_topk_prob": True, "shared_expert_intermediate_size": shared}
    return {"model_type": "qwen3_next", **more, **qwen_experts(of)}


FAMILY = decoder_family(
    "qwen3_next",
    "Qwen3Next",
    config,
    rules,
    gguf=gated_delta_gguf("qwen3next", gguf_settings, reordered=False),
    prediction_head=named_mtp(rules),
)
