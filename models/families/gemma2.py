"""Gemma 2 (Gemma Team 2024, arXiv:2408.00118): Gemma with norms on both sides of each sublayer, a sliding window on
every other layer, and capped scores and logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.config import LanguageModelHead, LayerConfig, ModelConfig, NormConfig
from models.families.decoder_heads import with_heads
from models.families.family import Family
from models.families.fields import Fields
from models.families.rotary_decoder import rotary_decoder, rules
from models.families.windows import named_windows


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields({**hf, "hidden_act": hf.get("hidden_activation") or "gelu_pytorch_tanh"})
    fields.refuse_unless("use_bidirectional_attention", False)
    attention_bias = fields.flag("attention_bias", False)
    model = rotary_decoder(
        fields,
        windows=_windows(fields, hf.get("layer_types")),
        num_kv_heads=fields.integer("num_key_value_heads", 4),
        max_positions=fields.integer("max_position_embeddings", 8192),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        norm=NormConfig("rms_from_one", fields.number("rms_norm_eps", 1e-6), bias=False),
        slots=("input", "output"),
        default_head_dim=256,
        default_tied=True,
    )
    scale = fields.positive("query_pre_attn_scalar", 256.0) ** -0.5
    cap, logit_cap = _cap(hf, "attn_logit_softcapping", 50.0), _cap(hf, "final_logit_softcapping", 30.0)

    def scored(layer: LayerConfig) -> LayerConfig:
        return replace(layer, attention=replace(layer.attention, scale=scale, score_cap=cap))

    assert model.decoder is not None and isinstance(model.head, LanguageModelHead)
    decoder = replace(
        model.decoder,
        embedding=replace(model.decoder.embedding, scale=model.hidden_size**0.5),
        layers=tuple(scored(layer) for layer in model.decoder.layers),
    )
    return replace(model, decoder=decoder, head=replace(model.head, cap=logit_cap))


def _cap(hf: Mapping[str, Any], name: str, default: float) -> float | None:
    """None where the file says null: only then nothing is capped."""
    return None if hf.get(name, default) is None else Fields(hf).positive(name, default)


def _windows(fields: Fields, layer_types: Any) -> list[int | None]:
    layers, window = fields.integer("num_hidden_layers", 26), fields.optional_integer("sliding_window", absent=4096)
    if layer_types is None:
        layer_types = ["full_attention" if index % 2 else "sliding_attention" for index in range(layers)]
    return named_windows(layer_types, layers, window)


FAMILY = with_heads(
    "Gemma2",
    Family(
        name="gemma2",
        model_types=("gemma2",),
        architectures={"Gemma2ForCausalLM": ("generate",)},
        config=config,
        rules=rules,
        refused_dtypes={"float16": "Gemma 2's residual stream can exceed float16; use bfloat16 or float32"},
    ),
    answers=False,
    pad_token_id=0,
)
