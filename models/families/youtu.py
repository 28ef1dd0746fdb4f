"""Youtu-LLM (Tencent 2025, arXiv:2512.24618): DeepSeek-V3 with dense feed-forwards instead of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import LayerConfig, ModelConfig, NormSlots
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, num_experts
from models.families.shared.latent_attention import (
    latent_attention,
    latent_gguf_rules,
    latent_gguf_settings,
    latent_rules,
)
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import gated_feed_forward, rms_norm, rotary_decoder
from weights.gguf.metadata import Metadata

_PUBLISHED = PublishedCode("tencent", "youtu", "Youtu")
_DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "max_position_embeddings": 131072,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, _PUBLISHED, defaults=_DEFAULTS)
    rope = rope_config(
        fields,
        fields.integer("qk_rope_head_dim"),
        pairing="interleaved" if fields.flag("rope_interleave", True) else "half",
    )
    norm = rms_norm(fields)
    attention, norms = latent_attention(fields, rope, default_query_rank=1536), NormSlots(input=norm)
    layer = LayerConfig(attention, norms, gated_feed_forward(fields), norms)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    return rotary_decoder(
        fields, (layer,) * fields.integer("num_hidden_layers"), norm, max_positions, default_tied=True
    )


def gguf_settings(of: Metadata) -> Settings:
    return latent_gguf_settings(of, model_type="youtu")


FAMILY = decoder_family(
    "youtu",
    "Youtu",
    config,
    latent_rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"deepseek2": gguf_settings}, lambda of: not num_experts(of), latent_gguf_rules),
)
