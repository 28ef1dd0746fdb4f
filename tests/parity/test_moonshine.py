"""Moonshine and its streaming variant equal transformers: embedding of samples, encoder, decoder, greedy text."""

from __future__ import annotations

import json

import pytest
import torch

from models.config import ConfigError, SamplesEmbeddingConfig
from tests.parity.checkpoints import edit_config, load, random_ids
from tests.parity.moonshine import SHAPES, START, inputs, write
from tests.parity.paged import Rows, chunked, greedy, one_by_one, one_shot, waveform_batch
from tests.parity.speech import recording

SECONDS = (0.9, 0.07, 1.47, 0.31)
TARGETS = (11, 1, 18, 6)


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory, device):
    directory = tmp_path_factory.mktemp(request.param)
    oracle = write(directory, request.param).to(device)
    return oracle, load(directory, device), directory


def recordings(device) -> list[torch.Tensor]:
    return [torch.from_numpy(recording(seconds, seed)).to(device) for seed, seconds in enumerate(SECONDS)]


@torch.inference_mode()
def expected(oracle, clips, targets):
    """Encoder states, last decoder states and logits of transformers for each recording, one recording at a time."""
    results = []
    for clip, target in zip(clips, targets, strict=True):
        ids = torch.tensor([target], device=oracle.device)
        output = oracle(**inputs(oracle, clip), decoder_input_ids=ids, output_hidden_states=True)
        body = oracle.model(**inputs(oracle, clip), decoder_input_ids=ids)
        states = output.encoder_last_hidden_state[0]
        # The decoder of the streaming variant adds positions to the encoder states in place, and projects the sum.
        states = getattr(oracle.model.decoder, "proj", torch.nn.Identity())(states)
        results.append((states, body.last_hidden_state[0], output.logits[0]))
    return results


@pytest.mark.parametrize("way", [one_shot, chunked, one_by_one])
def test_decoder_states_and_logits(pair, way):
    oracle, loaded, _ = pair
    clips, targets = recordings(oracle.device), random_ids(oracle.config.vocab_size, TARGETS)
    hidden = way(Rows(loaded.transformer, clips), targets)
    for ours, (_, theirs, logits) in zip(hidden, expected(oracle, clips, targets), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(loaded.transformer.logits(ours), logits, atol=1e-4, rtol=1e-4)
        assert logits.std(-1).min() > 0.1


@torch.inference_mode()
def encoded(loaded, clips) -> list[torch.Tensor]:
    batch = waveform_batch(loaded.transformer, clips)
    return list(loaded.transformer.encode(batch).split(batch.lengths))


def test_encoder_states(pair):
    oracle, loaded, _ = pair
    clips = recordings(oracle.device)
    for ours, (theirs, _, _) in zip(encoded(loaded, clips), expected(oracle, clips, [[START]] * 4), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_recording_in_a_batch_equals_the_recording_alone(pair):
    """The padding of a batch must not count in the norm over a recording."""
    _, loaded, _ = pair
    clips = recordings(loaded.transformer.device)
    for clip, together in zip(clips, encoded(loaded, clips), strict=True):
        torch.testing.assert_close(encoded(loaded, [clip])[0], together, atol=1e-5, rtol=1e-5)


def test_greedy_text(pair):
    """Each token of our text is the most likely next token in the reference."""
    oracle, loaded, _ = pair
    clips = recordings(oracle.device)
    answers = greedy(Rows(loaded.transformer, clips), [[START]] * len(clips), 20)
    for clip, answer in zip(clips, answers, strict=True):
        ((_, _, logits),) = expected(oracle, [clip], [[START, *answer]])
        assert answer == logits[:-1].argmax(-1).tolist()
    assert len({tuple(answer) for answer in answers}) > 2


def test_the_shortest_recording_has_one_state(pair):
    oracle, loaded, _ = pair
    embedding = loaded.config.encoder.embedding
    assert isinstance(embedding, SamplesEmbeddingConfig)
    assert embedding.num_tokens(embedding.min_samples) == 1 and embedding.num_tokens(embedding.min_samples - 1) == 0
    step = embedding.samples_per_token
    for samples in (embedding.min_samples, embedding.min_samples + step - 1, embedding.min_samples + step, 16_001):
        read = inputs(oracle, torch.zeros(samples))["input_values"].shape[1]
        assert embedding.num_tokens(samples) == oracle._get_feat_extract_output_lengths(read)
        clip = torch.linspace(-1, 1, samples, device=oracle.device)
        assert len(encoded(loaded, [clip])[0]) == embedding.num_tokens(samples)


@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 0.08), (torch.float16, 0.015)], ids=str)
def test_half_precision_is_close_to_float32(pair, device, dtype, bound):
    oracle, _, directory = pair
    model = load(directory, device, dtype).transformer
    clips, targets = recordings(device), random_ids(oracle.config.vocab_size, TARGETS)
    for ours, (_, _, logits) in zip(
        one_shot(Rows(model, clips), targets), expected(oracle, clips, targets), strict=True
    ):
        assert (model.logits(ours) - logits).abs().mean() < bound * logits.std()


def test_a_wrong_setting_without_a_tensor_is_detected(pair, tmp_path, device):
    """Negative control: the rotated share of a head, or the windows of the encoder, are wrong. No tensor shows them."""
    oracle, loaded, directory = pair
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if loaded.family == "moonshine":
        edit_config(tmp_path, partial_rotary_factor=0.35, rope_parameters=None)
    else:
        encoder = json.loads((tmp_path / "config.json").read_text())["encoder_config"]
        windows = [[16, 2], *encoder["sliding_windows"][1:]]
        edit_config(tmp_path, encoder_config={**encoder, "sliding_windows": windows})
    clips = recordings(device)
    wrong = encoded(load(tmp_path, device), clips)
    assert (wrong[0] - expected(oracle, clips[:1], [[START]])[0][0]).abs().max() > 1e-2


def test_properties_of_the_checkpoint(pair):
    _, loaded, _ = pair
    assert loaded.tasks == ("transcribe",)
    is_streaming = loaded.family == "moonshine_streaming"
    assert (loaded.context_tokens, loaded.source_tokens) == ((1600, 1500) if is_streaming else (64, 1250))
    assert loaded.generation.decoder_start_token_ids == (START,)


@pytest.mark.parametrize(
    "change",
    [
        {"tie_word_embeddings": False},
        {"encoder_num_attention_heads": 2},
        {"encoder_num_key_value_heads": 2},
        {"decoder_num_key_value_heads": 1},
        {"encoder_hidden_act": "mish"},
    ],
    ids=json.dumps,
)
def test_unsupported_settings_are_refused_by_name(tmp_path, device, change):
    write(tmp_path, "moonshine-tiny")
    edit_config(tmp_path, **change)
    with pytest.raises(ConfigError, match=next(iter(change))):
        load(tmp_path, device)


@pytest.mark.parametrize(
    "change",
    [
        {"sliding_windows": [[16, 4]]},
        {"sliding_windows": [[16, 4], [16], [16, 4]]},
        {"sliding_windows": [[16, 4], [0, 4], [16, 4]]},
        {"sliding_windows": 16},
        {"sample_rate": 8000},
        {"frame_ms": 0},
        {"num_key_value_heads": 2},
    ],
    ids=json.dumps,
)
def test_unsupported_settings_of_a_streaming_encoder_are_refused_by_name(tmp_path, device, change):
    write(tmp_path, "moonshine-streaming-tiny")
    encoder = json.loads((tmp_path / "config.json").read_text())["encoder_config"]
    edit_config(tmp_path, encoder_config={**encoder, **change})
    with pytest.raises(ConfigError, match=next(iter(change))):
        load(tmp_path, device)


def test_streaming_states_depend_on_few_later_samples(tmp_path, device):
    """Each layer sees at most three later states, so the end of a recording does not change early states."""
    write(tmp_path, "moonshine-streaming-tiny")
    loaded, clip = load(tmp_path, device), recordings(device)[2]
    ahead = 3 + 0 + 2
    for seconds in (0.5, 1.0):
        part = encoded(loaded, [clip[: int(seconds * 16_000)]])[0]
        whole = encoded(loaded, [clip])[0][: len(part) - ahead]
        torch.testing.assert_close(part[:-ahead], whole, atol=1e-5, rtol=1e-5)
