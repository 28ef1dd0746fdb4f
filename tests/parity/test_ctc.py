"""Speech encoders that read samples and have a CTC head equal transformers: hidden states, logits and labels."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.config import ConfigError, WaveformEmbeddingConfig
from models.steps.batch import WaveformBatch
from tests.parity.checkpoints import edit_config, load
from tests.parity.ctc import SHAPES, write
from tests.parity.speech import recording

SECONDS = (0.9, 0.31, 1.47)


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory, device):
    directory = tmp_path_factory.mktemp(request.param)
    oracle = write(directory, request.param).to(device)
    return oracle, load(directory, device), directory


def recordings(device) -> list[torch.Tensor]:
    clips = [torch.from_numpy(recording(seconds, seed)) for seed, seconds in enumerate(SECONDS)]
    return [((clip - clip.mean()) / clip.std()).to(device) for clip in clips]


def batch_of(loaded, clips) -> WaveformBatch:
    embedding = loaded.config.encoder.embedding
    lengths = tuple(len(clip) for clip in clips)
    return WaveformBatch(torch.cat(clips), lengths, tuple(map(embedding.num_tokens, lengths)))


@torch.inference_mode()
def ours(loaded, clips) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Our hidden states and logits of each recording, computed in one batch."""
    batch = batch_of(loaded, clips)
    hidden = loaded.transformer.encode(batch)
    logits = loaded.transformer.classify_tokens(hidden, batch)
    return list(hidden.split(batch.lengths)), list(logits.split(batch.lengths))


@torch.inference_mode()
def theirs(oracle, clips) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    found = [oracle(clip[None], output_hidden_states=True) for clip in clips]
    last = [oracle.base_model(clip[None]).last_hidden_state[0] for clip in clips]
    return last, [output.logits[0] for output in found]


def test_hidden_states_and_logits(pair, device):
    oracle, loaded, _ = pair
    clips = recordings(device)
    (states, logits), (expected_states, expected_logits) = ours(loaded, clips), theirs(oracle, clips)
    for mine, other in zip([*states, *logits], [*expected_states, *expected_logits], strict=True):
        torch.testing.assert_close(mine, other, atol=2e-4, rtol=2e-4)
    labels = [part.argmax(-1) for part in logits]
    assert all(torch.equal(mine, other.argmax(-1)) for mine, other in zip(labels, expected_logits, strict=True))
    assert len({int(label) for part in labels for label in part}) > 2
    assert all(part.std(0).mean() > 0.5 for part in logits)


def test_a_recording_in_a_batch_equals_the_recording_alone(pair, device):
    _, loaded, _ = pair
    clips = recordings(device)
    for clip, together in zip(clips, ours(loaded, clips)[1], strict=True):
        torch.testing.assert_close(ours(loaded, [clip])[1][0], together, atol=1e-5, rtol=1e-5)


def test_the_shortest_recording_has_one_state(pair, device):
    oracle, loaded, _ = pair
    embedding = loaded.config.encoder.embedding
    assert isinstance(embedding, WaveformEmbeddingConfig)
    assert embedding.num_tokens(embedding.min_samples) == 1 and embedding.num_tokens(embedding.min_samples - 1) < 1
    assert oracle._get_feat_extract_output_lengths(embedding.min_samples) == 1
    if embedding.normed == "all":
        clip = torch.linspace(-1, 1, embedding.min_samples, device=device)
        torch.testing.assert_close(ours(loaded, [clip])[1], theirs(oracle, [clip])[1], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_close_to_float32(pair, device, dtype):
    oracle, _, directory = pair
    clips = recordings(device)
    for mine, other in zip(ours(load(directory, device, dtype), clips)[1], theirs(oracle, clips)[1], strict=True):
        assert (mine - other).abs().mean() < 0.1 * other.std()


def test_the_task_and_the_first_names_of_weight_normalisation(tmp_path, device):
    """Before torch 2, weight normalisation saved the two parts of a weight as `weight_g` and `weight_v`."""
    oracle, clips = write(tmp_path, "wav2vec2-base"), recordings("cpu")
    loaded = load(tmp_path, torch.device("cpu"))
    assert loaded.tasks == ("transcribe",) and loaded.labels == () and loaded.config.vocab_size == 32
    tensors = load_file(tmp_path / "model.safetensors")
    names = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    old = {}
    for name, tensor in tensors.items():
        for new, first in names.items():
            name = name.replace(new, first)
        old[name] = tensor
    assert old.keys() != tensors.keys()
    save_file(old, tmp_path / "model.safetensors", {"format": "pt"})
    renamed = load(tmp_path, torch.device("cpu"))
    torch.testing.assert_close(ours(renamed, clips)[1], theirs(oracle, clips)[1], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"add_adapter": True},
        {"adapter_attn_dim": 16},
        {"conv_pos_batch_norm": True},
        {"feat_extract_norm": "batch"},
        {"feat_extract_activation": "relu"},
        {"conv_stride": [5, 2]},
        {"num_conv_pos_embedding_groups": 5},
        {"num_feat_extract_layers": 6},
        {"conv_stride": [2_000_000_000] * 7},
    ],
    ids=json.dumps,
)
def test_unsupported_settings_are_refused_by_name(tmp_path, change):
    write(tmp_path, "hubert-base")
    edit_config(tmp_path, **change)
    with pytest.raises(ConfigError, match=next(iter(change))):
        load(tmp_path, torch.device("cpu"))
