"""Read `layer_types`, for decoders whose layers are of several kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from models.config import ConfigError, LayerConfig, MixerConfig, NormConfig, NormSlots
from models.config.layers import FeedForwardConfig, MixtureOfExpertsConfig
from models.families.shared.fields import Fields

_OLDER_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}


def layer_types(fields: Fields, known: Sequence[str], default: Sequence[str], layers: int) -> list[str]:
    """Types of the layers in order, from `layer_types` or `layers_block_type`, for example `full_attention`.

    known: the types that the family supports.
    default: the types if the file has neither setting.
    layers: number of layers.
    Raises ConfigError unless the setting is a list with one known type per layer.
    """
    named = fields.raw("layer_types", fields.raw("layers_block_type"))
    named = list(default) if named is None else named
    listed = named if isinstance(named, list) else []
    types = [_OLDER_NAMES.get(kind, kind) for kind in listed if isinstance(kind, str)]
    if len(listed) != layers or len(types) != layers or any(kind not in known for kind in types):
        raise ConfigError(f"'layer_types' must name {' or '.join(known)} for each of {layers} layers")
    return types


def mixer_layer(
    mixer: MixerConfig,
    norm: NormConfig,
    feed_forward: FeedForwardConfig | MixtureOfExpertsConfig | None,
    residual_scale: float = 1.0,
    norm_slots: Sequence[Literal["input", "output"]] = ("input",),
) -> LayerConfig:
    """A layer with a mixer instead of attention.

    residual_scale: the results of the mixer and of the feed-forward are multiplied by it before the residual is added.
    norm_slots: the slots of `NormSlots` that have a norm in each sublayer.
    """
    norms = NormSlots(**dict.fromkeys(norm_slots, norm), scale=residual_scale)
    return LayerConfig(None, norms, feed_forward, NormSlots() if feed_forward is None else norms, mixer=mixer)
