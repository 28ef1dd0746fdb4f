"""Find where speech begins and ends in audio that arrives in pieces, by its loudness.

Speech is louder than the background by a margin. The background level falls at once and rises slowly. There is no
model of speech, so music and other loud sounds count as speech.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

FRAME_MILLISECONDS = 10
"""Length of a frame, less up to one sample where the rate is no multiple of 100."""
START_FRAMES = 5
"""Speech begins with 50 ms of loud frames. A shorter sound is a click."""
MAX_TURN_MILLISECONDS = 28_000
"""A longer turn is ended, so that it fits into a window of 30 s with its padding."""
_SMOOTHING = 0.3
_RISE = 0.002
"""Rise of the background level in a frame, in powers of 10: 2 dB a second."""
_MAX_FIRST = -4.3
"""Logarithm of the largest background that is assumed at the start (-43 dBFS), for audio that begins with speech."""
_MIN_POWER, _MIN_SPEECH = 1e-7, -5.0
"""Power of the lowest background, and the logarithm of the lowest power of speech (-50 dBFS)."""


class TurnEvent(NamedTuple):
    """Begin or end of speech. milliseconds: its time since the first sample, padding included."""

    kind: Literal["started", "stopped"]
    milliseconds: int


@dataclass
class SpeechTurns:
    """The detector of one stream.

    rate: samples a second.
    threshold: 0 to 1. Speech is louder than the background by 4 dB (0) to 20 dB (1).
    prefix_milliseconds: audio that a turn has before its first loud frame.
    silence_milliseconds: quiet that ends a turn.
    """

    rate: int
    threshold: float = 0.5
    prefix_milliseconds: int = 300
    silence_milliseconds: int = 500
    at: float = 0.0
    speaking: bool = False

    def __post_init__(self) -> None:
        self._rest = np.zeros(0, dtype=np.int16)
        self._size = self.rate * FRAME_MILLISECONDS // 1000
        self._frame_milliseconds = 1000 * self._size / self.rate
        self._level = self._background = math.log10(_MIN_POWER)
        self._is_new = True
        self._loud, self._quiet = 0, 0.0
        self._turn_start = 0.0

    def add(self, pcm: bytes) -> list[TurnEvent]:
        """Listen to more samples (PCM of 16 bits), and return what has begun or ended."""
        size = self._size
        samples = np.concatenate([self._rest, np.frombuffer(pcm, dtype="<i2")])
        whole = len(samples) // size * size
        self._rest = samples[whole:]
        frames = samples[:whole].reshape(-1, size).astype(np.float32) / 32768
        levels = np.log10(np.maximum(np.square(frames).mean(axis=1), _MIN_POWER)).tolist()
        return [event for level in levels if (event := self._frame(level)) is not None]

    def end_turn(self) -> None:
        """Forget the turn in progress: the client has committed or cleared its audio."""
        self.speaking = False
        self._loud, self._quiet = 0, 0.0

    def _frame(self, level: float) -> TurnEvent | None:
        if self._is_new:
            self._level, self._background, self._is_new = level, min(level, _MAX_FIRST), False
        self._level += _SMOOTHING * (level - self._level)
        self._background = min(self._background + _RISE, self._level)
        is_loud = self._level > max(_MIN_SPEECH, self._background + 0.4 + 1.6 * self.threshold)
        self.at += self._frame_milliseconds
        if not self.speaking:
            self._loud = self._loud + 1 if is_loud else 0
            if self._loud < START_FRAMES:
                return None
            self.speaking, self._quiet = True, 0.0
            self._turn_start = self.at - self._loud * self._frame_milliseconds
            return TurnEvent("started", max(0, round(self._turn_start - self.prefix_milliseconds)))
        self._quiet = 0.0 if is_loud else self._quiet + self._frame_milliseconds
        if self._quiet < self.silence_milliseconds and self.at - self._turn_start < MAX_TURN_MILLISECONDS:
            return None
        self.end_turn()
        return TurnEvent("stopped", round(self.at))
