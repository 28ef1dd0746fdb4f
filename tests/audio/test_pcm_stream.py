"""Audio that arrives in pieces is read: WAV with and without a length, and plain PCM. Bad headers are refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from server.audio.pcm_stream import PcmStream
from server.errors import InvalidRequest
from tests.audio.wavs import wav

SAMPLES = np.linspace(-0.9, 0.9, 1_000, dtype=np.float32)
PCM = (SAMPLES * 32767).astype("<i2")


def header(
    size: int, *, tag: int = 1, channels: int = 1, rate: int = 16_000, bits: int = 16, extra: bytes = b""
) -> bytes:
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits) + extra
    junk = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    chunk = b"fmt " + struct.pack("<I", len(form)) + form
    return b"RIFF\xff\xff\xff\xffWAVE" + junk + chunk + b"data" + struct.pack("<I", size)


def decoded(data: bytes, piece: int, format: str | None = None) -> tuple[np.ndarray, PcmStream]:
    stream = PcmStream(format, 16_000)
    parts = [stream.add(data[at : at + piece]) for at in range(0, len(data), piece)]
    return np.frombuffer(b"".join(parts), "<i2"), stream


@pytest.mark.parametrize("piece", [1, 7, 100_000])
@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF, len(PCM) * 2], ids=hex)
def test_wav(piece: int, size: int) -> None:
    end = b"LIST" + bytes(100) if size == len(PCM) * 2 else b""
    found, stream = decoded(header(size, rate=8_000) + PCM.tobytes() + end, piece)
    np.testing.assert_array_equal(found, PCM)
    assert stream.rate == 8_000


@pytest.mark.parametrize("piece", [1, 3, 100_000])
def test_channels_are_mixed(piece: int) -> None:
    both = np.stack([PCM, np.zeros_like(PCM)], axis=1)
    found, _ = decoded(header(0, channels=2) + both.tobytes(), piece)
    np.testing.assert_array_equal(found, (PCM / 2).astype("<i2"))


def test_extensible_wav_and_the_writer_of_the_tests() -> None:
    subformat = struct.pack("<HHI", 22, 16, 0) + struct.pack("<H", 1) + bytes(14)
    found, _ = decoded(header(0, tag=0xFFFE, extra=subformat) + PCM.tobytes(), 64)
    np.testing.assert_array_equal(found, PCM)
    assert len(decoded(wav(SAMPLES, bits=16), 64)[0]) == len(SAMPLES)


@pytest.mark.parametrize("piece", [1, 3, 100_000])
def test_plain_pcm(piece: int) -> None:
    np.testing.assert_array_equal(decoded(PCM.tobytes(), piece)[0], PCM)
    begins_like_wav = b"RIFF" + PCM.tobytes()
    assert len(decoded(begins_like_wav, piece, "pcm")[0]) == len(PCM) + 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (header(0, tag=3, bits=32), "format 3 with 32 bits"),
        (header(0, bits=24), "24 bits"),
        (header(0, channels=0), "0"),
        (header(0, channels=9), "9"),
        (header(0, rate=7_999), "7,999"),
        (header(0, rate=96_000), "96,000"),
        (b"RIFF\0\0\0\0AVI " + bytes(100), "cannot be read"),
        (b"RIFF\0\0\0\0WAVEdata" + bytes(100), "no format"),
        (b"RIFF\0\0\0\0WAVEfmt \2\0\0\0ab" + bytes(100), "too short"),
        (b"RIFF\0\0\0\0WAVEjunk\xff\xff\xff\x7f" + bytes(100), "cannot be read"),
    ],
)
@pytest.mark.parametrize("piece", [1, 100_000])
def test_other_wav_is_refused(data: bytes, message: str, piece: int) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decoded(data, piece)


def test_an_endless_header_is_refused_in_little_memory() -> None:
    stream = PcmStream(None, 16_000)
    stream.add(b"RIFF\0\0\0\0WAVE")
    with pytest.raises(InvalidRequest):
        for _ in range(1 << 12):
            stream.add(b"junk" + struct.pack("<I", 1 << 10) + bytes(1 << 10))
