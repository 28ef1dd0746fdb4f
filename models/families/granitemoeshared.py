"""Granite 3 with mixtures of experts and an expert for every token (Granite Team 2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.granite import granite_decoder
from models.families.shared.mixture_of_experts import stacked_expert_rules
from models.families.shared.rotary_decoder import gated_feed_forward, rotary_rules
from weights.rules import Rename, Rule, Split

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
    shared = fields.integer("shared_intermediate_size", 0, least=0)
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields),
        num_experts=fields.integer("num_local_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(normalized=True),
        shared=gated_feed_forward(fields, shared) if shared else None,
    )
    return granite_decoder(fields, experts)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    theirs, ours = r"model\.layers\.(\d+)\.shared_mlp\.", r"decoder.layers.\1.feed_forward.shared."
    return (
        Split(theirs + r"input_linear\.weight", (ours + "gate.weight", ours + "up.weight")),
        Rename(theirs + r"output_linear\.weight", ours + "down.weight"),
        # Published files have the first names, the modules of transformers the second.
        Rename(
            r"model\.layers\.(\d+)\.block_sparse_moe\.router\.(?:layer\.)?weight",
            r"decoder.layers.\1.feed_forward.router.weight",
        ),
        *stacked_expert_rules(
            model,
            "block_sparse_moe",
            gate_up=r"(?:input_linear\.weight|experts\.gate_up_proj)",
            down=r"(?:output_linear\.weight|experts\.down_proj)",
        ),
        *rotary_rules(model, hf, architecture),
    )


FAMILY = decoder_family(
    "granitemoeshared",
    "GraniteMoeShared",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
)
