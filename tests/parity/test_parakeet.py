"""Parakeet-CTC equals transformers: log-mel frames, subsampling, Conformer layers and labels."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers

from models.config import ConfigError
from models.layers.log_mel import mel_filters
from models.layers.log_mel_subsampling import TRANSFORM_SAMPLES, normalised_log_mel
from tests.parity.checkpoints import edit_config, load
from tests.parity.paged import waveform_batch
from tests.parity.parakeet import ENCODERS, write
from tests.parity.speech import recording

SECONDS = (0.9, 0.31, 4.47, 0.05)


@pytest.fixture(scope="module", params=ENCODERS)
def pair(request, tmp_path_factory, device):
    directory = tmp_path_factory.mktemp(request.param)
    oracle = write(directory, request.param).to(device)
    return oracle, load(directory, device), directory


def recordings(device) -> list[torch.Tensor]:
    return [torch.from_numpy(recording(seconds, seed)).to(device) for seed, seconds in enumerate(SECONDS)]


@torch.inference_mode()
def ours(loaded, clips) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Our hidden states and logits of each recording, computed in one batch."""
    batch = waveform_batch(loaded.transformer, clips)
    hidden = loaded.transformer.encode(batch)
    logits = loaded.transformer.classify_tokens(hidden, batch)
    return list(hidden.split(batch.lengths)), list(logits.split(batch.lengths))


@torch.inference_mode()
def theirs(oracle, directory, clips) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    extractor = transformers.ParakeetFeatureExtractor.from_pretrained(directory)
    states, logits = [], []
    for clip in clips:
        inputs = extractor(clip.cpu().numpy(), sampling_rate=16_000, return_tensors="pt").to(oracle.device)
        encoded = oracle.encoder(**inputs)
        count = int(encoded.attention_mask.sum())
        states.append(encoded.last_hidden_state[0, :count])
        logits.append(oracle(**inputs).logits[0, :count])
    return states, logits


@pytest.mark.parametrize("bands", [80, 128])
@pytest.mark.parametrize("seconds", [0.05, 0.31, 4.47])
def test_frames_equal_the_feature_extractor(bands, seconds):
    """Our log-mel frames equal the feature extractor's, in float64, where rounding hides no difference.

    The mel filters of transformers are float32.
    """
    samples = torch.from_numpy(recording(seconds, 3))
    extractor = transformers.ParakeetFeatureExtractor(feature_size=bands)
    found = extractor(samples.numpy(), sampling_rate=16_000, return_tensors="pt")
    count = int(found.attention_mask.sum())
    window = torch.hann_window(400, periodic=False, dtype=torch.float64)
    filters = mel_filters(bands, TRANSFORM_SAMPLES)
    np.testing.assert_allclose(filters.numpy(), extractor.mel_filters.T.numpy(), atol=1e-8, rtol=1e-5)
    exact = normalised_log_mel(samples.double(), window, filters.double())
    assert exact.shape == (count, bands) and not found.input_features[0, count:].any()
    torch.testing.assert_close(exact.float(), found.input_features[0, :count], atol=2e-3, rtol=1e-3)
    single = normalised_log_mel(samples, window.float(), filters)
    torch.testing.assert_close(single, found.input_features[0, :count], atol=1e-3, rtol=1e-3)


def test_hidden_states_and_logits(pair, device):
    oracle, loaded, directory = pair
    clips = recordings(device)
    (states, logits), (expected_states, expected_logits) = ours(loaded, clips), theirs(oracle, directory, clips)
    for mine, other in zip([*states, *logits], [*expected_states, *expected_logits], strict=True):
        torch.testing.assert_close(mine, other, atol=5e-4, rtol=5e-4)
    assert all(
        torch.equal(mine.argmax(-1), other.argmax(-1)) for mine, other in zip(logits, expected_logits, strict=True)
    )
    assert len({int(label) for part in logits for label in part.argmax(-1)}) > 4


def test_a_recording_in_a_batch_equals_the_recording_alone(pair, device):
    _, loaded, _ = pair
    clips = recordings(device)
    for clip, together in zip(clips, ours(loaded, clips)[0], strict=True):
        torch.testing.assert_close(ours(loaded, [clip])[0][0], together, atol=1e-5, rtol=1e-5)


def test_number_of_states(pair, device):
    _, loaded, _ = pair
    embedding = loaded.config.encoder.embedding
    assert embedding.num_tokens(159) == 0
    step = embedding.samples_per_token
    for samples in (160, 161, 159 + step, 160 + step, 16_000):
        clip = torch.linspace(-1, 1, samples, device=device)
        (states,), _ = ours(loaded, [clip])
        assert len(states) == embedding.num_tokens(samples) and torch.isfinite(states).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_close_to_float32(pair, device, dtype):
    oracle, _, directory = pair
    clips = recordings(device)[:3]
    expected = theirs(oracle, directory, clips)[1]
    for mine, other in zip(ours(load(directory, device, dtype), clips)[1], expected, strict=True):
        assert (mine - other).abs().mean() < 0.1 * other.std()


def test_a_wrong_setting_without_a_tensor_is_detected(pair, tmp_path, device):
    """Negative control: without the scaling of the input, which no tensor shows, the results differ."""
    oracle, _, directory = pair
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    encoder = json.loads((tmp_path / "config.json").read_text())["encoder_config"]
    edit_config(tmp_path, encoder_config={**encoder, "scale_input": not encoder["scale_input"]})
    clips = recordings(device)[:1]
    wrong = ours(load(tmp_path, device), clips)[1][0]
    assert (wrong - theirs(oracle, directory, clips)[1][0]).abs().max() > 1e-2


@pytest.mark.parametrize(
    "change",
    [
        {"subsampling_factor": 6},
        {"subsampling_factor": 1},
        {"subsampling_conv_stride": 3},
        {"conv_kernel_size": 8},
        {"subsampling_conv_kernel_size": 4},
        {"num_mel_bins": 84},
        {"num_key_value_heads": 2},
        {"hidden_act": "mish"},
    ],
    ids=json.dumps,
)
def test_unsupported_settings_are_refused_by_name(tmp_path, device, change):
    write(tmp_path, "parakeet-ctc")
    encoder = json.loads((tmp_path / "config.json").read_text())["encoder_config"]
    edit_config(tmp_path, encoder_config={**encoder, **change})
    name = {"conv_kernel_size": "kernel size", "subsampling_conv_kernel_size": "kernel size", "num_mel_bins": "mel"}
    key = next(iter(change))
    with pytest.raises(ConfigError, match=name.get(key, key)):
        load(tmp_path, device)
