"""Mixtral (Jiang et al. 2024, arXiv:2401.04088): Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import (
    GgufFamily,
    Settings,
    num_experts,
    paired_neighbours,
    rms_eps,
    rotary_settings,
    sliding_window,
)
from models.families.shared.mixture_of_experts import mixtral_rules
from models.families.shared.rotary_decoder import gated_feed_forward, llama_decoder
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    fields.refuse_unless("layer_types")
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields),
        num_experts=fields.integer("num_local_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(normalized=True),
    )
    return llama_decoder(fields, experts, window=fields.optional_integer("sliding_window"))


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(
        of,
        model_type="mixtral",
        num_local_experts=num_experts(of),
        num_experts_per_tok=of.integer("expert_used_count"),
        sliding_window=sliding_window(of),
        **rms_eps(of),
    )


def _is_mixtral(of: Metadata) -> bool:
    """Whether a GGUF file of architecture `llama` is a Mixtral model, which has experts."""
    return num_experts(of) > 0


FAMILY = decoder_family(
    "mixtral",
    "Mixtral",
    config,
    mixtral_rules,
    gguf=GgufFamily({"llama": gguf_settings}, _is_mixtral, paired_neighbours),
)
