"""Buffer for the audio of a live session that is not committed yet, with detection of turns."""

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
"""Maximum length of uncommitted audio, if the client detects the turns itself."""


def decode_audio(text: str) -> bytes:
    """Decode the base64 text of the field `audio`. Raises InvalidRequest."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("`audio` is not base64", "audio") from None


class AudioSettings(Protocol):
    """Format of appended audio, and detection of its turns. rate: samples per second."""

    @property
    def rate(self) -> int: ...

    def pcm(self, data: bytes) -> bytes:
        """Convert the client's audio to 16-bit PCM. Raises InvalidRequest for incomplete samples."""

    def detector(self) -> SpeechTurns | None:
        """Create a detector of turns; None if the client ends the turns."""


@dataclass
class AudioBuffer:
    """Audio as 16-bit PCM, with a detector of turns.

    start: time of the first sample, in milliseconds since the beginning of the session.
    item_id: id of the conversation item that the audio will become.
    """

    settings: AudioSettings
    start: float = 0.0
    pcm: bytearray = field(default_factory=bytearray)
    item_id: str = field(default_factory=lambda: new_id("item"))
    detector: SpeechTurns | None = None

    def __post_init__(self) -> None:
        self._restart_detector()

    def use(self, settings: AudioSettings, is_same_format: bool, are_same_turns: bool) -> None:
        """Change the settings.

        The detector of turns starts again, unless its settings and the audio format stay the same.
        is_same_format: whether the audio format stays the same. are_same_turns: whether the settings of the turn
            detector stay the same.
        Raises InvalidRequest if the format changes while the buffer contains audio.
        """
        if not is_same_format and self.pcm:
            raise InvalidRequest("the audio format cannot change while the buffer has audio", "session")
        self.settings = settings
        if not (is_same_format and are_same_turns):
            self._restart_detector()

    def append(self, data: bytes) -> list[TurnEvent]:
        """Add the client's audio. Returns the beginnings and ends of speech that the detector has found in it.

        Raises InvalidRequest for invalid audio, and for more than `MAX_BUFFER_SECONDS` without a detector.
        """
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
        """Between turns, drop all audio but the end of the buffer.

        A turn that begins now needs this end as its padding.
        """
        detector = self.detector
        if detector is not None and not detector.speaking:
            kept = detector.prefix_milliseconds + 200
            excess = len(self.pcm) - kept * self._second_bytes // 1000
            if excess > 0:
                self._drop(excess - excess % 2)

    def take(self, start: float | None = None, end: float | None = None) -> bytes:
        """Remove all audio until `end`, and return the part from `start` to `end` as a WAV file.

        Times are in milliseconds since the beginning of the session. Without them, the whole buffer is returned.
        """
        first = 0 if start is None else self._offset(start)
        last = len(self.pcm) if end is None else self._offset(end)
        audio = bytes(self.pcm[first:last])
        self._drop(last)
        self.item_id = new_id("item")
        return _wav(audio, self.settings.rate)

    def copy(self, start: float | None = None) -> bytes:
        """Return the audio from `start` (a time in milliseconds) on as a WAV file. It stays in the buffer."""
        return _wav(bytes(self.pcm[0 if start is None else self._offset(start) :]), self.settings.rate)

    def clear(self) -> None:
        """Drop all audio and the turn in progress."""
        self._drop(len(self.pcm))
        self.end_turn()

    def end_turn(self) -> None:
        if self.detector is not None:
            self.detector.end_turn()

    @property
    def end(self) -> float:
        """End of the received audio, in milliseconds since the beginning of the session."""
        return self.start + 1000 * len(self.pcm) / self._second_bytes

    @property
    def _second_bytes(self) -> int:
        return 2 * self.settings.rate

    def _restart_detector(self) -> None:
        self.detector = self.settings.detector()
        self._origin = self.end

    def _offset(self, milliseconds: float) -> int:
        samples = round((milliseconds - self.start) * self.settings.rate / 1000)
        return min(max(2 * samples, 0), len(self.pcm))

    def _drop(self, size: int) -> None:
        del self.pcm[:size]
        self.start += 1000 * size / self._second_bytes


def _wav(pcm: bytes, rate: int) -> bytes:
    """Bytes of a WAV file with 16-bit mono PCM. rate: samples per second."""
    form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    return b"RIFF%bWAVEfmt %b%bdata%b%b" % (
        struct.pack("<I", 36 + len(pcm)),
        struct.pack("<I", len(form)),
        form,
        struct.pack("<I", len(pcm)),
        pcm,
    )
