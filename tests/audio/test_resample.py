"""Resampling equals scipy's polyphase filter, keeps frequencies that both rates can hold, and removes aliases."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy import signal

from server.audio.resample import KAISER_BETA, ZERO_CROSSINGS, resample
from tests.parity.speech import recording

RATES = [8_000, 11_025, 12_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 16_001]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("seconds", [0.31, 0.00137])
def test_samples_equal_scipy(rate: int, seconds: float) -> None:
    samples = recording(seconds, seed=2, rate=rate)
    divisor = np.gcd(rate, 16_000)
    up, down = int(16_000 // divisor), int(rate // divisor)
    spacing = max(up, down)
    sinc = signal.firwin(2 * ZERO_CROSSINGS * spacing + 1, 1 / spacing, window=("kaiser", KAISER_BETA))
    expected = signal.resample_poly(samples.astype(np.float64), up, down, window=sinc)
    ours = resample(samples, rate, 16_000)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_rates_without_a_common_divisor_need_little_memory() -> None:
    """The whole filter would have 1.5 million taps (12 MB) for these rates. They are never in memory together."""
    samples = recording(0.05, rate=47_999)
    tracemalloc.start()
    resample(samples, 47_999, 16_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_a_tone_keeps_frequency_and_amplitude(rate: int) -> None:
    def tone(at: int) -> np.ndarray:
        return np.sin(2 * np.pi * 700 * np.arange(at) / at).astype(np.float32)

    ours = resample(tone(rate), rate, 16_000)
    assert len(ours) == 16_000
    np.testing.assert_allclose(ours[500:-500], tone(16_000)[500:-500], atol=2e-4)


def test_frequencies_that_would_alias_are_removed() -> None:
    """A tone of 11 kHz vanishes. Control: taking every third sample would turn it into a tone of 5 kHz."""
    high = np.sin(2 * np.pi * 11_000 * np.arange(48_000) / 48_000).astype(np.float32)
    assert np.abs(resample(high, 48_000, 16_000)[200:-200]).max() < 2e-4
    assert np.abs(high[::3]).max() > 0.9


def test_equal_rates_return_the_input() -> None:
    samples = recording(0.1)
    assert resample(samples, 16_000, 16_000) is samples
