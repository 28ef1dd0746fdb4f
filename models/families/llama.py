"""LLaMA 1 to 3 (Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783)."""

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
    attention_bias = fields.flag("attention_bias", False)
    return rotary_decoder(
        fields,
        windows=(None,) * fields.integer("num_hidden_layers", 32),
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads", 32)),
        max_positions=fields.integer("max_position_embeddings", 2048),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        feed_forward_bias=fields.flag("mlp_bias", False),
    )


FAMILY = with_heads(
    "Llama",
    Family(
        name="llama",
        model_types=("llama",),
        architectures={"LlamaForCausalLM": ("generate",)},
        config=config,
        rules=rules,
    ),
)
