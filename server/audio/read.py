"""Reads a recording of any supported format as mono samples at 16 kHz."""

from __future__ import annotations

from server.audio.containers import container_of
from server.audio.decoder import Decoder
from server.audio.frames import SAMPLE_RATE, Samples
from server.audio.resample import resample
from server.audio.wav import is_pcm, max_size, read_wav

_RESAMPLED_BYTES = 12
"""Bytes of memory per sample of a WAV file while it is resampled: once in float32, once in float64."""


def max_seconds_of(data: bytes, limit: float) -> float | None:
    """Upper bound of the length of a recording in seconds; None if only decoding the file tells its length.

    limit: longest recording that is accepted, in seconds. The result is at most `limit`.
    """
    return min(limit, max_size(data)[1]) if is_pcm(data) else None


def reading_bytes(data: bytes) -> int:
    """Bytes of memory that reading a recording may need besides its samples at 16 kHz.

    The memory of the decoder is not counted, because it runs in another process.
    """
    if not is_pcm(data):
        return 2 * len(data)
    return 3 * len(data) + _RESAMPLED_BYTES * max_size(data)[0]


def read_audio(data: bytes, max_seconds: float, decoder: Decoder) -> Samples:
    """Read a recording as mono samples at 16 kHz, from -1 to 1.

    max_seconds: longest recording that is accepted.
    decoder: reads all files except WAV files with PCM or float.
    Raises AudioError for a file that is not supported, damaged, empty or too long. Raises NotReady if the process of
    the decoder does not answer in time.
    """
    if is_pcm(data):
        samples, rate = read_wav(data, max_seconds)
        return resample(samples, rate, SAMPLE_RATE)
    return decoder.decode(data, container_of(data), max_seconds)
