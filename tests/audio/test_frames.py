"""Log-mel frames, computed in parts in torch, equal those of transformers' feature extractor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank

from models.layers.log_mel import LogMel, mel_filters
from server.audio import frames as audio
from tests.parity.speech import recording

WINDOW = 3000


def ours(samples: np.ndarray, num_mels: int, window: int = WINDOW) -> np.ndarray:
    log_mel = LogMel(num_mels)
    parts = [log_mel(torch.from_numpy(part)).numpy() for part in audio.split_samples(samples, window)]
    return audio.join_log_mel(parts)


def recordings() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    loud = np.zeros(40 * 16_000, dtype=np.float32)
    loud[5 * 16_000 : 6 * 16_000] = 0.9
    return {
        "sweep": recording(7.3),
        "longer": recording(71.123, seed=2),
        "noise": (0.5 * generator.standard_normal(16_000 * 31)).astype(np.float32),
        "one-loud-second": loud,
        "silence": np.zeros(16_000, dtype=np.float32),
        "exactly-a-window": recording(30.0, seed=1),
        "a-sample": np.array([0.5], dtype=np.float32),
    }


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("name", recordings())
def test_frames_equal_transformers(name: str, num_mels: int) -> None:
    samples = recordings()[name]
    extractor = WhisperFeatureExtractor(feature_size=num_mels)
    longer = len(samples) > 480_000
    settings = {"truncation": False, "padding": "longest"} if longer else {}
    expected = extractor(samples, sampling_rate=16_000, return_tensors="np", **settings)["input_features"][0].T
    found = ours(samples, num_mels)
    assert found.shape == expected.shape and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_frames_do_not_depend_on_the_size_of_the_parts() -> None:
    samples = recording(3.217, seed=4)
    whole = ours(samples, 80, window=400)
    for window in (7, 50, 100):
        np.testing.assert_allclose(ours(samples, 80, window), whole[: len(samples) // 160], atol=1e-5, rtol=0)


def test_parts_need_the_samples_around_them() -> None:
    """Control: without half a window of samples on both sides of a part, the frames at its ends are wrong."""
    samples = recording(3.0, seed=4)
    log_mel = LogMel(80)
    parts = [log_mel(torch.from_numpy(np.pad(part, 200, mode="reflect")))[:100] for part in np.split(samples, 3)]
    assert np.abs(audio.join_log_mel([part.numpy() for part in parts]) - ours(samples, 80, 100)).max() > 1e-2


@pytest.mark.parametrize("num_mels", [80, 128])
def test_filters_equal_the_slaney_scale(num_mels: int) -> None:
    expected = mel_filter_bank(201, num_mels, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(mel_filters(num_mels).numpy(), expected, atol=1e-8, rtol=1e-5)


def test_frames_of_the_highest_amplitude_are_finite() -> None:
    assert np.isfinite(ours(1000 * np.sign(recording(1.0)), 80, 100)).all()


def test_windows_are_padded_after_the_end() -> None:
    frames = np.arange(24, dtype=np.float32).reshape(12, 2)
    assert audio.window(frames, 3, 5).tolist() == frames[3:8].tolist()
    last = audio.window(frames, 9, 5)
    assert last.shape == (5, 2) and last[:3].tolist() == frames[9:].tolist() and not last[3:].any()
    assert audio.num_frames(161) == 2
