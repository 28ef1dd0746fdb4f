"""DeepSeek-V2 (DeepSeek-AI 2024, arXiv:2405.04434): latent attention and a mixture of experts with shared experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, num_experts
from models.families.shared.latent_attention import (
    is_corrected,
    latent_gguf_rules,
    latent_gguf_settings,
    latent_layers,
    latent_rules,
)
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import rms_norm, rotary_decoder
from weights.gguf.metadata import Metadata

_PUBLISHED = PublishedCode("deepseek-ai", "deepseek", "DeepseekV2")


_DEFAULTS = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 1407,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "first_k_dense_replace": 0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, _PUBLISHED, defaults=_DEFAULTS)
    norm = rms_norm(fields)
    rope = rope_config(fields, fields.integer("qk_rope_head_dim"), pairing="interleaved")
    # The implementation we compare with ignores this setting, so nothing would check ours.
    fields.refuse_unless("norm_topk_prob", False)
    layers = latent_layers(
        fields,
        rope,
        norm,
        _router(fields),
        default_query_rank=1536,
    )
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    return rotary_decoder(fields, layers, norm, max_positions)


def _router(fields: Fields) -> RouterConfig:
    fields.refuse_unless("topk_method", "greedy", "group_limited_greedy")
    fields.refuse_unless("scoring_func", "softmax")
    scale = fields.number("routed_scaling_factor", 1.0)
    if fields.text("topk_method", "greedy") == "greedy":
        return RouterConfig(normalized=False, scale=scale)
    groups, chosen = fields.integer("n_group"), fields.integer("topk_group")
    return RouterConfig(normalized=False, groups=groups, groups_per_token=chosen, scale=scale)


def gguf_settings(of: Metadata) -> Settings:
    # The published files do not state how experts are chosen. Several groups mean a choice limited to some groups.
    grouped = of.integer("expert_group_count", 1) > 1
    method = "group_limited_greedy" if grouped else "greedy"
    return latent_gguf_settings(of, model_type="deepseek_v2", topk_method=method)


FAMILY = decoder_family(
    "deepseek_v2",
    "DeepseekV2",
    config,
    latent_rules,
    tokens=False,
    answers=False,
    gguf=GgufFamily(
        {"deepseek2": gguf_settings}, lambda of: num_experts(of) > 0 and not is_corrected(of), latent_gguf_rules
    ),
)
