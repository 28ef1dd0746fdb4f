"""GLM-4.5 (GLM-4.5 Team 2025, arXiv:2508.06471): a decoder with mixtures of experts and the router of DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import (
    INPUT_NORM_AFTER_ATTENTION,
    GgufFamily,
    Settings,
    has_bias,
    partly_rotary_settings,
    prediction_layers,
    rms_eps,
    routed_experts,
)
from models.families.shared.mixture_of_experts import corrected_router, rotary_expert_rules
from models.families.shared.prediction_head import layer_after_the_last
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    llama_decoder,
    rms_norm,
)
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rule

_DEFAULTS = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    width = fields.integer("moe_intermediate_size")
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields, width),
        num_experts=fields.integer("n_routed_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=corrected_router(fields),
        shared=gated_feed_forward(fields, width * fields.integer("n_shared_experts")),
    )
    dense = gated_feed_forward(fields)
    first_sparse = fields.integer("first_k_dense_replace", least=0)
    return llama_decoder(
        fields,
        [experts if index >= first_sparse else dense for index in range(fields.integer("num_hidden_layers"))],
        rope=rope_config(fields, head_dim_of(fields), default_share=0.5),
        num_kv_heads=fields.integer("num_key_value_heads"),
        qkv_bias=fields.flag("attention_bias", False),
        query_key_norm=QueryKeyNorm(rms_norm(fields)) if fields.flag("use_qk_norm", False) else None,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    return (
        # The additional layer after the decoder layers only drafts tokens.
        Drop(rf"model\.layers\.{len(model.decoder.layers)}\..*"),
        *rotary_expert_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    return partly_rotary_settings(
        of,
        model_type="glm4_moe",
        attention_bias=has_bias(of, "attn_q"),
        use_qk_norm=bool(of.layers_with("attn_q_norm.weight")),
        **routed_experts(of),
        **rms_eps(of),
    )


FAMILY = decoder_family(
    "glm4_moe",
    "Glm4Moe",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily(
        {"glm4moe": gguf_settings}, rules=lambda model: (prediction_layers(model),), norms=INPUT_NORM_AFTER_ATTENTION
    ),
    prediction_head=layer_after_the_last(rules),
)
