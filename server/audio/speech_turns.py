"""Finds where speech begins and ends in audio that arrives in pieces, by its loudness.

Sound counts as speech if it is louder than the background by a margin. The background level follows falling loudness at
once, and rising loudness slowly. Music and other loud sounds therefore count as speech. A turn is the time from the
beginning of speech to a pause.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

FRAME_MILLISECONDS = 10
"""Length of a frame. It is up to one sample shorter if the rate is not a multiple of 100."""
START_FRAMES = 5
"""Number of consecutive loud frames with which speech begins (50 ms). A shorter sound is a click."""
MAX_TURN_MILLISECONDS = 28_000
"""Longest turn. It is then ended without a pause, so that it fits with its padding into a window of 30 s."""
_SMOOTHING = 0.3
_RISE = 0.002
"""Largest rise of the background level per frame, in log10 of the power: 2 dB a second."""
_MAX_FIRST = -4.3
"""Largest background level assumed at the start, in log10 of the power (-43 dBFS). Some audio begins with speech."""
_MIN_POWER, _MIN_SPEECH = 1e-7, -5.0
"""Lower bound of the measured power of a frame, and the lowest level of speech in log10 of the power (-50 dBFS)."""


class TurnEvent(NamedTuple):
    """The beginning or end of a turn.

    milliseconds: time since the first sample of the stream. A turn includes the padding before and after its speech.
    """

    kind: Literal["started", "stopped"]
    milliseconds: int


@dataclass
class SpeechTurns:
    """Detects the turns of one stream.

    rate: samples a second.
    threshold: 0 to 1. Speech is louder than the background by at least 4 dB (0) to 20 dB (1).
    prefix_milliseconds: length of the audio before the first loud frame that belongs to a turn.
    silence_milliseconds: length of the pause that ends a turn.
    at: milliseconds of audio that have been processed.
    speaking: whether a turn is in progress.
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
        """Process more samples. Returns the beginnings and ends of turns that were found, in order.

        pcm: mono samples, PCM of 16 bits, little-endian.
        """
        size = self._size
        samples = np.concatenate([self._rest, np.frombuffer(pcm, dtype="<i2")])
        whole = len(samples) // size * size
        self._rest = samples[whole:]
        frames = samples[:whole].reshape(-1, size).astype(np.float32) / 32768
        levels = np.log10(np.maximum(np.square(frames).mean(axis=1), _MIN_POWER)).tolist()
        return [event for level in levels if (event := self._frame(level)) is not None]

    def end_turn(self) -> None:
        """End the turn in progress without an event, because the client has committed or cleared its audio."""
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
