"""Qwen3-MoE (Yang et al. 2025, arXiv:2505.09388): Qwen3 with mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, QueryKeyNorm, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, qwen_experts, rms_eps, rotary_settings
from models.families.shared.mixture_of_experts import rotary_expert_rules, sparse_layers
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    llama_decoder,
    rms_norm,
)
from models.families.shared.windows import switched_window
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    fields.refuse_unless("layer_types")
    dense, bias = gated_feed_forward(fields), fields.flag("attention_bias", False)
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields, fields.integer("moe_intermediate_size")),
        # transformers 5 writes the number of experts under the name that Mixtral has for it.
        num_experts=fields.integer("num_local_experts", fields.integer("num_experts")),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(normalized=fields.flag("norm_topk_prob", False)),
    )
    return llama_decoder(
        fields,
        [experts if sparse else dense for sparse in sparse_layers(fields)],
        num_kv_heads=fields.integer("num_key_value_heads"),
        window=switched_window(fields, absent=4096),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm(rms_norm(fields)),
    )


def gguf_settings(of: Metadata) -> Settings:
    more = {"norm_topk_prob": True, "use_sliding_window": False}
    return rotary_settings(of, model_type="qwen3_moe", **more, **qwen_experts(of), **rms_eps(of))


FAMILY = decoder_family(
    "qwen3_moe",
    "Qwen3Moe",
    config,
    rotary_expert_rules,
    gguf=GgufFamily(dict.fromkeys(("qwen3moe", "qwen3vlmoe"), gguf_settings)),
)
