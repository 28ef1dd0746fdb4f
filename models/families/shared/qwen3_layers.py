"""The layers of Qwen3: LLaMA with norms of queries and keys, and windows in some layers."""

from __future__ import annotations

from models.config import ModelConfig, QueryKeyNorm
from models.families.shared.fields import Fields
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    llama_decoder,
    rms_norm,
)
from models.families.shared.windows import upper_windows

DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "head_dim": 128,
}
"""Defaults of `Qwen3Config` in transformers. Other families with the layers of Qwen3 have the same defaults."""


def qwen3_decoder(fields: Fields, window: int) -> ModelConfig:
    """Configuration of a decoder, or of an encoder if `is_causal` is false.

    fields: settings with defaults for all sizes that `config.json` may leave out.
    window: width of the sliding windows in tokens if the file has no `sliding_window`.
    """
    bias = fields.flag("attention_bias", False)
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        num_kv_heads=fields.integer("num_key_value_heads"),
        windows=upper_windows(fields, absent=window),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm(rms_norm(fields)),
    )
