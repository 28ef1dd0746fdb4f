"""Encoder-decoders with sparse attention equal transformers on sources far beyond the window, alone and together."""

from __future__ import annotations

import pytest
import torch
import transformers

from models.config import ConfigError
from models.families import family_of
from server.engine.loading import Loaded
from server.ipc.messages import ModelSpec
from tests.engine.harness import Pair, generate, reference, run
from tests.parity.checkpoints import load, random_ids, save
from tests.parity.paged import encoder_batch

VOCAB = 97
LENGTHS = (3, 70, 8, 9, 1, 16, 17, 131, 33, 5)
_LED = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_encoder_position_embeddings": 160,
    "max_decoder_position_embeddings": 40,
    "attention_window": 8,
}
_WIDE_LED = {**_LED, "d_model": 48, "encoder_layers": 3, "decoder_attention_heads": 2, "attention_window": [4, 16, 32]}
CASES = {
    "led": ("LED", _LED),
    "led-windows": ("LED", _WIDE_LED),
}


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory, device) -> Pair:
    family, options = CASES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    config = getattr(transformers, f"{family}Config")(**options)
    oracle = save(directory, config, f"{family}ForConditionalGeneration").to(device)
    spec = ModelSpec(request.param, str(directory), "float32")
    return Pair(request.param, oracle, Loaded(spec, load(directory, device), torch.float32, device, 0.0))


@torch.inference_mode()
def encoded(oracle, text):
    """What transformers' encoder makes of a text alone."""
    ids = torch.tensor([text], device=oracle.device)
    return oracle.get_encoder()(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]


@torch.inference_mode()
def test_encoder_states(pair, device):
    model, texts = pair.loaded.model.transformer, random_ids(VOCAB, LENGTHS)
    together = model.encode(encoder_batch(texts, device)).split(LENGTHS)
    for text, ours in zip(texts, together, strict=True):
        torch.testing.assert_close(ours, encoded(pair.oracle, text), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(model.encode(encoder_batch([text], device)), ours, atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_generated_texts(pair, num_beams):
    """Through the engine, all sources at once: token for token what transformers' `generate` says of each alone."""
    sources = random_ids(VOCAB, (131, 40, 7, 66), seed=5)
    settings = {"max_new_tokens": 20, "num_beams": num_beams}
    results = run(pair.engine(), [generate(pair, index, text, **settings) for index, text in enumerate(sources)])
    for index, text in enumerate(sources):
        assert results.texts(index) == reference(pair, text, **settings)[0]


def test_sources_may_be_longer_than_answers(pair):
    loaded = pair.loaded
    limits = CASES[pair.name][1]
    assert loaded.context_tokens == limits.get("max_decoder_position_embeddings", loaded.context_tokens)
    assert loaded.source_tokens >= max(LENGTHS)


def test_led_refuses_what_it_does_not_know():
    hf = {**transformers.LEDConfig(**_LED).to_dict(), "scale_embedding": True}
    family, architecture = family_of({**hf, "architectures": ["LEDModel"]})
    with pytest.raises(ConfigError, match="scale_embedding"):
        family.config(hf, architecture)


@torch.inference_mode()
def test_led_without_named_global_tokens_has_none(tmp_path, device):
    """What `generate` does where nobody names any; with the first token global it says something else."""
    oracle = save(tmp_path, transformers.LEDConfig(**_LED), "LEDForConditionalGeneration").to(device)
    (text,) = random_ids(VOCAB, [60])
    ids = torch.tensor([text], device=device)
    first = torch.zeros_like(ids)
    first[:, 0] = 1
    ours = load(tmp_path, device).transformer.encode(encoder_batch([text], device))
    encoder = oracle.get_encoder()
    torch.testing.assert_close(ours, encoder(ids).last_hidden_state[0], atol=1e-4, rtol=1e-4)
    assert (ours - encoder(ids, global_attention_mask=first).last_hidden_state[0]).abs().max() > 0.1
