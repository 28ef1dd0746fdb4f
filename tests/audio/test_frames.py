"""Log-mel frames, computed piece by piece in torch, equal those of transformers' feature extractor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank

from models.layers.log_mel import LogMel, mel_filters
from server.audio import frames as cut
from tests.parity.speech import recording

WINDOW = 3000


def ours(samples: np.ndarray, num_mels: int, window: int = WINDOW) -> np.ndarray:
    hear = LogMel(num_mels)
    return cut.join([hear(torch.from_numpy(piece)).numpy() for piece in cut.pieces(samples, window)])


def sounds() -> dict[str, np.ndarray]:
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
@pytest.mark.parametrize("name", sounds())
def test_frames_are_those_of_transformers(name: str, num_mels: int) -> None:
    samples = sounds()[name]
    extractor = WhisperFeatureExtractor(feature_size=num_mels)
    longer = len(samples) > 480_000
    settings = {"truncation": False, "padding": "longest"} if longer else {}
    theirs = extractor(samples, sampling_rate=16_000, return_tensors="np", **settings)["input_features"][0].T
    found = ours(samples, num_mels)
    assert found.shape == theirs.shape and found.dtype == np.float32
    np.testing.assert_allclose(found, theirs, atol=1e-5, rtol=0)


def test_pieces_of_any_size_give_the_same_frames() -> None:
    samples = recording(3.217, seed=4)
    whole = ours(samples, 80, window=400)
    for window in (7, 50, 100):
        np.testing.assert_allclose(ours(samples, 80, window), whole[: len(samples) // 160], atol=1e-5, rtol=0)


def test_a_piece_without_its_surroundings_would_show() -> None:
    """Negative control: cut at the frames themselves, the window at each seam hears too little."""
    samples = recording(3.0, seed=4)
    hear = LogMel(80)
    torn = [hear(torch.from_numpy(np.pad(part, 200, mode="reflect")))[:100] for part in np.split(samples, 3)]
    assert np.abs(cut.join([part.numpy() for part in torn]) - ours(samples, 80, 100)).max() > 1e-2


@pytest.mark.parametrize("num_mels", [80, 128])
def test_filters_follow_the_published_scale(num_mels: int) -> None:
    theirs = mel_filter_bank(201, num_mels, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(mel_filters(num_mels).numpy(), theirs, atol=1e-8, rtol=1e-5)


def test_the_loudest_sound_that_is_read_is_finite() -> None:
    assert np.isfinite(ours(1000 * np.sign(recording(1.0)), 80, 100)).all()


def test_windows() -> None:
    frames = np.arange(24, dtype=np.float32).reshape(12, 2)
    assert cut.window(frames, 3, 5).tolist() == frames[3:8].tolist()
    last = cut.window(frames, 9, 5)
    assert last.shape == (5, 2) and last[:3].tolist() == frames[9:].tolist() and not last[3:].any()
    assert cut.num_frames(np.zeros(161, dtype=np.float32)) == 2
