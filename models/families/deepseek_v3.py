"""DeepSeek-V3 and R1 (DeepSeek-AI 2024, arXiv:2412.19437): DeepSeek-V2 with sigmoid scores in the router.

A bias per expert (`e_score_correction_bias`) affects which experts are chosen, but not their weights.
The layer for multi-token prediction only drafts tokens (`models.families.shared.prediction_head`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings
from models.families.shared.latent_attention import (
    is_corrected,
    latent_gguf_rules,
    latent_gguf_settings,
    latent_layers,
    latent_rules,
    later_layers,
)
from models.families.shared.mixture_of_experts import corrected_router
from models.families.shared.prediction_head import layer_after_the_last
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import rms_norm, rotary_decoder
from weights.gguf.metadata import Metadata
from weights.rules import Rule

_PUBLISHED = PublishedCode("deepseek-ai", "deepseek", "DeepseekV3")


_DEFAULTS = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "max_position_embeddings": 4096,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, _PUBLISHED, defaults=_DEFAULTS)
    norm = rms_norm(fields)
    rope = rope_config(
        fields,
        fields.integer("qk_rope_head_dim"),
        pairing="interleaved" if fields.flag("rope_interleave", True) else "half",
    )
    fields.refuse_unless("topk_method", "noaux_tc")
    fields.refuse_unless("scoring_func", "sigmoid")
    fields.refuse_unless("moe_layer_freq", 1)
    router = corrected_router(fields)
    layers = latent_layers(
        fields,
        rope,
        norm,
        router,
        default_query_rank=1536,
    )
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    return rotary_decoder(fields, layers, norm, max_positions)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    name = "num_mtp_layers" if hf.get("num_nextn_predict_layers") is None else "num_nextn_predict_layers"
    count = Fields({name: hf.get(name)}).integer(name, 1, least=0)
    return (later_layers(model, count), *latent_rules(model, hf, architecture))


def gguf_settings(of: Metadata) -> Settings:
    return latent_gguf_settings(of, model_type="deepseek_v3")


FAMILY = decoder_family(
    "deepseek_v3",
    "DeepseekV3",
    config,
    rules,
    answers=False,
    gguf=GgufFamily({"deepseek2": gguf_settings}, is_corrected, latent_gguf_rules),
    prediction_head=layer_after_the_last(rules),
)
