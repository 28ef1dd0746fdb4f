"""Cut a recording into windows at pauses, and scale their samples, for models that read samples."""

from __future__ import annotations

import numpy as np

from server.audio.frames import FRAMES_PER_SECOND, HOP_SAMPLES, Frames, Samples
from server.audio.silence import cut_at_silences
from server.ipc.wire.descriptions import ModelInfo

WINDOW_SECONDS = 30
"""Maximum length of a window. The time of attention grows with its square."""
WINDOWS_AT_ONCE = 4
UNKNOWN_LANGUAGE = "und"
"""Code of an unknown language (ISO 639), for checkpoints that do not say which language they write."""
_VARIANCE_EPSILON = 1e-7

SampleSpan = tuple[int, int]
"""First sample and end of a window, as indices of samples; the end is exclusive."""


def window_frames(info: ModelInfo) -> int:
    """Maximum length of a model's window, in frames of 10 ms: 30 s, or less if its encoder reads fewer tokens."""
    tokens = info.source_tokens or info.context_tokens
    return min(WINDOW_SECONDS * FRAMES_PER_SECOND, tokens * info.samples_per_token // HOP_SAMPLES)


def sample_spans(samples: Samples, frames: Frames, info: ModelInfo) -> list[SampleSpan]:
    """Cut a recording into windows at pauses. A window that is too short for the encoder is left out.

    frames: frames of 10 ms, such that the mean of a frame is its loudness.
    """
    cuts = cut_at_silences(frames, len(frames), window_frames(info))
    spans = [(start * HOP_SAMPLES, min(end * HOP_SAMPLES, len(samples))) for start, end in cuts]
    return [(start, end) for start, end in spans if end - start >= info.min_samples]


def window_bytes(samples: Samples, span: SampleSpan, normalizes: bool) -> bytes:
    """The samples of a window for an engine message: little-endian float32.

    normalizes: whether to scale them to mean 0 and variance 1, as the feature extractor of the checkpoint does.
    """
    window = samples[span[0] : span[1]]
    if normalizes:
        window = (window - window.mean()) / np.sqrt(window.var() + np.float32(_VARIANCE_EPSILON))
    return window.astype("<f4").tobytes()
