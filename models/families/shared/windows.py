"""Read which layers have a sliding window, for models whose other layers have full attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from models.config import ConfigError
from models.families.shared.fields import Fields


def upper_windows(fields: Fields, absent: int | None) -> list[int | None]:
    """Sliding window of each layer of Qwen2 and Qwen3 in tokens, None for full attention.

    `layer_types` names the layers with a window. Without it, these are the layers from index `max_window_layers` on.
    There are no windows unless `use_sliding_window` is true.

    absent: width of the windows if the file has no `sliding_window`.
    Raises ConfigError for an invalid `layer_types`.
    """
    window = switched_window(fields, absent)
    return windows_by_type(
        fields, window, lambda index: index < fields.integer("max_window_layers", least=0) or window is None
    )


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


def windows_by_type(fields: Fields, window: int | None, is_full: Callable[[int], bool]) -> list[int | None]:
    """Sliding window of each layer in tokens, None for full attention, from `layer_types`.

    window: width of the windows; None if the settings have none.
    is_full: whether the layer with an index has full attention if the file has no `layer_types`.
    Raises ConfigError as `typed_windows` does.
    """
    layers, kinds = fields.integer("num_hidden_layers"), fields.raw("layer_types")
    if kinds is None:
        kinds = ["full_attention" if is_full(index) else "sliding_attention" for index in range(layers)]
    return typed_windows(kinds, layers, window)


def patterned_windows(
    fields: Fields, window: int | None, pattern: str = "sliding_window_pattern", default: int | None = None
) -> list[int | None]:
    """Sliding window of each layer as `windows_by_type` returns it, for models with full attention in every n-th layer.

    pattern: the setting that states n. default: value of n if the file does not state it.
    """
    return windows_by_type(fields, window, lambda index: (index + 1) % fields.integer(pattern, default) == 0)


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
