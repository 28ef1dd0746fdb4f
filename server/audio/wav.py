"""Reads WAV files with PCM of 8 to 32 bits or floats, and mixes up to eight channels to one.

Sources: Microsoft and IBM 1991, Multimedia Programming Interface and Data Specifications 1.0, chapter 3; Microsoft,
"Multiple Channel Audio Data and WAVE Files", for the extensible format.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.audio.frames import Samples

MAX_CHANNELS = 8
MIN_RATE, MAX_RATE = 1_000, 192_000
MAX_AMPLITUDE = 1_000.0
"""Largest amplitude that is accepted. Floats should be from -1 to 1 but may be larger. Beyond this limit, computing the
power of the signal may overflow."""

_PCM, _FLOAT, _EXTENSIBLE = 0x0001, 0x0003, 0xFFFE
_SUBFORMAT_TAIL = bytes.fromhex("000000001000800000aa00389b71")
_FORMAT_CHUNKS = 16
_PIECE_SAMPLES = 1 << 20
"""Number of samples per channel that are converted at once. The intermediate float64 values would need much memory."""
_UNKNOWN_LENGTH = 0xFFFFFFFF


class AudioError(ValueError):
    """A file cannot be read as audio. The message is one line and says why."""


@dataclass(frozen=True)
class _WavFormat:
    """The content of the `fmt ` chunk.

    encoding: `_PCM` or `_FLOAT`. rate: samples a second. frame_bytes: bytes of one sample of all channels.
    bits: bits of one sample of one channel.
    """

    encoding: int
    channels: int
    rate: int
    frame_bytes: int
    bits: int


def max_size(data: bytes) -> tuple[int, float]:
    """Upper bounds of the size of a WAV file: samples per channel, and duration in seconds.

    Both are computed from the length and the format of the file. If its first chunks have no supported format, the file
    is assumed to have one channel, 8 bits and the rate `MIN_RATE`.
    """
    try:
        found = _format(_first_format(data))
    except AudioError:
        return len(data), len(data) / MIN_RATE
    samples = len(data) // found.frame_bytes
    return samples, samples / found.rate


def _first_format(data: bytes) -> bytes:
    """The first `fmt ` chunk of a file; empty if none of the first chunks is a `fmt ` chunk."""
    at = 12
    for _ in range(_FORMAT_CHUNKS):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"fmt ":
            return data[at + 8 : at + 8 + size]
        at += 8 + size + size % 2
    return b""


def _encoding(chunk: bytes) -> int | None:
    """The encoding that a `fmt ` chunk names; None for an incomplete chunk."""
    if len(chunk) < 16:
        return None
    encoding = int.from_bytes(chunk[:2], "little")
    if encoding == _EXTENSIBLE and len(chunk) >= 40 and chunk[26:40] == _SUBFORMAT_TAIL:
        return int.from_bytes(chunk[24:26], "little")
    return encoding


def is_pcm(data: bytes) -> bool:
    """Whether a file is uncompressed WAV. True for damaged files too, so that `read_wav` reports the damage."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return False
    encoding = _encoding(_first_format(data))
    return encoding is None or encoding in (_PCM, _FLOAT)


def read_wav(data: bytes, max_seconds: float) -> tuple[Samples, int]:
    """Read a WAV file. Returns mono samples, usually from -1 to 1, and their rate in Hz.

    Raises AudioError for a file that is not WAV, is compressed, damaged, empty, or longer than `max_seconds`.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise AudioError("the file is not WAV")
    found: _WavFormat | None = None
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        start = at + 8
        if name == b"fmt ":
            found = _format(data[start : start + size])
        elif name == b"data":
            if found is None:
                raise AudioError("the WAV file has audio data before its format")
            # A program that streams the file writes this length, because it does not know the real one yet.
            end = len(data) if size == _UNKNOWN_LENGTH else start + size
            if end > len(data):
                raise AudioError(
                    f"the WAV file is cut off: {size:,} bytes of audio were announced, but it has {len(data) - start:,}"
                )
            return _mono_samples(data[start:end], found, max_seconds), found.rate
        at = start + size + size % 2
    raise AudioError("the WAV file contains no audio")


def _format(chunk: bytes) -> _WavFormat:
    encoding = _encoding(chunk)
    if encoding is None:
        raise AudioError("the WAV file has an incomplete format")
    _, channels, rate, _, frame_bytes, bits = struct.unpack("<HHIIHH", chunk[:16])
    if encoding not in (_PCM, _FLOAT):
        raise AudioError(f"the WAV file contains the format {encoding:#06x}, which is neither PCM nor float")
    if bits not in ((8, 16, 24, 32) if encoding == _PCM else (32, 64)):
        raise AudioError(
            f"the WAV file has {bits} bits per sample; PCM of 8, 16, 24 or 32 and float of 32 or 64 are supported"
        )
    if not 1 <= channels <= MAX_CHANNELS:
        raise AudioError(f"the WAV file has {channels} channels; 1 to {MAX_CHANNELS} are supported")
    if not MIN_RATE <= rate <= MAX_RATE:
        raise AudioError(f"the WAV file has {rate} samples per second; {MIN_RATE:,} to {MAX_RATE:,} are supported")
    if frame_bytes != channels * bits // 8:
        raise AudioError(f"the WAV file is damaged: {frame_bytes} bytes for {channels} samples of {bits} bits")
    return _WavFormat(encoding, channels, rate, frame_bytes, bits)


def _mono_samples(data: bytes, form: _WavFormat, max_seconds: float) -> Samples:
    count = len(data) // form.frame_bytes
    if count == 0:
        raise AudioError("the WAV file contains no audio")
    if count > max_seconds * form.rate:
        raise AudioError(f"the recording is {count / form.rate:.1f} seconds long; the limit is {max_seconds:g}")
    mono = np.empty(count, dtype=np.float32)
    for first in range(0, count, _PIECE_SAMPLES):
        last = min(first + _PIECE_SAMPLES, count)
        values = _decode_samples(data[first * form.frame_bytes : last * form.frame_bytes], form)
        mono[first:last] = values.reshape(-1, form.channels).mean(axis=1, dtype=np.float64)
    check_amplitude(mono, "WAV")
    return mono


def check_amplitude(samples: Samples, name: str) -> None:
    """Raise AudioError if a sample is NaN, infinite or beyond `MAX_AMPLITUDE`. name: file format, for the message."""
    largest = max(float(samples.max()), -float(samples.min()))
    if not np.isfinite(largest):
        raise AudioError(f"the {name} file contains NaN or infinity")
    if largest > MAX_AMPLITUDE:
        raise AudioError(f"the {name} file contains samples beyond {MAX_AMPLITUDE:g}; floats are from -1 to 1")


def _decode_samples(data: bytes, form: _WavFormat) -> NDArray[np.float64] | NDArray[np.float32]:
    """Decode all samples to floats, channels interleaved. PCM of 8 bits is unsigned, wider PCM is signed."""
    if form.encoding == _FLOAT:
        with np.errstate(over="ignore"):
            return np.asarray(np.frombuffer(data, dtype=f"<f{form.bits // 8}"), dtype=np.float32)
    if form.bits == 8:
        return (np.frombuffer(data, dtype=np.uint8).astype(np.float32) - 128) / 128
    if form.bits == 24:
        wide = np.zeros((len(data) // 3, 4), dtype=np.uint8)
        wide[:, 1:] = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3)
        return np.asarray(wide.view("<i4")[:, 0], dtype=np.float64) / (1 << 31)
    return np.asarray(np.frombuffer(data, dtype=f"<i{form.bits // 8}"), dtype=np.float64) / (1 << form.bits - 1)
