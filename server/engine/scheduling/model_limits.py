"""Limits of one model for its requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of one model.

    vocab_size, context_tokens: vocabulary size and longest text of the decoder; 0 without a decoder.
    source_vocab_size, source_tokens: vocabulary size and longest text of the encoder; 0 without an encoder.
    frame_bytes: size of the audio source of a speech model, in bytes; 0 for text.
    restart_tokens, key_variant: see `ModelConfig`.
    """

    vocab_size: int = 0
    context_tokens: int = 0
    source_vocab_size: int = 0
    source_tokens: int = 0
    frame_bytes: int = 0
    restart_tokens: int | None = None
    key_variant: Callable[[int], str] = lambda length: ""
