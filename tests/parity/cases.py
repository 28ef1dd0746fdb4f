"""Settings that several tiny models of the parity tests share, and functions that make their configurations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import transformers

VOCAB = 97
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
WIDE = {**BASE, "intermediate_size": 56}
WIDE_WITH_TOKENS = {**WIDE, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "original_max_position_embeddings": 16,
}
BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 56,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 40,
}
_NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


def case(stem: str, settings: Mapping[str, Any] = _NO_SETTINGS, **more: Any) -> tuple[str, Any]:
    """The name of the class with the language model head, and its configuration.

    stem: the start of the class names of the family in transformers, such as `Llama`.
    """
    return f"{stem}ForCausalLM", getattr(transformers, f"{stem}Config")(**{**settings, **more})


def text_case(stem: str, settings: Mapping[str, Any], **more: Any) -> tuple[str, Any]:
    """Like `case`, for the text part of a model that also reads pictures."""
    return f"{stem}ForCausalLM", getattr(transformers, f"{stem}TextConfig")(**{**settings, **more})
