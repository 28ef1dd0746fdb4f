"""Read the setting `layer_types`, and build layers that have a mixer instead of attention."""

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
    """Configuration of a layer with a mixer, such as a state space, instead of attention.

    norm: norm in each of `norm_slots`.
    feed_forward: None for a layer without a feed-forward.
    residual_scale: factor of the mixer's and the feed-forward's results before the residual is added.
    norm_slots: places of the norms in each sublayer: `input`, `output`.
    """
    norms = NormSlots(**dict.fromkeys(norm_slots, norm), scale=residual_scale)
    return LayerConfig(None, norms, feed_forward, NormSlots() if feed_forward is None else norms, mixer=mixer)
