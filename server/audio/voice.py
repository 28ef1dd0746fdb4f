"""Finds the parts of a recording that may be speech, from the energy in bands of its log-mel frames.

The noise floor of a band is the level that the band exceeds 90% of the time. A steady sound (silence, hum, noise, one
tone) stays near this floor. Speech rises above the floor, even in noise. So does music, which therefore counts as
speech. See docs/decisions/0152-speech-that-behaves.md for measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from server.audio.frames import FRAMES_PER_SECOND, FRAMES_PER_TOKEN, Frames

BANDS = 16
"""Number of bands to which the mel bands are averaged. Wide bands make the level of noise steady."""
SMOOTHED_FRAMES = FRAMES_PER_SECOND // 5
"""Number of frames over which levels are averaged (0.2 s)."""
PART_FRAMES = 16_384
"""Number of frames whose levels are smoothed in one call. NumPy keeps Python's lock during a cumulative sum."""
FLOOR_PERCENT = 10
MIN_RISE_DB = 1.5
"""Smallest rise of speech over the noise floors, as the mean of the bands. White and brown noise reach 1.4 dB within a
minute. Half of the frames of speech in noise of the same power exceed 1.7 dB."""
MIN_SPEECH_FRAMES = FRAMES_PER_SECOND // 4
"""Smallest number of consecutive frames of speech. A shorter rise, such as a click, is not speech."""
INAUDIBLE_DB, QUIET_DB = -70.0, -50.0
"""Levels of a band below which sound is inaudible, and below which it is quiet. Rounding noise of 16-bit samples is
inaudible; noise at -60 dB of full scale is quiet."""
_DB_PER_UNIT = 40.0
"""Decibels per unit of the scaled log-mel frames, whose values are log10 of the power, plus 4, divided by 4."""

Span = tuple[int, int]
"""A part of the recording: the index of its first frame, and the index of the frame after its last one."""


class VoiceActivity:
    """Finds speech and silence in one recording.

    rises: [frames], float64: rise over the noise floors in dB, as the mean of the bands.
    levels: [frames], float64: level of the loudest band in dB.
    """

    def __init__(self, frames: Frames, num_frames: int) -> None:
        levels = _smoothed(frames[:num_frames])
        floors = np.percentile(levels, FLOOR_PERCENT, axis=0) if num_frames else 0.0
        self.levels: NDArray[np.float64] = levels.max(axis=1)
        self.rises: NDArray[np.float64] = np.maximum(levels - floors, 0.0).mean(axis=1)

    @cached_property
    def speech(self) -> list[Span]:
        """The parts of the recording that may be speech, in order, without padding."""
        is_speech = (self.rises >= MIN_RISE_DB) & (self.levels >= INAUDIBLE_DB)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], is_speech, [False]]).astype(np.int8))).tolist()
        spans = zip(edges[::2], edges[1::2], strict=True)
        return [(start, end) for start, end in spans if end - start >= MIN_SPEECH_FRAMES]

    def is_silent(self, start: int, end: int) -> bool:
        """Whether the frames from `start` to `end - 1` are quiet and have no speech."""
        if bool((self.levels[start:end] >= QUIET_DB).any()):
            return False
        return not any(first < end and last > start for first, last in self.speech)


def overlap(spans: Sequence[Span], start: int, end: int) -> int:
    """Number of frames of `spans` from `start` to `end - 1`. The spans do not overlap each other."""
    return sum(max(min(last, end) - max(first, start), 0) for first, last in spans)


def kept_spans(speech: list[Span], num_frames: int, min_silence_frames: int, padding_frames: int) -> list[Span]:
    """Leave out long silence: return the parts of a recording that remain, in order. Each part starts at an even frame.

    speech: the parts with speech, in order.
    num_frames: length of the recording in frames.
    min_silence_frames: silence between speech that is shorter than this remains.
    padding_frames: frames of silence that remain before and after speech.
    """
    spans: list[Span] = []
    for start, end in speech:
        if spans and start - spans[-1][1] < min_silence_frames:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    kept: list[Span] = []
    for start, end in spans:
        first = max(start - padding_frames, 0)
        first -= first % FRAMES_PER_TOKEN
        end = min(end + padding_frames + (end + padding_frames) % FRAMES_PER_TOKEN, num_frames)
        if kept and first <= kept[-1][1]:
            kept[-1] = (kept[-1][0], end)
        else:
            kept.append((first, end))
    return kept


def _smoothed(frames: Frames) -> NDArray[np.float64]:
    """Level of each band in dB, averaged over the frames around each frame: [frames, BANDS], float64."""
    starts = range(0, len(frames), PART_FRAMES)
    parts = [_smoothed_part(frames, start, min(start + PART_FRAMES, len(frames))) for start in starts]
    return np.concatenate(parts) if parts else np.zeros((0, BANDS))


def _smoothed_part(frames: Frames, start: int, end: int) -> NDArray[np.float64]:
    """The part of the smoothed levels for the frames from `start` to `end - 1`."""
    first, last = max(start - SMOOTHED_FRAMES // 2, 0), min(end + SMOOTHED_FRAMES // 2, len(frames))
    read = frames[first:last]
    levels = read.reshape(len(read), BANDS, -1).mean(axis=2, dtype=np.float64) * _DB_PER_UNIT - _DB_PER_UNIT
    sums = np.concatenate([np.zeros((1, BANDS)), np.cumsum(levels, axis=0)])
    places = np.arange(start - first, end - first)
    begins = np.maximum(places - SMOOTHED_FRAMES // 2, 0)
    ends = np.minimum(places + SMOOTHED_FRAMES // 2 + 1, len(read))
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins)[:, None], dtype=np.float64)
