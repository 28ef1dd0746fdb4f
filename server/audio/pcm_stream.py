"""Decodes live audio that arrives in pieces (WAV, PCM without a header, or G.711) to mono PCM of 16 bits."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from server.audio import g711
from server.errors import InvalidRequest

MIN_RATE, MAX_RATE = 8_000, 48_000
MAX_CHANNELS = 8
_MAX_HEADER_BYTES = 1 << 16
_ENDLESS_BYTES = 0x7FFF0000
"""A WAV header that announces 0 bytes of audio, or at least this many, has an unknown length. Programs that write to a
pipe make such headers."""
_PCM, _EXTENSIBLE = 1, 0xFFFE


@dataclass
class PcmStream:
    """Decodes one stream. The pieces may end anywhere, even inside a sample.

    format: `pcm` (16 bits, little-endian, mono), `pcmu` or `pcma` (mu-law or A-law, 8,000 Hz), or None to detect it:
        WAV if the stream begins with a WAV header, else `pcm`.
    rate: samples a second. Given for `pcm`; replaced by the rate of the header for WAV, and by 8,000 for `pcmu` and
        `pcma`.
    """

    format: str | None
    rate: int
    _waiting: bytearray = field(default_factory=bytearray)
    _is_open: bool = False
    _channels: int = 1
    _left: int | None = None

    def __post_init__(self) -> None:
        if self.format in ("pcmu", "pcma"):
            self.rate = g711.RATE
        self._is_open = self.format is not None

    def add(self, data: bytes) -> bytes:
        """Add a piece. Returns the samples that it completes: mono PCM of 16 bits, little-endian.

        Raises InvalidRequest if a WAV header cannot be read, or has another format than PCM of 16 bits.
        """
        if self.format in ("pcmu", "pcma"):
            return g711.decode_ulaw(data) if self.format == "pcmu" else g711.decode_alaw(data)
        self._waiting += data
        if not self._is_open and not self._opened():
            return b""
        size = len(self._waiting) if self._left is None else min(len(self._waiting), self._left)
        size -= size % (2 * self._channels)
        piece = bytes(self._waiting[:size])
        del self._waiting[:size]
        if self._left is not None:
            self._left -= size
            if self._left < 2 * self._channels:
                self._waiting.clear()  # what follows the audio in a file
        if self._channels == 1:
            return piece
        mixed: bytes = np.frombuffer(piece, "<i2").reshape(-1, self._channels).mean(axis=1).astype("<i2").tobytes()
        return mixed

    def _opened(self) -> bool:
        """Read the WAV header, if the stream has one. Returns False if the header is not complete yet."""
        if not b"RIFF".startswith(bytes(self._waiting[:4])):
            self._is_open = True
            return True
        place, found = 12, False
        while len(self._waiting) >= place + 8:
            name, size = struct.unpack_from("<4sI", self._waiting, place)
            if name == b"data":
                if not found:
                    raise InvalidRequest("the WAV header has no format before its audio")
                self._is_open, self._left = True, size if 0 < size < _ENDLESS_BYTES else None
                del self._waiting[: place + 8]
                return True
            if place + 8 + size > _MAX_HEADER_BYTES:
                break
            if len(self._waiting) < place + 8 + size:
                return False
            if name == b"fmt ":
                self._read_format(bytes(self._waiting[place + 8 : place + 8 + size]))
                found = True
            place += 8 + size + size % 2
        if len(self._waiting) >= 12 and (self._waiting[8:12] != b"WAVE" or len(self._waiting) >= place + 8):
            raise InvalidRequest("the stream begins like WAV, and its header cannot be read")
        return False

    def _read_format(self, form: bytes) -> None:
        if len(form) < 16:
            raise InvalidRequest("the WAV header has a format that is too short")
        tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", form)
        if tag == _EXTENSIBLE and len(form) >= 26:
            tag = struct.unpack_from("<H", form, 24)[0]
        if tag != _PCM or bits != 16:
            raise InvalidRequest(
                f"a live WAV stream must have PCM of 16 bits, and this one has format {tag} with {bits} bits"
            )
        if not 1 <= channels <= MAX_CHANNELS:
            raise InvalidRequest(f"a live stream has 1 to {MAX_CHANNELS} channels, and this one has {channels}")
        check_rate(rate)
        self.rate, self._channels = rate, channels


def check_rate(rate: int) -> None:
    """Raise InvalidRequest unless `rate` is from `MIN_RATE` to `MAX_RATE` samples a second."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidRequest(f"`rate` must be from {MIN_RATE:,} to {MAX_RATE:,} samples a second, not {rate:,}", "rate")
