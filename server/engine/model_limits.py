"""What the requests of a model may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a model can take. Zero where there is no decoder (vocab_size, context_tokens) or no encoder (source_*).

    frame_bytes: of the frames that a speech model hears, always as many; 0 where a source is text.
    restart_tokens: see `ModelConfig`.
    """

    vocab_size: int = 0
    context_tokens: int = 0
    source_vocab_size: int = 0
    source_tokens: int = 0
    frame_bytes: int = 0
    restart_tokens: int | None = None
