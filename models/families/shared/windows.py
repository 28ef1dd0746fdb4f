"""Read which layers have a sliding window, for models whose other layers have full attention."""

from __future__ import annotations

from collections.abc import Sequence

from models.config import ConfigError
from models.families.shared.fields import Fields


def upper_windows(fields: Fields, absent: int | None) -> list[int | None]:
    """Sliding window of each layer of Qwen2 and Qwen3 in tokens, None for full attention.

    `layer_types` names the layers with a window. Without it, these are the layers from index `max_window_layers` on.
    There are no windows unless `use_sliding_window` is true.

    absent: width of the windows if the file has no `sliding_window`.
    Raises ConfigError for an invalid `layer_types`.
    """
    layers, window = fields.integer("num_hidden_layers"), switched_window(fields, absent)
    if fields.raw("layer_types") is None:
        full = fields.integer("max_window_layers", least=0)
        return [window if index >= full else None for index in range(layers)]
    return typed_windows(fields.raw("layer_types"), layers, window)


def switched_window(fields: Fields, absent: int | None) -> int | None:
    """Width of the sliding window in tokens, or None if `use_sliding_window` is false or `sliding_window` is null.

    absent: width of the window if the file has no `sliding_window`.
    """
    return fields.optional_integer("sliding_window", absent) if fields.flag("use_sliding_window", False) else None


def typed_windows(layer_types: object, layers: int, window: int | None) -> list[int | None]:
    """For each layer, `window` if its type is `sliding_attention`, or None if its type is `full_attention`.

    layer_types: the setting in `config.json`, of any type. layers: number of layers.
    Raises ConfigError unless the setting lists one of these two types for each layer, and for `sliding_attention` if
    `window` is None.
    """
    known = ("full_attention", "sliding_attention")
    if not isinstance(layer_types, list) or len(layer_types) != layers or any(k not in known for k in layer_types):
        raise ConfigError(f"'layer_types' must name full_attention or sliding_attention for each of {layers} layers")
    if window is None and "sliding_attention" in layer_types:
        raise ConfigError("'layer_types' has sliding_attention, but 'use_sliding_window' or 'sliding_window' is unset")
    return [window if kind == "sliding_attention" else None for kind in layer_types]


def patterned_windows(fields: Fields, absent: int | None) -> list[int | None]:
    """Sliding window of each layer in tokens, None for full attention, from `layer_types`.

    Without this setting, every `sliding_window_pattern`-th layer has full attention and the others have a window.

    absent: width of the windows if the file has no `sliding_window`.
    Raises ConfigError for an invalid `layer_types`.
    """
    layers, window = fields.integer("num_hidden_layers"), fields.optional_integer("sliding_window", absent)
    layer_types = fields.raw("layer_types")
    if layer_types is None:
        interval = fields.integer("sliding_window_pattern")
        layer_types = ["sliding_attention" if (index + 1) % interval else "full_attention" for index in range(layers)]
    return typed_windows(layer_types, layers, window)


def key_value_layers(windows: Sequence[int | None], num_shared: int) -> list[int | None]:
    """For each layer, the index of the layer whose keys and values it uses, or None if it computes them itself.

    The last `num_shared` layers compute no keys and values. Such a layer uses the keys and values of another layer: of
    all layers before the last `num_shared`, the last one with the same type of attention, windowed or full (Gemma 3n).

    windows: sliding window of each layer, None for full attention.
    Raises ConfigError if no earlier layer has the same type of attention.
    """
    first_shared, found = len(windows) - num_shared, list[int | None]()
    for index, window in enumerate(windows):
        alike = [other for other in range(first_shared) if (windows[other] is None) == (window is None)]
        if index >= first_shared and not alike:
            raise ConfigError(f"'num_kv_shared_layers': {num_shared} leaves layer {index} without keys and values")
        found.append(alike[-1] if index >= first_shared else None)
    return found
