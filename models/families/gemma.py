"""Gemma (Gemma Team 2024, arXiv:2403.08295): LLaMA with scaled embeddings, a gelu gate and norm weights from one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.config import ModelConfig, NormConfig
from models.families.decoder_heads import with_heads
from models.families.family import Family
from models.families.fields import Fields
from models.families.rotary_decoder import rotary_decoder, rules


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    # The first releases say `gelu` and were trained with its tanh approximation.
    gate = "gelu_pytorch_tanh" if hf.get("hidden_act") in (None, "gelu") else hf["hidden_act"]
    fields = Fields({**hf, "hidden_act": gate})
    fields.refuse_unless("hidden_activation", gate)
    fields.refuse_unless("use_bidirectional_attention", False)
    attention_bias = fields.flag("attention_bias", False)
    model = rotary_decoder(
        fields,
        windows=(None,) * fields.integer("num_hidden_layers", 28),
        num_kv_heads=fields.integer("num_key_value_heads", 16),
        max_positions=fields.integer("max_position_embeddings", 8192),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        norm=NormConfig("rms_from_one", fields.number("rms_norm_eps", 1e-6), bias=False),
        default_head_dim=256,
        default_tied=True,
    )
    assert model.decoder is not None
    embedding = replace(model.decoder.embedding, scale=model.hidden_size**0.5)
    return replace(model, decoder=replace(model.decoder, embedding=embedding))


FAMILY = with_heads(
    "Gemma",
    Family(
        name="gemma",
        model_types=("gemma",),
        architectures={"GemmaForCausalLM": ("generate",)},
        config=config,
        rules=rules,
    ),
    answers=False,
    pad_token_id=0,
)
