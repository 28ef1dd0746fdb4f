"""SmolLM3 (Bakouch et al. 2025): LLaMA with some layers, every fourth by default, that have no positions (Yang et al.
2025, arXiv:2501.18795)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.config import ConfigError, LayerConfig, ModelConfig
from models.families.decoder_heads import with_heads
from models.families.family import Family
from models.families.fields import Fields
from models.families.rotary_decoder import rotary_decoder, rules
from models.families.windows import named_windows, switched_window


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults={"rope_theta": 2000000.0})
    layers, attention_bias = fields.integer("num_hidden_layers", 36), fields.flag("attention_bias", False)
    rotating = _rotating(fields, hf.get("no_rope_layers"), layers)
    model = rotary_decoder(
        fields,
        windows=_windows(fields, hf.get("layer_types"), rotating),
        num_kv_heads=fields.integer("num_key_value_heads", 4),
        max_positions=fields.integer("max_position_embeddings", 32768),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        feed_forward_bias=fields.flag("mlp_bias", False),
        default_tied=True,
    )
    assert model.decoder is not None
    placed = tuple(
        layer if rotates else _without_positions(layer)
        for layer, rotates in zip(model.decoder.layers, rotating, strict=True)
    )
    return replace(model, decoder=replace(model.decoder, layers=placed))


def _without_positions(layer: LayerConfig) -> LayerConfig:
    return replace(layer, attention=replace(layer.attention, rope=None))


def _rotating(fields: Fields, said: Any, layers: int) -> list[bool]:
    """Whether each layer has positions: in spite of its name, `no_rope_layers` holds 1 for those that do."""
    if said is None:
        every = fields.integer("no_rope_layer_interval", 4)
        return [(index + 1) % every != 0 for index in range(layers)]
    if not isinstance(said, list) or len(said) < layers or any(one not in (0, 1) for one in said):
        raise ConfigError(f"'no_rope_layers' must be 0 or 1 for each of {layers} layers")
    return [bool(one) for one in said[:layers]]


def _windows(fields: Fields, layer_types: Any, rotating: list[bool]) -> list[int | None]:
    window = switched_window(fields, absent=None)
    if layer_types is None:
        return [None if rotates else window for rotates in rotating]
    return named_windows(layer_types, len(rotating), window)


FAMILY = with_heads(
    "SmolLM3",
    Family(
        name="smollm3",
        model_types=("smollm3",),
        architectures={"SmolLM3ForCausalLM": ("generate",)},
        config=config,
        rules=rules,
    ),
    pad_token_id=128004,
)
