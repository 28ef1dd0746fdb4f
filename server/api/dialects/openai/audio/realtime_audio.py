"""The audio of a live session that is not committed yet, and the turns in it."""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass, field
from typing import Protocol

from server.api.dialects.openai.common import new_id
from server.audio.speech_turns import SpeechTurns, TurnEvent
from server.errors import InvalidRequest

MAX_BUFFER_SECONDS = 120
"""Audio that a client may append before it commits, if it detects turns itself."""


def decode_audio(text: str) -> bytes:
    """The bytes of `audio`. Raises InvalidRequest."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("`audio` is not base64", "audio") from None


class AudioSettings(Protocol):
    """The format of audio that is appended, and how its turns are found.

    rate: samples a second.
    """

    @property
    def rate(self) -> int: ...

    def pcm(self, data: bytes) -> bytes:
        """Audio of the client as PCM of 16 bits. Raises InvalidRequest."""

    def detector(self) -> SpeechTurns | None:
        """A new detector of turns; None if the client ends them."""


@dataclass
class AudioBuffer:
    """PCM of 16 bits. start: time of its first sample since the session began, in milliseconds."""

    settings: AudioSettings
    start: float = 0.0
    pcm: bytearray = field(default_factory=bytearray)
    item_id: str = field(default_factory=lambda: new_id("item"))
    detector: SpeechTurns | None = None

    def __post_init__(self) -> None:
        self._restart_detector()

    def use(self, settings: AudioSettings, is_same_format: bool, are_same_turns: bool) -> None:
        """Use other settings from now on. Raises InvalidRequest for a new format while there is audio."""
        if not is_same_format and self.pcm:
            raise InvalidRequest("the audio format cannot change while the buffer has audio", "session")
        self.settings = settings
        if not (is_same_format and are_same_turns):
            self._restart_detector()

    def append(self, data: bytes) -> list[TurnEvent]:
        """Add audio of the client, and return where speech begins and ends. Raises InvalidRequest."""
        pcm = self.settings.pcm(data)
        if self.detector is None:
            if len(self.pcm) + len(pcm) > MAX_BUFFER_SECONDS * self._second_bytes:
                raise InvalidRequest(
                    f"the buffer would have more than {MAX_BUFFER_SECONDS} s of audio; commit or clear it", "audio"
                )
            self.pcm += pcm
            return []
        self.pcm += pcm
        events = self.detector.add(pcm)
        return [event._replace(milliseconds=event.milliseconds + round(self._origin)) for event in events]

    def trim(self) -> None:
        """Drop audio before the padding of a turn that may begin now."""
        detector = self.detector
        if detector is not None and not detector.speaking:
            kept = detector.prefix_milliseconds + 200
            excess = len(self.pcm) - kept * self._second_bytes // 1000
            if excess > 0:
                self._drop(excess - excess % 2)

    def take(self, start: float | None = None, end: float | None = None) -> bytes:
        """Remove the audio until `end`, and return it from `start` on as a WAV file. Times are in milliseconds."""
        first = 0 if start is None else self._offset(start)
        last = len(self.pcm) if end is None else self._offset(end)
        audio = bytes(self.pcm[first:last])
        self._drop(last)
        self.item_id = new_id("item")
        return _wav(audio, self.settings.rate)

    def copy(self, start: float | None = None) -> bytes:
        """The audio from a time in milliseconds on, as a WAV file. It stays in the buffer."""
        return _wav(bytes(self.pcm[0 if start is None else self._offset(start) :]), self.settings.rate)

    def clear(self) -> None:
        """Drop all audio and the turn in progress."""
        self._drop(len(self.pcm))
        self.end_turn()

    def end_turn(self) -> None:
        if self.detector is not None:
            self.detector.end_turn()

    @property
    def _second_bytes(self) -> int:
        return 2 * self.settings.rate

    def _restart_detector(self) -> None:
        self.detector = self.settings.detector()
        self._origin = self.start + 1000 * len(self.pcm) / self._second_bytes

    def _offset(self, milliseconds: float) -> int:
        samples = round((milliseconds - self.start) * self.settings.rate / 1000)
        return min(max(2 * samples, 0), len(self.pcm))

    def _drop(self, size: int) -> None:
        del self.pcm[:size]
        self.start += 1000 * size / self._second_bytes


def _wav(pcm: bytes, rate: int) -> bytes:
    """A WAV file of mono PCM of 16 bits."""
    form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    return b"RIFF%bWAVEfmt %b%bdata%b%b" % (
        struct.pack("<I", 36 + len(pcm)),
        struct.pack("<I", len(form)),
        form,
        struct.pack("<I", len(pcm)),
        pcm,
    )
