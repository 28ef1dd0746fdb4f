"""Ministral 3 (Mistral AI 2025): Mistral without windows by default.

Queries are scaled by a factor that grows with the position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ConfigError, ModelConfig, QueryScale
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import (
    GgufFamily,
    Settings,
    paired_neighbours,
    rms_eps,
    rotary_settings,
    sliding_window,
)
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, llama_decoder, rotary_rules
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 34,
    "num_attention_heads": 32,
    "max_position_embeddings": 262144,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
}
_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    rope_is_set = hf.get("rope_parameters") is not None or hf.get("rope_scaling") is not None
    fields = Fields(hf, defaults=_DEFAULTS if rope_is_set else {**_DEFAULTS, "rope_parameters": _ROPE})
    fields.refuse_unless("layer_types")
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        head_dim=head_dim_of(fields, fields.raw("head_dim", 128)),
        # Null means one head of keys and values per query head; absent means eight heads.
        num_kv_heads=fields.optional_integer("num_key_value_heads", absent=8),
        window=fields.optional_integer("sliding_window"),
        query_scale=_query_scale(fields),
    )


def _query_scale(fields: Fields) -> QueryScale:
    settings = fields.raw("rope_scaling") or fields.raw("rope_parameters")
    if not isinstance(settings, dict):
        raise ConfigError("'rope_parameters' must be an object")
    inner = Fields(settings)
    return QueryScale(inner.number("llama_4_scaling_beta"), inner.integer("original_max_position_embeddings"))


def gguf_settings(of: Metadata) -> Settings:
    settings = rotary_settings(of, model_type="ministral3", sliding_window=sliding_window(of), **rms_eps(of))
    scaling = settings.pop("rope_scaling", None)
    if scaling is None:
        raise of.error("rope.scaling.type", "is missing, and needed for 'attention.temperature_scale'")
    # The number in the file stands for two settings of the checkpoint, which are equal.
    scale = of.number("rope.scaling.yarn_log_multiplier", 0.0)
    return {
        **settings,
        "rope_parameters": {
            **scaling,
            "rope_theta": settings.pop("rope_theta"),
            "llama_4_scaling_beta": of.number("attention.temperature_scale"),
            **({"mscale": scale, "mscale_all_dim": scale} if scale else {}),
        },
    }


def _is_ministral(of: Metadata) -> bool:
    return bool(of.optional("attention.temperature_scale"))


FAMILY = decoder_family(
    "ministral3",
    "Ministral3",
    config,
    rotary_rules,
    pad_token_id=11,
    gguf=GgufFamily({"mistral3": gguf_settings}, _is_ministral, paired_neighbours),
)
