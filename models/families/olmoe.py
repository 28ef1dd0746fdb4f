"""OLMoE (Muennighoff et al. 2024, arXiv:2409.02060): LLaMA with mixtures of experts and normed queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, QueryKeyNorm, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, rms_eps, rotary_settings
from models.families.shared.mixture_of_experts import rotary_expert_rules
from models.families.shared.rotary_decoder import gated_feed_forward, llama_decoder, rms_norm
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 2048,
    "intermediate_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "max_position_embeddings": 4096,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    # Not supported, because this family clips after the norms of queries and keys. No published checkpoint sets it.
    fields.refuse_unless("clip_qkv")
    norm, bias = rms_norm(fields), fields.flag("attention_bias", False)
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields),
        num_experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(normalized=fields.flag("norm_topk_prob", False)),
    )
    return llama_decoder(
        fields, experts, norm=norm, qkv_bias=bias, output_bias=bias, query_key_norm=QueryKeyNorm(norm, "all")
    )


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(
        of,
        model_type="olmoe",
        attention_bias=has_bias(of, "attn_q"),
        num_experts=of.integer("expert_count"),
        num_experts_per_tok=of.integer("expert_used_count"),
        norm_topk_prob=False,
        **rms_eps(of),
    )


FAMILY = decoder_family(
    "olmoe",
    "Olmoe",
    config,
    rotary_expert_rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"olmoe": gguf_settings}),
)
