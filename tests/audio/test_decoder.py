"""Compressed recordings are decoded to the samples that were encoded. Any other file gives an `AudioError`."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from server.audio.containers import container_of
from server.audio.decoder import Decoder
from server.audio.read import max_seconds_of, read_audio, reading_bytes
from server.audio.resample import resample
from server.audio.wav import AudioError
from tests.audio.compressed import FORMATS, LOSSLESS, encode
from tests.audio.wavs import wav
from tests.parity.speech import recording

SPEECH = recording(1.2, seed=2, rate=16_000)
RATES = {"webm": 48_000, "ogg-opus": 48_000}
"""Sampling rate in Hz of formats that need a special one: Opus always has 48 kHz."""
DELAYED = ("aac", "wav-mp3")
"""Formats that do not store the delay of their encoder, so that decoded samples are shifted."""
MARGIN = 1600


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    one = Decoder()
    yield one
    one.close()


def aligned_error(ours: np.ndarray, original: np.ndarray) -> tuple[int, float]:
    """Align decoded samples with the original.

    Returns the best shift in samples, and the relative energy of the error.
    """
    count = min(len(ours), len(original))
    inner = original[MARGIN : count - MARGIN]
    shift = int(np.argmax(np.correlate(ours[:count], inner, mode="valid"))) - MARGIN
    rest = ours[MARGIN + shift :][: len(inner)] - inner
    return shift, float((rest**2).sum() / (inner**2).sum())


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_decoded(decoder: Decoder, name: str) -> None:
    rate = RATES.get(name, 16_000)
    smooth = np.convolve(SPEECH, np.hanning(9) / np.hanning(9).sum(), mode="same").astype(np.float32)
    samples = read_audio(encode(name, resample(smooth, 16_000, rate), rate), 10, decoder)
    assert samples.dtype == np.float32 and abs(len(samples) - len(smooth)) < 1_700
    shift, error = aligned_error(samples, smooth)
    assert shift > 500 if name in DELAYED else abs(shift) <= 2, "the delay of an encoder is removed"
    assert error < 0.05


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_formats_are_exact(decoder: Decoder, name: str) -> None:
    pcm = np.round(SPEECH * 32_000) / 32_768
    np.testing.assert_array_equal(read_audio(encode(name, pcm), 10, decoder), pcm.astype(np.float32))


def test_channels_are_mixed_to_their_mean_and_rates_changed(decoder: Decoder) -> None:
    stereo = np.stack([recording(1.0, seed=5, rate=44_100), recording(1.0, seed=6, rate=44_100)], axis=1)
    samples = read_audio(encode("flac", stereo, 44_100), 10, decoder)
    expected = read_audio(wav(stereo, 44_100), 10, decoder)
    assert abs(len(samples) - len(expected)) <= 32
    shift, error = aligned_error(samples, expected)
    assert shift == 0 and error < 0.01


def test_a_video_track_is_left_out(decoder: Decoder) -> None:
    import io

    import av

    target = io.BytesIO()
    with av.open(target, "w", format="mp4") as file:
        video = file.add_stream("mpeg4", rate=5)
        video.width = video.height = 32
        sound = file.add_stream("aac", rate=16_000, layout="mono")
        for at in range(5):
            picture = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
            picture.pts = at
            file.mux(video.encode(picture))
        for first in range(0, 16_000, 1024):
            frame = av.AudioFrame.from_ndarray(SPEECH[None, first : first + 1024], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 16_000, first
            file.mux(sound.encode(frame))
        file.mux(sound.encode(None))
        file.mux(video.encode(None))
    assert abs(len(read_audio(target.getvalue(), 10, decoder)) - 16_000) < 1_700


REFUSED = [
    (b"", "empty"),
    (b"FORM\0\0\0\0AIFF", "AIFF; supported are WAV, MP3"),
    (b"#!AMR\n" + bytes(40), "AMR"),
    (b"hello, this is text", "unknown format"),
    (b"#EXTM3U\n#EXTINF:9,\nfile:///etc/passwd\n", "unknown format"),
    (b"RIFF\0\0\0\0AVI " + bytes(40), "unknown format"),
    (b"ffconcat version 1.0\nfile '/etc/passwd'\n", "unknown format"),
    (b"ID3\x04" + bytes(400), "MP3 file"),
    (b"\xff\xfb\x90\x64" + bytes(40), "MP3 file"),
    (b"\xff\xf1\x50\x80" + bytes(40), "AAC file"),
    (b"fLaC" + bytes(400), "FLAC file"),
    (b"OggS" + bytes(400), "Ogg file"),
    (b"\0\0\0\x20ftypM4A " + bytes(400), "MP4 file"),
    (b"\x1aE\xdf\xa3" + bytes(400), "WebM file"),
    (b"RF64" + bytes(400), "RF64 file"),
    (wav(SPEECH, kind=0x11), "WAV file contains adpcm_ima_wav, which is not supported"),
]


@pytest.mark.parametrize(("data", "expected"), REFUSED, ids=[expected for _, expected in REFUSED])
def test_other_files_are_refused_by_name(decoder: Decoder, data: bytes, expected: str) -> None:
    with pytest.raises(AudioError, match=expected):
        read_audio(data, 10, decoder)


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_an_error_or_finite_samples(decoder: Decoder, name: str) -> None:
    data = encode(name, SPEECH[:8000], RATES.get(name, 16_000))
    chooser = random.Random(name)
    outcomes = set()
    for at in range(24):
        damaged = bytearray(data)
        if at % 3 == 0:
            del damaged[chooser.randrange(len(damaged)) :]
        elif at % 3 == 1:
            for _ in range(chooser.choice([1, 8, 100])):
                damaged[chooser.randrange(len(damaged))] = chooser.randrange(256)
        else:
            start = chooser.randrange(len(damaged))
            damaged[start : start + 64] = struct.pack("<q", -1) * 8
        try:
            samples = read_audio(bytes(damaged), 10, decoder)
        except AudioError as error:
            assert "\n" not in str(error) and str(error).startswith("the ")
            outcomes.add("refused")
        else:
            assert len(samples) and np.isfinite(samples).all() and len(samples) <= 160_000
            outcomes.add("decoded")
    if not name.startswith("ogg"):  # pages of Ogg have checksums
        assert "decoded" in outcomes
    np.testing.assert_array_equal(
        read_audio(data, 10, decoder), decoder.decode(data, container_of(data), 10), "the process still works"
    )


@pytest.mark.parametrize("name", ["mp3", "m4a", "webm", "flac"])
def test_a_recording_over_the_limit_is_refused(decoder: Decoder, name: str) -> None:
    data = encode(name, resample(SPEECH, 16_000, RATES.get(name, 16_000)), RATES.get(name, 16_000))
    with pytest.raises(AudioError, match="longer than the limit of 1 seconds"):
        read_audio(data, 1, decoder)
    assert len(read_audio(data, 1.4, decoder)) > 16_000


def test_limits_end_the_process_and_the_next_file_gets_another() -> None:
    hour = encode("flac", np.zeros(16_000 * 600, dtype=np.float32))
    one = Decoder(cpu_seconds=0.05)
    try:
        with pytest.raises(AudioError, match=r"FLAC file is damaged, or takes more than 0.05 s of processor time"):
            one.decode(hour, container_of(hour), 3600)
        assert len(one.decode(encode("mp3", SPEECH[:1600]), container_of(b"ID3"), 10))
    finally:
        one.close()


def test_memory_is_limited() -> None:
    one = Decoder(working_bytes=-(8 << 20))
    data = encode("flac", SPEECH)
    try:
        # FFmpeg reports some failed allocations as a damaged file.
        with pytest.raises(AudioError, match=r"FLAC file (needs too much memory|is damaged)"):
            one.decode(data, container_of(data), 10)
    finally:
        one.close()


def test_without_the_decoder_only_wav_is_read(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.audio.decoder.find_spec", lambda name: None)
    with pytest.raises(AudioError, match=r"MP3; without the package av \(pip install 'triptych\[audio\]'\) only WAV"):
        read_audio(encode("mp3", SPEECH), 10, decoder)
    assert len(read_audio(wav(SPEECH), 10, decoder)) == len(SPEECH)


def test_bounds_before_decoding() -> None:
    compressed = encode("mp3", SPEECH)
    assert max_seconds_of(compressed, 60) is None and reading_bytes(compressed) == 2 * len(compressed)
    assert max_seconds_of(wav(SPEECH), 60) == pytest.approx(1.2, abs=0.01) and max_seconds_of(wav(SPEECH), 1) == 1
    assert reading_bytes(wav(SPEECH)) > 3 * 2 * len(SPEECH)
