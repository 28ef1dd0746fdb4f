"""Windows of a recording for models that read samples: their length, cuts at pauses, and the scaling of samples."""

from __future__ import annotations

import numpy as np

from server.audio.frames import FRAMES_PER_SECOND, HOP_SAMPLES, Frames, Samples
from server.audio.silence import cut_at_silences
from server.ipc.wire.descriptions import ModelInfo

WINDOW_SECONDS = 30
"""Longest window. The time of attention grows with the square of it."""
WINDOWS_AT_ONCE = 4
UNKNOWN_LANGUAGE = "und"
"""Code of a language that is not known (ISO 639). A checkpoint does not say which languages it writes."""
_VARIANCE_EPSILON = 1e-7

SampleSpan = tuple[int, int]
"""First sample and end of a window."""


def window_frames(info: ModelInfo) -> int:
    """Longest window of a model, in frames of 10 ms: 30 s, or as long as the tokens that its encoder accepts."""
    tokens = info.source_tokens or info.context_tokens
    return min(WINDOW_SECONDS * FRAMES_PER_SECOND, tokens * info.samples_per_token // HOP_SAMPLES)


def sample_spans(samples: Samples, frames: Frames, info: ModelInfo) -> list[SampleSpan]:
    """The windows of a recording. A rest that is too short for the encoder is left out.

    frames: any frames of 10 ms whose mean is their loudness.
    """
    cuts = cut_at_silences(frames, len(frames), window_frames(info))
    spans = [(start * HOP_SAMPLES, min(end * HOP_SAMPLES, len(samples))) for start, end in cuts]
    return [(start, end) for start, end in spans if end - start >= info.min_samples]


def window_bytes(samples: Samples, span: SampleSpan, normalizes: bool) -> bytes:
    """The samples of a window as messages have them, scaled as the feature extractor of the checkpoint does it.

    normalizes: give them a mean of zero and a variance of one.
    """
    window = samples[span[0] : span[1]]
    if normalizes:
        window = (window - window.mean()) / np.sqrt(window.var() + np.float32(_VARIANCE_EPSILON))
    return window.astype("<f4").tobytes()
