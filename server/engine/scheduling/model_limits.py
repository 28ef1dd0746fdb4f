"""Limits of one model for its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.ipc.wire.messages import FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of one model.

    vocab_size, context_tokens: vocabulary size and longest text of the decoder; 0 without a decoder.
    source_vocab_size, source_tokens: vocabulary size and longest text of the encoder; 0 without an encoder.
    token_types: token types of the reader's embedding; 0 for a model that ignores them.
    frame_bytes: size of the log-mel frames that a speech model reads, in bytes; 0 for other models.
    min_samples, samples_per_token: of a model that reads samples, samples of the shortest source and of each further
        token; 0 for other models.
    restart_tokens, key_variant: see `ModelConfig`.
    """

    vocab_size: int = 0
    context_tokens: int = 0
    source_vocab_size: int = 0
    source_tokens: int = 0
    token_types: int = 0
    frame_bytes: int = 0
    min_samples: int = 0
    samples_per_token: int = 0
    restart_tokens: int | None = None
    key_variant: Callable[[int], str] = lambda length: ""

    def wrong_source(self, recordings: Sequence[bytes]) -> str | None:
        """Why a source is no recording that the model reads, or None. recordings: empty for texts."""
        if self.min_samples:
            sizes = [len(recording) for recording in recordings]
            wrong = [size for size in sizes if size % FLOAT_BYTES or not self.recording_tokens(size) > 0]
            if wrong or not sizes:
                return f"the source has {[*wrong, 0][0]} bytes of samples; the model takes {self.min_samples} or more"
            return None
        found = next((len(frames) for frames in recordings if len(frames) != self.frame_bytes), None)
        if found is not None or bool(recordings) != bool(self.frame_bytes):
            return f"the source has {found or 0} bytes of audio frames; the model takes {self.frame_bytes}"
        return None

    def recording_tokens(self, num_bytes: int) -> int:
        """Source tokens of a recording, as frames or as samples; 0 or less for samples that are too short."""
        if not self.min_samples:
            return self.source_tokens
        return (num_bytes // FLOAT_BYTES - self.min_samples) // self.samples_per_token + 1
