"""What Longformer and LED share: a window for each layer, and tokens that are global."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.config import AttentionConfig, ConfigError, StackConfig
from models.config.sparse_attention import (
    BandedAttentionConfig,
    GlobalFirstToken,
    GlobalTokensBefore,
    LongformerAttentionConfig,
)
from models.families.shared.fields import Fields
from weights.rules import Drop, Rename, Rule

_ROLES = "(query|key|value)"


def with_windows(
    stack: StackConfig, hf: Mapping[str, Any], global_tokens: GlobalFirstToken | GlobalTokensBefore | None
) -> StackConfig:
    """The stack with a window, and global tokens where there are some, instead of full attention.

    Raises ConfigError for an `attention_window` that is not an even number, or one for each layer.
    """
    windows = hf.get("attention_window", 512)
    windows = windows if isinstance(windows, list) else [windows] * len(stack.layers)
    if len(windows) != len(stack.layers):
        raise ConfigError(f"'attention_window' has {len(windows)} numbers for {len(stack.layers)} layers")
    layers = zip(stack.layers, windows, strict=True)
    return replace(
        stack,
        layers=tuple(
            replace(layer, attention=_sparse(layer.attention, window, global_tokens)) for layer, window in layers
        ),
    )


def _sparse(
    full: AttentionConfig, window: Any, global_tokens: GlobalFirstToken | GlobalTokensBefore | None
) -> AttentionConfig:
    both_sides = Fields({"attention_window": window}).integer("attention_window", least=2)
    if both_sides % 2:
        raise ConfigError(f"'attention_window': {both_sides} is not even")
    # Half of it to each side, and the token itself.
    settings = {**vars(full), "window": both_sides // 2 + 1}
    if global_tokens is None:
        return BandedAttentionConfig(**settings)
    return LongformerAttentionConfig(**settings, global_tokens=global_tokens)


def global_rules(attention: str, model_attention: AttentionConfig) -> tuple[Rule, ...]:
    """The second projections, left out where no token is global. attention: pattern with the layer's number."""
    if isinstance(model_attention, LongformerAttentionConfig):
        return (Rename(rf"{attention}\.{_ROLES}_global\.(weight|bias)", r"encoder.layers.\1.attention.global_\2.\3"),)
    return (Drop(rf"{attention}\.{_ROLES}_global\.(?:weight|bias)"),)
