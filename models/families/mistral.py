"""Mistral (Jiang et al. 2023, arXiv:2310.06825): LLaMA with a sliding window over all layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.decoder_heads import with_heads
from models.families.family import Family
from models.families.fields import Fields
from models.families.rotary_decoder import rotary_decoder, rules


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    fields.refuse_unless("layer_types")
    # Only an explicit null switches the window off; left out, it has its first release's width.
    window = fields.optional_integer("sliding_window", absent=4096)
    return rotary_decoder(
        fields,
        windows=(window,) * fields.integer("num_hidden_layers", 32),
        num_kv_heads=fields.integer("num_key_value_heads", 8),
        max_positions=fields.integer("max_position_embeddings", 131072),
    )


FAMILY = with_heads(
    "Mistral",
    Family(
        name="mistral",
        model_types=("mistral",),
        architectures={"MistralForCausalLM": ("generate",)},
        config=config,
        rules=rules,
    ),
)
