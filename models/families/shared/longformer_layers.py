"""Attention of Longformer and LED: sliding windows, and tokens that attend globally.

Source: Beltagy et al. 2020, arXiv:2004.05150.
"""

from __future__ import annotations

from typing import Any

from models.config import AttentionConfig, ConfigError
from models.config.sparse_attention import (
    BandedAttentionConfig,
    GlobalFirstToken,
    GlobalTokensBefore,
    LongformerAttentionConfig,
)
from models.families.shared.fields import Fields
from weights.rules import Drop, Rename, Rule


def longformer_attentions(
    fields: Fields, full: AttentionConfig, num_layers: int, global_tokens: GlobalFirstToken | GlobalTokensBefore | None
) -> list[AttentionConfig]:
    """The attention of each layer, with the windows of `attention_window`.

    full: full attention, with the same heads, widths and biases.
    global_tokens: rule that selects the tokens that attend to the whole text; None for no such tokens.
    Raises ConfigError unless `attention_window` is an even number or a list of one even number per layer.
    """
    windows = fields.raw("attention_window", absent=512)
    windows = windows if isinstance(windows, list) else [windows] * num_layers
    if len(windows) != num_layers:
        raise ConfigError(f"'attention_window' has {len(windows)} numbers for {num_layers} layers")

    def attention(window: Any) -> AttentionConfig:
        both_sides = Fields({"attention_window": window}).integer("attention_window", least=2)
        if both_sides % 2:
            raise ConfigError(f"'attention_window': {both_sides} is not even")
        # The setting counts the neighbours on both sides, without the token itself; our windows count the token.
        settings = {**vars(full), "window": both_sides // 2 + 1}
        if global_tokens is None:
            return BandedAttentionConfig(**settings)
        return LongformerAttentionConfig(**settings, global_tokens=global_tokens)

    return [attention(window) for window in windows]


def global_rules(attention: str, attention_config: AttentionConfig) -> tuple[Rule, ...]:
    """Rules for the separate projections of global tokens. The tensors are dropped if no token is global.

    attention: regular expression for the self-attention's name in the checkpoint; its group is the layer's index.
    attention_config: attention of the model, which tells whether there are global tokens.
    """
    if isinstance(attention_config, LongformerAttentionConfig):
        return (
            Rename(
                rf"{attention}\.(query|key|value)_global\.(weight|bias)", r"encoder.layers.\1.attention.global_\2.\3"
            ),
        )
    return (Drop(rf"{attention}\.(query|key|value)_global\.(?:weight|bias)"),)
