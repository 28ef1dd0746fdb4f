"""Sliding windows and rotary positions of ModernBERT's layers, for its encoders and decoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ConfigError, RopeConfig
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config
from models.families.shared.windows import typed_windows


def layer_windows(fields: Fields, num_layers: int, *, causal: bool = False) -> list[int | None]:
    """Sliding window of each layer in tokens, None for full attention.

    The setting `local_attention` counts the tokens on both sides of the query, without the query. A window in the
    result counts the query and the tokens on one side: half of the setting if `causal`, else half of it plus 1.
    Raises ConfigError if the file also has a `sliding_window` that is not half of `local_attention`.
    """
    kinds = fields.raw("layer_types")
    if kinds is None:
        interval = fields.integer("global_attn_every_n_layers", 3)
        kinds = ["sliding_attention" if index % interval else "full_attention" for index in range(num_layers)]
    one_side = fields.integer("local_attention", 128) // 2
    # transformers writes half of `local_attention` to `sliding_window`. If the two settings disagree, it uses
    # `sliding_window`; such files are refused here.
    fields.refuse_unless("sliding_window", one_side)
    return typed_windows(kinds, num_layers, one_side if causal else one_side + 1)


def layer_rope(hf: Mapping[str, Any], head_dim: int, kind: str, old_name: str, theta: float) -> RopeConfig:
    """Rotary positions of one layer type, from `rope_parameters`; in older files, from the setting `old_name`.

    kind: layer type, `full_attention` or `sliding_attention`.
    old_name: setting that has the rotary base of this layer type in older files.
    theta: base if the file has neither setting.
    Raises ConfigError for settings of the wrong form, and if `old_name` is null.
    """
    both, scaling = hf.get("rope_parameters") or {}, hf.get("rope_scaling") or {}
    if not isinstance(both, dict) or not all(isinstance(parameters or {}, dict) for parameters in both.values()):
        raise ConfigError("'rope_parameters' must have an object for each layer type")
    if not isinstance(scaling, dict):
        raise ConfigError("'rope_scaling' must be an object")
    if old_name in hf and hf[old_name] is None:
        raise ConfigError(f"{old_name!r}: null is not supported")
    own = {**hf, "rope_scaling": None, "rope_parameters": scaling | (both.get(kind) or {})}
    return rope_config(Fields(own), head_dim, Fields(hf).positive(old_name, theta))
