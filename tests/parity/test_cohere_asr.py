"""Cohere ASR equals transformers: log-mel frames, encoder, decoder, greedy text, and both sets of tensor names."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.config import ConfigError, SamplesEmbeddingConfig
from models.layers.log_mel_subsampling import normalised_log_mel
from tests.parity.checkpoints import edit_config, load, random_ids
from tests.parity.cohere_asr import SHAPES, features, prompt, write
from tests.parity.paged import Rows, chunked, greedy, one_by_one, one_shot, waveform_batch
from tests.parity.speech import recording

SECONDS = (0.9, 0.09, 2.47, 0.31)
TARGETS = (11, 1, 18, 6)


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory, device):
    directory = tmp_path_factory.mktemp(request.param)
    oracle = write(directory, request.param).to(device)
    return oracle, load(directory, device), directory


def recordings(device) -> list[torch.Tensor]:
    return [torch.from_numpy(recording(seconds, seed)).to(device) for seed, seconds in enumerate(SECONDS)]


@torch.inference_mode()
def expected(oracle, directory, clips, targets):
    """Encoder states, last decoder states and logits of transformers for each recording, one recording at a time."""
    results = []
    for clip, target in zip(clips, targets, strict=True):
        ids = torch.tensor([target], device=oracle.device)
        inputs = features(directory, clip)
        output = oracle(**inputs, decoder_input_ids=ids)
        body = oracle.model(**inputs, decoder_input_ids=ids)
        encoded = oracle.model.encoder(**inputs)
        states = oracle.model.decoder.proj(encoded.last_hidden_state)[0, : int(encoded.attention_mask.sum())]
        results.append((states, body.last_hidden_state[0], output.logits[0]))
    return results


@pytest.mark.parametrize("way", [one_shot, chunked, one_by_one])
def test_decoder_states_and_logits(pair, way):
    oracle, loaded, directory = pair
    clips, targets = recordings(oracle.device), random_ids(oracle.config.vocab_size, TARGETS)
    hidden = way(Rows(loaded.transformer, clips), targets)
    for ours, (_, theirs, logits) in zip(hidden, expected(oracle, directory, clips, targets), strict=True):
        torch.testing.assert_close(ours, theirs, atol=5e-4, rtol=5e-4)
        torch.testing.assert_close(loaded.transformer.logits(ours), logits, atol=5e-4, rtol=5e-4)
        assert logits.std(-1).min() > 0.1


@torch.inference_mode()
def encoded(loaded, clips) -> list[torch.Tensor]:
    batch = waveform_batch(loaded.transformer, clips)
    return list(loaded.transformer.encode(batch).split(batch.lengths))


def test_encoder_states(pair):
    oracle, loaded, directory = pair
    clips = recordings(oracle.device)
    wanted = expected(oracle, directory, clips, [prompt("en")] * len(clips))
    for ours, (theirs, _, _) in zip(encoded(loaded, clips), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=5e-4, rtol=5e-4)


def test_frames_have_the_noise_of_the_feature_extractor(pair):
    """The extractor adds noise that depends only on the number of samples. Quiet frames consist of this noise.

    In such frames, float32 rounds the lowest bands differently, so these are not compared.
    """
    oracle, loaded, directory = pair
    embedding = loaded.transformer.encoder.embedding
    for clip in recordings(oracle.device):
        theirs = features(directory, clip)
        count = int(theirs["attention_mask"].sum())
        torch.testing.assert_close(embedding.frames(clip), theirs["input_features"][0, :count], atol=2e-3, rtol=2e-3)
        quiet = 1e-5 * clip
        theirs = features(directory, quiet)["input_features"][0, :count]
        assert (embedding.frames(quiet) - theirs).abs().mean() < 0.01
        without = normalised_log_mel(quiet, embedding._window, embedding._filters)
        assert (without - theirs).abs().mean() > 0.1


def test_greedy_text(pair):
    """Each token of our text is the most likely next token in the reference."""
    oracle, loaded, directory = pair
    clips = recordings(oracle.device)
    start = prompt("de")
    answers = greedy(Rows(loaded.transformer, clips), [start] * len(clips), 20)
    for clip, answer in zip(clips, answers, strict=True):
        ((_, _, logits),) = expected(oracle, directory, [clip], [[*start, *answer]])
        assert answer == logits[len(start) - 1 : -1].argmax(-1).tolist()
    assert len({tuple(answer) for answer in answers}) > 2


def test_both_layouts_of_tensor_names_are_the_same_model(pair, tmp_path, device):
    """transformers saves the published tensor names; a checkpoint may also use the names of transformers' modules."""
    oracle, loaded, directory = pair
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    published = load_file(directory / "model.safetensors")
    own = {name: tensor.contiguous().cpu() for name, tensor in oracle.state_dict().items()}
    if oracle.config.tie_word_embeddings:
        own.pop("proj_out.weight")
    save_file(own, tmp_path / "model.safetensors")
    assert any("transf_decoder" in name for name in published) and not any("transf_decoder" in name for name in own)
    clips = recordings(device)
    for ours, theirs in zip(encoded(load(tmp_path, device), clips), encoded(loaded, clips), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_properties_of_the_checkpoint(pair):
    _, loaded, _ = pair
    assert loaded.tasks == ("transcribe",)
    assert (loaded.context_tokens, loaded.source_tokens) == (72, 438)
    embedding = loaded.config.encoder.embedding
    assert isinstance(embedding, SamplesEmbeddingConfig) and embedding.samples_per_token == 1280


@pytest.mark.parametrize(
    "change",
    [
        {"subsampling_factor": 6},
        {"subsampling_conv_stride": 3},
        {"num_key_value_heads": 2},
        {"hidden_act": "mish"},
    ],
    ids=json.dumps,
)
def test_unsupported_settings_of_the_encoder_are_refused_by_name(tmp_path, device, change):
    write(tmp_path, "cohere-transcribe")
    encoder = json.loads((tmp_path / "config.json").read_text())["encoder_config"]
    edit_config(tmp_path, encoder_config={**encoder, **change})
    with pytest.raises(ConfigError, match=next(iter(change))):
        load(tmp_path, device)
