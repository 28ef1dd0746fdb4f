"""Limits that the requests of one model must keep: vocabulary, lengths, and sizes of recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.ipc.wire.encode_messages import FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits that the requests of one model must keep.

    vocab_size, context_tokens: vocabulary size and longest text of the decoder; 0 without a decoder.
    source_vocab_size, source_tokens: vocabulary size and longest text of the encoder; 0 without an encoder.
    token_types: number of token types; 0 for a model that ignores them.
    frame_bytes: size in bytes of the log-mel frames of one source; 0 for models that read no frames.
    min_samples: for a model that reads audio samples, number of samples of the shortest source; 0 for other models.
    samples_per_token: for such a model, number of samples of each further source token; 0 for other models.
    restart_tokens: length at which a text must be computed again from its start, because its rotary embeddings change;
        None if there is no such length.
    key_variant: returns a label for the length of a prompt. Prompts share cached keys only if their labels are equal.
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
        """Why the sources of a message do not have the form that the model reads; None if they have this form.

        recordings: frames or samples of each source; empty if the sources are texts.
        """
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
        """Number of source tokens in a recording of `num_bytes` bytes; 0 or less if it has too few samples."""
        if not self.min_samples:
            return self.source_tokens
        return (num_bytes // FLOAT_BYTES - self.min_samples) // self.samples_per_token + 1
