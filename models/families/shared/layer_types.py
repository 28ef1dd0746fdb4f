"""Read `layer_types`, for decoders whose layers are of several kinds."""

from __future__ import annotations

from collections.abc import Sequence

from models.config import ConfigError, LayerConfig, MixerConfig, NormConfig, NormSlots
from models.config.layers import FeedForwardConfig, MixtureOfExpertsConfig
from models.families.shared.fields import Fields

_OLDER_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}


def layer_types(fields: Fields, known: Sequence[str], default: Sequence[str], layers: int) -> list[str]:
    """The type of each layer. Raises ConfigError unless `layer_types` names one of `known` for each layer.

    default: types if the file does not have the setting.
    layers: number of layers.
    """
    types = fields.raw("layer_types")
    types = list(default) if types is None else types
    if isinstance(types, list):
        types = [_OLDER_NAMES.get(one, one) if isinstance(one, str) else one for one in types]
    if not isinstance(types, list) or len(types) != layers or any(one not in known for one in types):
        raise ConfigError(f"'layer_types' must name {' or '.join(known)} for each of {layers} layers")
    return types


def mixer_layer(
    mixer: MixerConfig,
    norm: NormConfig,
    feed_forward: FeedForwardConfig | MixtureOfExpertsConfig | None,
    residual_scale: float = 1.0,
) -> LayerConfig:
    """A layer with a mixer instead of attention, and a norm before each sublayer.

    residual_scale: factor of the results of mixer and feed-forward.
    """
    norms = NormSlots(input=norm, scale=residual_scale)
    return LayerConfig(None, norms, feed_forward, NormSlots() if feed_forward is None else norms, mixer=mixer)
