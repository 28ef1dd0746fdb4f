"""Mistral 4 (Mistral AI 2026): DeepSeek-V3 with softmax scores in the router.

Queries are scaled by a factor that grows with the logarithm of the position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ConfigError, ModelConfig, QueryScale, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings
from models.families.shared.latent_attention import latent_gguf_rules, latent_gguf_settings, latent_layers, latent_rules
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import rms_norm, rotary_decoder
from weights.gguf.metadata import Metadata

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


_DEFAULTS = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "max_position_embeddings": 1048576,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 128,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    where = "rope_scaling" if hf.get("rope_scaling") else "rope_parameters"
    settings = hf.get(where) or _YARN
    if not isinstance(settings, dict):
        raise ConfigError(f"{where!r} must be an object")
    # The rotating share of a head follows from the widths of its two parts.
    plain, turning = (Fields(hf, defaults=_DEFAULTS).integer(f"qk_{part}_head_dim") for part in ("nope", "rope"))
    Fields(settings).refuse_unless("partial_rotary_factor", turning / (plain + turning))
    settings = {name: value for name, value in settings.items() if name != "partial_rotary_factor"}
    fields = Fields({**hf, where: settings}, defaults=_DEFAULTS)
    norm = rms_norm(fields)
    pairing = fields.flag("rope_interleave", True)
    rope = rope_config(fields, turning, pairing="interleaved" if pairing else "half")
    router = RouterConfig(
        normalized=fields.flag("norm_topk_prob", True),
        groups=fields.integer("n_group", 1),
        groups_per_token=fields.integer("topk_group", 1),
        group_members=2,
        epsilon=1e-20,
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    scale = Fields(settings)
    layers = latent_layers(
        fields,
        rope,
        norm,
        router,
        QueryScale(scale.number("llama_4_scaling_beta"), scale.integer("original_max_position_embeddings")),
        default_query_rank=1024,
    )
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    return rotary_decoder(fields, layers, norm, max_positions)


def gguf_settings(of: Metadata) -> Settings:
    settings = latent_gguf_settings(of, model_type="mistral4")
    scaling = settings.pop("rope_scaling", None)
    if scaling is None:
        raise of.error("rope.scaling.type", "is missing")
    # Some files lack the number, which is the same in all published models.
    rate = of.number("attention.temperature_scale", 0.1)
    rope = {**scaling, "rope_theta": settings.pop("rope_theta"), "llama_4_scaling_beta": rate}
    return {**settings, "rope_parameters": rope}


FAMILY = decoder_family(
    "mistral4",
    "Mistral4",
    config,
    latent_rules,
    answers=False,
    pad_token_id=11,
    gguf=GgufFamily({"mistral4": gguf_settings}, rules=latent_gguf_rules),
)
