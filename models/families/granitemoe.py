"""Granite 3 with mixtures of experts (Granite Team 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, paired_neighbours, rotary_settings
from models.families.shared.granite import granite_decoder, granite_gguf_settings, shared_width
from models.families.shared.mixture_of_experts import stacked_expert_rules
from models.families.shared.rotary_decoder import gated_feed_forward, rotary_rules
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule

_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields),
        num_experts=fields.integer("num_local_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(normalized=True),
    )
    return granite_decoder(fields, experts)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    part, router = "block_sparse_moe", r"model\.layers\.(\d+)\.block_sparse_moe\.router\.(?:layer\.)?weight"
    return (
        Rename(router, r"decoder.layers.\1.feed_forward.router.weight"),
        # Published files have the first names, the modules of transformers the second.
        *stacked_expert_rules(model, part, gate_up=r"input_linear\.weight", down=r"output_linear\.weight"),
        *stacked_expert_rules(model, part, gate_up=r"experts\.gate_up_proj", down=r"experts\.down_proj"),
        *rotary_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(
        of,
        model_type="granitemoe",
        num_local_experts=of.integer("expert_count"),
        num_experts_per_tok=of.integer("expert_used_count"),
        **granite_gguf_settings(of),
    )


FAMILY = decoder_family(
    "granitemoe",
    "GraniteMoe",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"granitemoe": gguf_settings}, lambda of: not shared_width(of), paired_neighbours),
)
