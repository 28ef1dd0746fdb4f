"""Granite with sliding windows and attention sinks.

By default three of four layers have a window. Each layer may have a different rotary base; a base of 0 stands for a
layer without positions.
"""

from __future__ import annotations

from dataclasses import replace

from models.config import ConfigError, FeedForwardConfig, MixtureOfExpertsConfig, ModelConfig, RopeConfig
from models.families.shared.fields import Fields
from models.families.shared.gguf import Settings, layer_types, sliding_window
from models.families.shared.granite import granite_gguf_settings
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import head_dim_of, llama_decoder
from models.families.shared.windows import windows_by_type
from weights.gguf.metadata import Metadata
from weights.rules import Rename

SINK_RULE = Rename(r"model\.layers\.(\d+)\.self_attn\.sinks", r"decoder.layers.\1.attention.sinks")


def windowed_granite_decoder(
    fields: Fields,
    feed_forward: FeedForwardConfig | MixtureOfExpertsConfig,
    *,
    num_kv_heads: int,
    window: int,
    default_tied: bool,
) -> ModelConfig:
    """Configuration of a Granite decoder with sliding windows.

    fields: settings with defaults for all sizes that `config.json` may leave out.
    feed_forward: feed-forward of every layer.
    window: width of the windows in tokens if the file has no `sliding_window`.
    default_tied: whether logits use the token embeddings if the file has no `tie_word_embeddings`.
    """
    rope, bias = rope_config(fields, head_dim_of(fields)), fields.flag("attention_bias", False)
    given = fields.optional_integer("sliding_window", absent=window)
    return llama_decoder(
        fields,
        feed_forward,
        windows=windows_by_type(fields, given, lambda index: index % 4 == 0),
        ropes=_ropes(fields, rope),
        rope=rope,
        num_kv_heads=num_kv_heads,
        default_tied=default_tied,
        embedding_scale=fields.positive("embedding_multiplier", 1.0),
        logit_scale=1.0 / fields.positive("logits_scaling", 1.0),
        qkv_bias=bias,
        output_bias=bias,
        scale=fields.positive("attention_multiplier", 1.0),
        residual_scale=fields.positive("residual_multiplier", 1.0),
        sinks=True,
    )


def _ropes(fields: Fields, rope: RopeConfig) -> list[RopeConfig | None]:
    """Rotary positions of each layer: `rope` with the layer's base from `layer_rope_theta`; None for a base of 0.

    Without this setting, all layers have `rope`. Raises ConfigError unless it is a list of one number of at least 0 per
    layer.
    """
    layers, bases = fields.integer("num_hidden_layers"), fields.raw("layer_rope_theta")
    if bases is None:
        return [rope] * layers
    listed = bases if isinstance(bases, list) else []
    good = all(isinstance(number, int | float) and not isinstance(number, bool) and number >= 0 for number in listed)
    if len(listed) != layers or not good:
        raise ConfigError(f"'layer_rope_theta' must be a list of {layers} numbers of at least 0")
    return [replace(rope, theta=float(base)) if base else None for base in listed]


def windowed_granite_gguf_settings(of: Metadata) -> Settings:
    """The settings that GGUF files of Granite with windows have.

    A file has one rotary base, and in `attention.rope_pattern` a flag for each layer: 0 for a layer without positions.
    A file without the flags rotates in all layers.
    Raises GgufError for a flag that is neither 0 nor 1.
    """
    base, pattern = of.number("rope.freq_base", 10000.0), of.by_layer("attention.rope_pattern")
    if any(rotates not in (None, 0, 1) for rotates in pattern):
        raise of.error("attention.rope_pattern", "has flags other than 0 and 1")
    return {
        "sliding_window": sliding_window(of),
        "layer_types": layer_types(of),
        "layer_rope_theta": [base if rotates is None or rotates else 0 for rotates in pattern],
        **granite_gguf_settings(of),
    }
