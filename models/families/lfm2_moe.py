"""LFM2-MoE (Liquid AI 2025, arXiv:2511.23404): LFM2 with mixtures of experts in all but the first layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, MixtureOfExpertsConfig, ModelConfig, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings
from models.families.shared.mixture_of_experts import expert_rules
from models.families.shared.short_convolution_decoder import (
    LAYER,
    OURS,
    short_convolution_decoder,
    short_convolution_gguf_rules,
    short_convolution_gguf_settings,
    short_convolution_rules,
    with_tied_name,
)
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule

_DEFAULTS = {
    "vocab_size": 65536,
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "moe_intermediate_size": 1792,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "num_dense_layers": 2,
    "conv_L_cache": 3,
    "norm_eps": 1e-05,
    "rope_theta": 1000000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(with_tied_name(hf), defaults=_DEFAULTS)
    dense = FeedForwardConfig(fields.integer("intermediate_size"), "silu", gated=True, bias=False)
    experts = MixtureOfExpertsConfig(
        FeedForwardConfig(fields.integer("moe_intermediate_size"), "silu", gated=True, bias=False),
        num_experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(
            normalized=fields.flag("norm_topk_prob", True),
            score="sigmoid",
            correction=fields.flag("use_expert_bias", True),
            epsilon=1e-6,
            scale=fields.positive("routed_scaling_factor", 1.0),
        ),
    )
    layers, first = fields.integer("num_hidden_layers"), fields.integer("num_dense_layers", least=0)
    return short_convolution_decoder(fields, [dense if index < first else experts for index in range(layers)])


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        Rename(LAYER + r"feed_forward\.expert_bias", OURS + "feed_forward.router.correction"),
        *expert_rules(model, "feed_forward", ("w1", "w3", "w2")),
        *short_convolution_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    return short_convolution_gguf_settings(
        of,
        model_type="lfm2_moe",
        num_experts=of.integer("expert_count"),
        num_experts_per_tok=of.integer("expert_used_count"),
        moe_intermediate_size=of.integer("expert_feed_forward_length"),
        num_dense_layers=of.integer("leading_dense_block_count", 0),
        use_expert_bias=bool(of.layers_with("exp_probs_b.bias")),
        norm_topk_prob=True,
    )


FAMILY = decoder_family(
    "lfm2_moe",
    "Lfm2Moe",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"lfm2moe": gguf_settings}, rules=short_convolution_gguf_rules),
)
