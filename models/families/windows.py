"""Which layers have a sliding window, where a family does not give it to all or none."""

from __future__ import annotations

from typing import Any

from models.config import ConfigError
from models.families.fields import Fields


def upper_windows(fields: Fields, layer_types: Any) -> list[int | None]:
    """Qwen's: switched on by `use_sliding_window`, from layer `max_window_layers` up, unless `layer_types` says."""
    layers, window = fields.integer("num_hidden_layers", 32), switched_window(fields)
    if layer_types is None:
        full = fields.integer("max_window_layers", 28, least=0)
        return [window if index >= full else None for index in range(layers)]
    return named_windows(layer_types, layers, window)


def switched_window(fields: Fields, absent: int | None = 4096) -> int | None:
    """The window that `use_sliding_window` switches on; `absent` where the file names none."""
    return fields.optional_integer("sliding_window", absent) if fields.flag("use_sliding_window", False) else None


def named_windows(layer_types: Any, layers: int, window: int | None) -> list[int | None]:
    """The window of each layer that `layer_types` calls `sliding_attention`, None for `full_attention`."""
    known = ("full_attention", "sliding_attention")
    if not isinstance(layer_types, list) or len(layer_types) != layers or any(k not in known for k in layer_types):
        raise ConfigError(f"'layer_types' must name full_attention or sliding_attention for each of {layers} layers")
    if window is None and "sliding_attention" in layer_types:
        raise ConfigError("'layer_types' has sliding_attention, but 'use_sliding_window' or 'sliding_window' is unset")
    return [window if kind == "sliding_attention" else None for kind in layer_types]
