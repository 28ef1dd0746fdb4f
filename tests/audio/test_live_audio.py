"""Telephone audio (G.711) is decoded, and the beginnings and ends of speech in a stream are found."""

from __future__ import annotations

import numpy as np
import pytest

from server.audio.g711 import decode_alaw, decode_ulaw
from server.audio.speech_turns import MAX_TURN_MILLISECONDS, SpeechTurns

RATE = 24_000


def noise(seconds: float, level: float, rate: int = RATE) -> bytes:
    """White noise as 16-bit PCM. level: root mean square; 1 is full scale. rate: sampling rate in Hz."""
    values = np.random.default_rng(7).standard_normal(round(seconds * rate)) * level
    return (np.clip(values, -1, 1) * 32767).astype("<i2").tobytes()


def test_values_of_g711() -> None:
    """Some codes are decoded to the 16-bit values in ITU-T G.711, tables 1 and 2."""
    assert np.frombuffer(decode_ulaw(bytes([0x00, 0x80, 0xFF, 0x7F, 0xF0, 0x70])), "<i2").tolist() == [
        -32124, 32124, 0, 0, 120, -120,
    ]  # fmt: skip
    assert np.frombuffer(decode_alaw(bytes([0xAA, 0x2A, 0xD5, 0x55])), "<i2").tolist() == [32256, -32256, 8, -8]


@pytest.mark.parametrize("piece", [100, 4_801, 1 << 20])
def test_turns_do_not_depend_on_the_pieces(piece: int) -> None:
    audio = noise(1.0, 0.001) + noise(0.8, 0.1) + noise(1.0, 0.001) + noise(0.6, 0.1) + noise(1.0, 0.001)
    turns = SpeechTurns(RATE)
    events = [event for at in range(0, len(audio), 2 * piece) for event in turns.add(audio[at : at + 2 * piece])]
    assert [event.kind for event in events] == ["started", "stopped"] * 2
    begin, end, second, last = (event.milliseconds for event in events)
    assert 650 <= begin <= 750 and 2200 <= end <= 2450 and 2450 <= second <= 2550 and 3800 <= last <= 4100


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100])
def test_times_do_not_drift_at_any_rate(rate: int) -> None:
    """Reported times stay exact over five minutes, although a frame may not be a whole number of samples."""
    turns, quiet = SpeechTurns(rate), noise(10.0, 0.001, rate)
    for _ in range(30):
        assert turns.add(quiet) == []
    started, stopped = turns.add(noise(1.0, 0.1, rate) + quiet)
    assert started.milliseconds == pytest.approx(299_700, abs=60)
    assert stopped.milliseconds == pytest.approx(301_500, abs=100)


def test_steady_noise_and_clicks_are_no_speech() -> None:
    turns = SpeechTurns(RATE)
    click = noise(0.02, 0.3)
    assert turns.add(noise(5.0, 0.02) + click + noise(2.0, 0.02)) == []
    assert turns.add(bytes(2 * RATE)) == []


def test_a_turn_has_a_longest_length() -> None:
    turns = SpeechTurns(8_000)
    turns.add(noise(0.5, 0.001, 8_000))
    loud = (np.sin(np.arange(40 * 8_000)) * 9000 * (1 + np.sin(np.arange(40 * 8_000) / 500))).astype("<i2").tobytes()
    started, stopped, *_ = turns.add(loud)
    assert stopped.milliseconds - started.milliseconds <= MAX_TURN_MILLISECONDS + 400
