"""Phi-3 and Phi-4 (Abdin et al. 2024, arXiv:2404.14219): LLaMA with fused projections and some sliding windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import ConfigError, LayerConfig, LongScaling, ModelConfig, NormConfig
from models.families.decoder_heads import with_heads
from models.families.family import Family
from models.families.fields import Fields
from models.families.published_code import PublishedCode
from models.families.rotary_decoder import rotary_decoder
from models.families.rotary_decoder import rules as llama_rules
from weights.rules import Rule, Split

_CODE = PublishedCode("microsoft", "phi3", "Phi3")


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    # The length of the short factors has a default here, which goes before one that stands in the scaling.
    fields = Fields(hf, published_code=_CODE, defaults={"original_max_position_embeddings": 4096})
    older = hf.get("rope_scaling") or hf.get("rope_parameters")
    if isinstance(older, dict) and older.get("type", older.get("rope_type")) in ("yarn", "dynamic"):
        raise ConfigError("'rope_scaling': of the types that grow with the text Phi-3 has only 'longrope'")
    model = rotary_decoder(
        fields,
        windows=(fields.optional_integer("sliding_window"),) * fields.integer("num_hidden_layers", 32),
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads", 32)),
        max_positions=fields.integer("max_position_embeddings", 4096),
        norm=NormConfig("rms", fields.number("rms_norm_eps", 1e-5), bias=False),
        default_rope_share=1.0,
    )
    assert model.decoder is not None
    layers = tuple(_restarting(layer) for layer in model.decoder.layers)
    return replace(model, decoder=replace(model.decoder, layers=layers))


def _restarting(layer: LayerConfig) -> LayerConfig:
    """Its published code throws the cache away once a text outgrows the length of the short factors."""
    rope = layer.attention.rope
    if rope is None or not isinstance(rope.scaling, LongScaling):
        return layer
    rope = replace(rope, scaling=replace(rope.scaling, restarts=True))
    return replace(layer, attention=replace(layer.attention, rope=rope))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    attention, ours = model.decoder.layers[0].attention, r"decoder.layers.\1."
    width, kv_width = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    return (
        Split(
            r"model\.layers\.(\d+)\.self_attn\.qkv_proj\.weight",
            [f"{ours}attention.{name}.weight" for name in ("query", "key", "value")],
            sizes=(width, kv_width, kv_width),
        ),
        Split(
            r"model\.layers\.(\d+)\.mlp\.gate_up_proj\.weight",
            [f"{ours}feed_forward.{name}.weight" for name in ("gate", "up")],
        ),
        *llama_rules(model, hf, architecture),
    )


FAMILY = with_heads(
    "Phi3",
    Family(
        name="phi3",
        model_types=("phi3",),
        architectures={"Phi3ForCausalLM": ("generate",)},
        config=config,
        rules=rules,
    ),
    answers=False,
    pad_token_id=32000,
)
