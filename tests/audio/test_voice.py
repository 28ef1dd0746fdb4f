"""Speech is found by its rise over the noise floor; silence, noise and steady tones are not speech."""

from __future__ import annotations

import numpy as np
import pytest

from server.audio.voice import VoiceActivity, kept_spans
from server.operations.speech.voice_filter import KeptFrames, VoiceFilter
from server.text.speech.subtitles import SpokenWord, SubtitleLine

SECOND = 100


def noise(seconds: int, level_db: float, bands: int = 80, seed: int = 0) -> np.ndarray:
    """Scaled log-mel frames of steady noise, in which the level of a band varies by 5 dB from frame to frame."""
    levels = np.random.default_rng(seed).normal(level_db, 5.0, (seconds * SECOND, bands))
    return ((levels + 40) / 40).astype(np.float32)


def with_bursts(frames: np.ndarray, spans: list[tuple[int, int]], rise_db: float) -> np.ndarray:
    """Copy frames and make the given spans louder like speech: half of the bands rise, another half every 0.2 s.

    spans: index of the first frame and index after the last frame of each span.
    """
    rng = np.random.default_rng(3)
    frames = frames.copy()
    for start, end in spans:
        for at in range(start, end, SECOND // 5):
            bands = rng.permutation(frames.shape[1])[: frames.shape[1] // 2]
            frames[at : min(at + SECOND // 5, end), bands] += rise_db / 40
    return frames


@pytest.mark.parametrize("bands", [80, 128])
def test_steady_sounds_are_not_speech(bands: int) -> None:
    tone = np.full((60 * SECOND, bands), -1.5, dtype=np.float32)
    tone[:, 20:22] = 0.5
    for frames in (noise(60, -55, bands), noise(60, -20, bands), np.full_like(tone, -1.5), tone):
        activity = VoiceActivity(frames, len(frames))
        assert activity.speech == [] and VoiceFilter().spans(activity) == []


def test_only_quiet_parts_without_speech_are_silent() -> None:
    quiet = noise(20, -60)
    assert VoiceActivity(quiet, len(quiet)).is_silent(0, 2000)
    loud = noise(20, -30)
    assert not VoiceActivity(loud, len(loud)).is_silent(0, 2000)
    faint = VoiceActivity(with_bursts(quiet, [(1000, 1200)], 8), len(quiet))
    assert faint.is_silent(0, 900) and not faint.is_silent(900, 1100) and faint.is_silent(1300, 2000)


@pytest.mark.parametrize(("level", "rise"), [(-60, 40), (-40, 15), (-20, 6)])
def test_speech_is_found_in_noise(level: float, rise: float) -> None:
    spoken = [(500, 900), (1500, 1800), (1850, 2000)]
    frames = with_bursts(noise(30, level), spoken, rise)
    spans = VoiceFilter().spans(VoiceActivity(frames, len(frames)))
    assert len(spans) == 2 and all(start % 2 == 0 for start, _ in spans)
    for (first, last), (start, end) in zip([(500, 900), (1500, 2000)], spans, strict=True):
        assert first - 60 <= start <= first and last <= end <= last + 60


def test_a_click_is_not_speech() -> None:
    frames = noise(10, -60)
    frames[500:503] += 1.0
    assert VoiceActivity(frames, len(frames)).speech == []


def test_kept_parts() -> None:
    speech = [(100, 200), (250, 300), (900, 951)]
    assert kept_spans(speech, 1000, 200, 40) == [(60, 340), (860, 992)]
    assert kept_spans(speech, 960, 20, 0) == [(100, 200), (250, 300), (900, 952)]
    assert kept_spans(speech, 955, 20, 30) == [(70, 330), (870, 955)]
    assert kept_spans([], 1000, 200, 40) == []


def test_times_after_silence_was_left_out() -> None:
    """Times in the kept frames are converted to times in the recording.

    Frames from 1 s to 2 s and from 5 s to 7 s are kept. The place between them counts as 2 s if a line ends there, and
    as 5 s if a line starts there.
    """
    frames = np.arange(1000, dtype=np.float32)[:, None]
    kept = KeptFrames(frames.copy(), [(100, 200), (500, 700)])
    assert kept.frames[:, 0].tolist() == [*range(100, 200), *range(500, 700)]

    def restored(start: float, end: float) -> tuple[float, float]:
        line = kept.restored(SubtitleLine(start, end, " a", [], 0, None, words=[SpokenWord("a", start, end)]))
        assert (line.words[0].start, line.words[0].end) == (line.start, line.end)
        return round(line.start, 6), round(line.end, 6)

    assert restored(0, 0.5) == (1, 1.5)
    assert restored(0.5, 1.0) == (1.5, 2)
    assert restored(1.0, 2.0) == (5, 6)
    assert restored(0.9, 1.2) == (1.9, 5.2)
    assert restored(1.0, 1.0) == (5, 5)
    assert restored(2.5, 3.0) == (6.5, 7)
