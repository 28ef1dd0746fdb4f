"""WAV files with PCM or float samples are read exactly. For any other file, the error says what is wrong."""

from __future__ import annotations

import io
import struct
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.audio.wav import AudioError, is_pcm, read_wav
from tests.audio.wavs import chunk, wav
from tests.parity.speech import recording

SOUND = recording(0.3, seed=1)
KINDS = [(8, False), (16, False), (24, False), (32, False), (32, True), (64, True)]


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(("bits", "is_float"), KINDS)
def test_written_samples_are_read_back(bits: int, is_float: bool, extensible: bool) -> None:
    samples, rate = read_wav(wav(SOUND, 22_050, bits, is_float=is_float, extensible=extensible), 10)
    assert rate == 22_050 and samples.dtype == np.float32
    np.testing.assert_allclose(samples, SOUND, atol=1e-7 if is_float else 1.6 / 2 ** (bits - 1) + 1e-7)


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_files_of_the_wave_module_are_read_exactly(bits: int) -> None:
    """Files that Python's `wave` module writes are read exactly, with the extreme and middle sample values."""
    width = bits // 8
    values = [-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1]
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(width)
        writer.setframerate(8000)
        shift = 128 if bits == 8 else 0
        writer.writeframes(b"".join((v + shift).to_bytes(width, "little", signed=bits > 8) for v in values))
    samples, rate = read_wav(file.getvalue(), 10)
    assert rate == 8000
    np.testing.assert_allclose(samples, np.array(values) / 2 ** (bits - 1), atol=1e-7)


def test_channels_are_mixed_to_their_mean() -> None:
    left, right = SOUND, recording(0.3, seed=9)
    samples, _ = read_wav(wav(np.stack([left, right], axis=1), bits=32, is_float=True), 10)
    np.testing.assert_allclose(samples, (left + right) / 2, atol=1e-7)


def test_other_chunks_odd_sizes_and_unknown_lengths_are_accepted() -> None:
    expected, _ = read_wav(wav(SOUND), 10)
    between = chunk(b"LIST", b"INFOabc") + chunk(b"fact", b"1234")
    for data in (wav(SOUND, chunks=between), wav(SOUND, size=0xFFFFFFFF), wav(SOUND) + chunk(b"LIST", b"after")):
        np.testing.assert_array_equal(read_wav(data, 10)[0][: len(expected)], expected)


REJECTED = [
    (b"", "not WAV"),
    (b"ID3\x04" + bytes(40), "not WAV"),
    (b"RIFF\0\0\0\0AVI " + bytes(40), "not WAV"),
    (wav(SOUND, kind=0x55), "0x0055"),
    (wav(SOUND, kind=7, extensible=True), "0x0007"),
    (wav(SOUND, channels=0), "0 channels"),
    (wav(SOUND, channels=9), "9 channels"),
    (wav(SOUND, rate=10), "10 samples"),
    (wav(SOUND, rate=4_000_000), "4000000 samples"),
    (wav(SOUND, align=3), "3 bytes"),
    (wav(SOUND, size=10_000_000), "cut off"),
    (wav(SOUND[:0]), "no audio"),
    (wav(SOUND)[:36], "no audio"),
    (b"RIFF\0\0\0\0WAVE" + chunk(b"data", b"1234"), "before its format"),
    (b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", b"1234"), "incomplete format"),
    (wav(np.full(9, np.nan), bits=32, is_float=True), "NaN or infinity"),
    (wav(np.full(9, 1e300), bits=64, is_float=True), "NaN or infinity"),
    (wav(np.full(9, -1001.0), bits=32, is_float=True), "beyond 1000"),
    (wav(recording(11.0)), "11.0 seconds"),
]


@pytest.mark.parametrize(("data", "expected"), REJECTED, ids=[expected for _, expected in REJECTED])
def test_errors_say_what_is_wrong(data: bytes, expected: str) -> None:
    with pytest.raises(AudioError, match=expected):
        read_wav(data, 10)


@given(st.binary(max_size=60), st.integers(0, 60))
def test_a_damaged_file_is_an_error_or_finite_samples(noise: bytes, at: int) -> None:
    data = bytearray(wav(SOUND[:50]))
    data[at : at + len(noise)] = noise
    try:
        samples, _ = read_wav(bytes(data), 10)
    except AudioError:
        return
    assert np.isfinite(samples).all() and len(samples)


def test_error_for_unsupported_bits_names_them() -> None:
    data = bytearray(wav(SOUND))
    data[34:36] = struct.pack("<H", 12)
    with pytest.raises(AudioError, match="12 bits"):
        read_wav(bytes(data), 10)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (wav(SOUND), True),
        (wav(SOUND, bits=32, is_float=True, extensible=True), True),
        (wav(SOUND)[:30], True),
        (wav(SOUND, channels=0), True),
        (wav(SOUND, kind=7), False),
        (wav(SOUND, kind=0x55, extensible=True), False),
        (b"OggS" + bytes(40), False),
        (b"", False),
    ],
)
def test_compressed_files_are_told_apart(data: bytes, expected: bool) -> None:
    assert is_pcm(data) == expected
