"""Read WAV files: PCM of 8 to 32 bits or floats, up to eight channels mixed to one.

The error for any other file names its format if its first bytes identify it.
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
"""Floats should be from -1 to 1 but may be larger. Above this limit the power of the signal overflows."""

_PCM, _FLOAT, _EXTENSIBLE = 0x0001, 0x0003, 0xFFFE
_SUBFORMAT_TAIL = bytes.fromhex("000000001000800000aa00389b71")
_FORMAT_CHUNKS = 16
_PIECE_SAMPLES = 1 << 20
"""Samples that are converted at once, because the intermediate numbers are in float64."""
_UNKNOWN_LENGTH = 0xFFFFFFFF
_COMPRESSED = {
    0x0002: "ADPCM",
    0x0006: "A-law",
    0x0007: "mu-law",
    0x0011: "IMA ADPCM",
    0x0031: "GSM 6.10",
    0x0050: "MPEG",
    0x0055: "MP3",
    0x00FF: "AAC",
    0x0161: "WMA",
}
_CONTAINERS = (
    (0, b"ID3", "MP3"),
    (0, b"fLaC", "FLAC"),
    (0, b"OggS", "Ogg"),
    (4, b"ftyp", "MP4"),
    (0, b"\x1aE\xdf\xa3", "WebM"),
    (0, b"FORM", "AIFF"),
    (0, b".snd", "AU"),
    (0, b"#!AMR", "AMR"),
    (0, b"caff", "CAF"),
    (0, b"0&\xb2u", "WMA"),
    (0, b"RF64", "RF64"),
    (0, b"BW64", "BW64"),
    (0, b"RIFX", "RIFX"),
)


class AudioError(ValueError):
    """A file cannot be read as audio. The message is one line and says why."""


@dataclass(frozen=True)
class _WavFormat:
    """The content of the `fmt ` chunk. encoding: PCM or float."""

    encoding: int
    channels: int
    rate: int
    frame_bytes: int
    bits: int


def max_size(data: bytes) -> tuple[int, float]:
    """Upper bounds of the samples per channel and of the seconds of a file, from its format alone.

    A file whose format is not among its first chunks counts as one of 8 bits and `MIN_RATE`.
    """
    at = 12
    for _ in range(_FORMAT_CHUNKS):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"fmt ":
            try:
                found = _format(data[at + 8 : at + 8 + size])
            except AudioError:
                break
            samples = len(data) // found.frame_bytes
            return samples, samples / found.rate
        at += 8 + size + size % 2
    return len(data), len(data) / MIN_RATE


def read_wav(data: bytes, max_seconds: float) -> tuple[Samples, int]:
    """Read a file to mono samples from -1 to 1 and their rate in Hz.

    Raises AudioError for a file that is not WAV, is compressed, damaged, empty, or longer than `max_seconds`.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise AudioError(f"the file is {_name_of(data)}; only WAV files are supported")
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


def _name_of(data: bytes) -> str:
    for offset, magic, name in _CONTAINERS:
        if data[offset : offset + len(magic)] == magic:
            return name
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:
        return "AAC" if data[1] & 0xF6 == 0xF0 else "MP3"
    return "empty" if not data else "of an unknown format"


def _format(chunk: bytes) -> _WavFormat:
    if len(chunk) < 16:
        raise AudioError("the WAV file has an incomplete format")
    encoding, channels, rate, _, frame_bytes, bits = struct.unpack("<HHIIHH", chunk[:16])
    if encoding == _EXTENSIBLE and len(chunk) >= 40 and chunk[26:40] == _SUBFORMAT_TAIL:
        encoding = int.from_bytes(chunk[24:26], "little")
    if encoding not in (_PCM, _FLOAT):
        name = _COMPRESSED.get(encoding, f"format {encoding:#06x}")
        raise AudioError(f"the WAV file contains {name}; only PCM and float are supported")
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
    largest = max(float(mono.max()), -float(mono.min()))
    if not np.isfinite(largest):
        raise AudioError("the WAV file contains NaN or infinity")
    if largest > MAX_AMPLITUDE:
        raise AudioError(f"the WAV file contains samples beyond {MAX_AMPLITUDE:g}; floats are from -1 to 1")
    return mono


def _decode_samples(data: bytes, form: _WavFormat) -> NDArray[np.float64] | NDArray[np.float32]:
    """All samples, channels interleaved. PCM of 8 bits is unsigned, wider PCM is signed."""
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
