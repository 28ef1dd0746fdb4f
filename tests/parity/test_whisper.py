"""Whisper equals transformers: convolutions, encoder, decoder with cross-attention, and greedy text."""

from __future__ import annotations

import pytest
import torch
from transformers import WhisperConfig

from models.config import ConfigError
from models.steps.batch import AudioBatch
from tests.parity.checkpoints import edit_config, load, random_ids
from tests.parity.paged import Rows, audio_batch, chunked, greedy, one_by_one, one_shot
from tests.parity.speech import END, SHAPES, START, frames_of, write

TARGETS = (11, 1, 18, 6)


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory, device):
    directory = tmp_path_factory.mktemp(request.param)
    oracle = write(directory, request.param).to(device)
    return oracle, load(directory, device), directory


PUBLISHED = {
    "large-v3": {"encoder_layers": 3, "decoder_layers": 3, "num_mel_bins": 128},
    "large-v3-turbo": {"encoder_layers": 4, "decoder_layers": 1, "num_mel_bins": 128},
    "distil-large-v3": {"encoder_layers": 4, "decoder_layers": 2, "num_mel_bins": 128, "max_source_positions": 30},
    "distil-small.en": {"encoder_layers": 3, "decoder_layers": 1, "num_mel_bins": 80, "d_model": 48},
}
"""What later checkpoints have instead of the first ones' settings: depths of encoder and decoder, mel bands."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_of_later_checkpoints(name, tmp_path, device):
    """Encoder states, logits and greedy text of large-v3, turbo and distil-whisper."""
    oracle = write(tmp_path, WhisperConfig(**{**SHAPES["whisper"].to_dict(), **PUBLISHED[name]})).to(device)
    loaded = load(tmp_path, device)
    clips, targets = recordings(oracle), random_ids(oracle.config.vocab_size, TARGETS)
    batch = audio_batch(clips, device)
    with torch.inference_mode():
        states = loaded.transformer.encode(batch).split(batch.lengths)
    hidden = one_shot(Rows(loaded.transformer, clips), targets)
    for ours, encoded, (theirs, last, logits) in zip(hidden, states, expected(oracle, clips, targets), strict=True):
        torch.testing.assert_close(encoded, theirs, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours, last, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(loaded.transformer.logits(ours), logits, atol=1e-4, rtol=1e-4)
    start = list(loaded.generation.decoder_start_token_ids)
    answers = greedy(Rows(loaded.transformer, clips[:1]), [start], 12)
    ((_, _, logits),) = expected(oracle, clips[:1], [start + answers[0]])
    assert answers[0] == logits[:-1].argmax(-1).tolist()


def recordings(oracle) -> list[torch.Tensor]:
    config = oracle.config
    frames = frames_of(len(TARGETS), config.num_mel_bins, 2 * config.max_source_positions)
    return [frame.to(oracle.device) for frame in frames]


@torch.inference_mode()
def expected(oracle, clips, targets):
    """Encoder states, last decoder states and logits of transformers for each recording, one recording at a time."""
    results = []
    for clip, target in zip(clips, targets, strict=True):
        output = oracle(
            input_features=clip.T[None],
            decoder_input_ids=torch.tensor([target], device=oracle.device),
            output_hidden_states=True,
        )
        results.append((output.encoder_last_hidden_state[0], output.decoder_hidden_states[-1][0], output.logits[0]))
    return results


@pytest.mark.parametrize("way", [one_shot, chunked, one_by_one])
def test_decoder_states_and_logits(pair, way):
    oracle, loaded, _ = pair
    clips, targets = recordings(oracle), random_ids(oracle.config.vocab_size, TARGETS)
    hidden = way(Rows(loaded.transformer, clips), targets)
    for ours, (_, theirs, logits) in zip(hidden, expected(oracle, clips, targets), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(loaded.transformer.logits(ours), logits, atol=1e-4, rtol=1e-4)
        assert logits.std(-1).min() > 0.1


def test_encoder_states(pair, device):
    oracle, loaded, _ = pair
    clips = recordings(oracle)
    batch = audio_batch(clips, device)
    with torch.inference_mode():
        hidden = loaded.transformer.encode(batch).split(batch.lengths)
    for ours, (theirs, _, _) in zip(hidden, expected(oracle, clips, [[START]] * len(clips)), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_greedy_text(pair):
    """Each token of our text is the most likely next token in the reference."""
    oracle, loaded, _ = pair
    clips = recordings(oracle)
    start = list(loaded.generation.decoder_start_token_ids)
    answers = greedy(Rows(loaded.transformer, clips), [start] * len(clips), 20)
    for clip, answer in zip(clips, answers, strict=True):
        ((_, _, logits),) = expected(oracle, [clip], [start + answer])
        assert answer == logits[:-1].argmax(-1).tolist()
    assert len({tuple(answer) for answer in answers}) > 1


def test_recording_in_a_batch_equals_the_recording_alone(pair, device):
    """Recordings with even and odd lengths have the same encoder states in a batch as alone."""
    oracle, loaded, _ = pair
    clips = [recording[:length] for recording, length in zip(recordings(oracle), (9, 40, 1, 24), strict=True)]
    with torch.inference_mode():
        batch = audio_batch(clips, device)
        together = loaded.transformer.encode(batch).split(batch.lengths)
        assert batch.lengths == (5, 20, 1, 12)
        for ours, clip in zip(together, clips, strict=True):
            alone = loaded.transformer.encode(audio_batch([clip], device))
            torch.testing.assert_close(ours, alone, atol=1e-5, rtol=1e-5)
        joined = loaded.transformer.encode(AudioBatch(torch.cat(clips[:2]), (49,)))
    assert (joined[:5] - together[0]).abs().max() > 1e-2


@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 0.08), (torch.float16, 0.015)], ids=str)
def test_half_precision_is_close_to_float32(pair, device, dtype, bound):
    oracle, _, directory = pair
    model = load(directory, device, dtype).transformer
    clips, targets = recordings(oracle), random_ids(oracle.config.vocab_size, TARGETS)
    hidden = one_shot(Rows(model, clips), targets)
    for ours, (_, _, logits) in zip(hidden, expected(oracle, clips, targets), strict=True):
        assert (model.logits(ours) - logits).abs().mean() < bound * logits.std()


def test_properties_of_the_checkpoint(pair):
    _, loaded, _ = pair
    assert loaded.tasks == ("transcribe",)
    assert loaded.context_tokens == 64 and loaded.source_tokens in (30, 50)
    assert loaded.generation.begin_suppress_token_ids == (5, END)


@pytest.mark.parametrize("change", [{"scale_embedding": True}, {"tie_word_embeddings": False}])
def test_unsupported_settings_are_refused_by_name(tmp_path, device, change):
    write(tmp_path, "whisper")
    edit_config(tmp_path, **change)
    with pytest.raises(ConfigError, match=next(iter(change))):
        load(tmp_path, device)
