"""Mistral (Jiang et al. 2023, arXiv:2310.06825): LLaMA with a sliding window in all layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
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
from models.families.shared.rotary_decoder import gated_feed_forward, llama_decoder, rotary_rules
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    fields.refuse_unless("layer_types")
    # Only an explicit null switches the window off. An absent setting means the width of the first release.
    window = fields.optional_integer("sliding_window", absent=4096)
    return llama_decoder(fields, gated_feed_forward(fields), window=window)


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(of, model_type="mistral", sliding_window=sliding_window(of), **rms_eps(of))


def _is_mistral(of: Metadata) -> bool:
    """Whether a GGUF file is a Mistral model.

    True for architecture `mistral3` without a query scale (Ministral 3 has one), and for architecture `llama` with a
    sliding window and without experts.
    """
    if of.architecture == "mistral3":
        return not of.optional("attention.temperature_scale")
    return not num_experts(of) and sliding_window(of) is not None


FAMILY = decoder_family(
    "mistral",
    "Mistral",
    config,
    rotary_rules,
    gguf=GgufFamily(dict.fromkeys(("llama", "mistral3"), gguf_settings), _is_mistral, paired_neighbours),
)
