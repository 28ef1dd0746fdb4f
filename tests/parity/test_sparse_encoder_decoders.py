"""Encoder-decoders with sparse attention equal transformers on sources far longer than the window."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from models.config import ConfigError
from models.families import family_of
from models.layers.sparse_attention import TransientGlobalAttention
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.ipc.wire.descriptions import ModelSpec
from tests.engine.harness import Pair, generate, reference, run
from tests.parity.checkpoints import edit_config, forget_short_texts, load, random_ids, save, write_model
from tests.parity.largest import largest
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
_LONGT5 = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "local_radius": 7,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "decoder_start_token_id": 0,
}
_WIDE_LONGT5 = {
    **_LONGT5,
    "d_model": 48,
    "num_layers": 3,
    "num_decoder_layers": 1,
    "num_heads": 3,
    "local_radius": 4,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
_SUMMARIES = {"encoder_attention_type": "transient-global", "global_block_size": 4}
_PEGASUS = {
    **{name: value for name, value in _LED.items() if "coder_position" not in name and name != "attention_window"},
    "max_position_embeddings": 160,
    "block_size": 4,
    "num_random_blocks": 1,
}
_WIDE_PEGASUS = {
    **_PEGASUS,
    "d_model": 48,
    "encoder_layers": 3,
    "decoder_attention_heads": 2,
    "block_size": 2,
    "num_random_blocks": 3,
    "use_bias": True,
    "scale_embedding": False,
    "activation_function": "relu",
}
CASES = {
    "led": ("LED", _LED),
    "led-windows": ("LED", _WIDE_LED),
    "bigbird-pegasus": ("BigBirdPegasus", _PEGASUS),
    "bigbird-pegasus-biased-unscaled": ("BigBirdPegasus", _WIDE_PEGASUS),
    "bigbird-pegasus-full": ("BigBirdPegasus", {**_PEGASUS, "attention_type": "original_full"}),
    "longt5-local": ("LongT5", _LONGT5),
    "longt5-local-gated-untied": ("LongT5", _WIDE_LONGT5),
    "longt5-summaries": ("LongT5", {**_LONGT5, **_SUMMARIES}),
    "longt5-summaries-gated-untied": ("LongT5", {**_WIDE_LONGT5, **_SUMMARIES, "global_block_size": 16}),
}


def _untie(model) -> None:
    model.lm_head.weight = nn.Parameter(0.2 * torch.randn(VOCAB, model.config.d_model))


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory, device) -> Pair:
    family, options = CASES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    config = getattr(transformers, f"{family}Config")(**options)
    change = _untie if "untied" in request.param else None
    oracle = save(directory, config, f"{family}ForConditionalGeneration", change=change).to(device)
    spec = ModelSpec(request.param, str(directory), "float32")
    return Pair(request.param, oracle, LoadedCheckpoint(spec, load(directory, device), torch.float32, device, 0.0))


@torch.inference_mode()
def encoded(oracle, text):
    """Encoder states that transformers computes for one text."""
    forget_short_texts(oracle)
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
    """The engine runs all sources together and gives the tokens of transformers' `generate` for each source alone."""
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


LONG = 2048


@pytest.mark.parametrize("case", ["led", "longt5-local", "bigbird-pegasus"])
def test_memory_grows_linearly_with_the_length(case, saved, device):
    """No tensor has nearly seq * seq elements, and a source of twice the length at most doubles the largest tensor."""
    family, options = CASES[case]
    options = {name: 2 * LONG if "position_embeddings" in name else value for name, value in options.items()}
    directory = saved(getattr(transformers, f"{family}Config")(**options), f"{family}ForConditionalGeneration")
    model = load(directory, device).transformer
    once, twice = (largest(model, VOCAB, length) for length in (LONG, 2 * LONG))
    assert once < LONG * LONG / 8
    assert twice < 2.1 * once


def test_memory_of_summaries(saved, device):
    """LongT5 with one summary per 16 tokens computes scores for the window and for 1/16 of all pairs of tokens."""
    config = transformers.LongT5Config(**_LONGT5, encoder_attention_type="transient-global")
    directory = saved(config, "LongT5EncoderModel")
    assert largest(load(directory, device).transformer, VOCAB, LONG) < config.num_heads * LONG * LONG / 8


def test_led_refuses_unsupported_settings():
    hf = {**transformers.LEDConfig(**_LED).to_dict(), "scale_embedding": True}
    family, architecture = family_of({**hf, "architectures": ["LEDModel"]})
    with pytest.raises(ConfigError, match="scale_embedding"):
        family.config(hf, architecture)


@torch.inference_mode()
def test_led_has_no_global_tokens_by_default(tmp_path, device):
    """`generate` of transformers has no global tokens by default. A global first token would change the results."""
    oracle = save(tmp_path, transformers.LEDConfig(**_LED), "LEDForConditionalGeneration").to(device)
    (text,) = random_ids(VOCAB, [60])
    ids = torch.tensor([text], device=device)
    first = torch.zeros_like(ids)
    first[:, 0] = 1
    ours = load(tmp_path, device).transformer.encode(encoder_batch([text], device))
    encoder = oracle.get_encoder()
    torch.testing.assert_close(ours, encoder(ids).last_hidden_state[0], atol=1e-4, rtol=1e-4)
    assert (ours - encoder(ids, global_attention_mask=first).last_hidden_state[0]).abs().max() > 0.1


@torch.inference_mode()
def test_longt5_encoder_alone(tmp_path, device):
    config = transformers.LongT5Config(**_LONGT5, **_SUMMARIES)
    oracle = save(tmp_path, config, "LongT5EncoderModel").to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    hidden = loaded.transformer.encode(encoder_batch(texts, device)).split(LENGTHS)
    for ours, text in zip(hidden, texts, strict=True):
        theirs = oracle(torch.tensor([text], device=device)).last_hidden_state[0]
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert (loaded.tasks, loaded.context_tokens) == (("embed",), 16384)


@torch.inference_mode()
def test_longt5_settings_before_transformers_5(tmp_path, device):
    """Before transformers 5, `tie_word_embeddings: false` alone meant T5 version 1.1: an untied, unscaled head."""
    write_model(tmp_path, transformers.LongT5Config(**_WIDE_LONGT5), "LongT5ForConditionalGeneration", change=_untie)
    edit_config(tmp_path, scale_decoder_outputs=None, tie_word_embeddings=False)
    oracle = transformers.LongT5ForConditionalGeneration.from_pretrained(tmp_path).eval().to(device)
    spec = ModelSpec("old", str(tmp_path), "float32")
    old = Pair("old", oracle, LoadedCheckpoint(spec, load(tmp_path, device), torch.float32, device, 0.0))
    (text,) = random_ids(VOCAB, [40])
    results = run(old.engine(), [generate(old, 0, text, max_new_tokens=20)])
    assert results.texts(0) == reference(old, text, max_new_tokens=20)[0]


@pytest.mark.parametrize(
    "setting, value",
    [("encoder_attention_type", "full"), ("global_block_size", 6), ("local_radius", 0), ("feed_forward_proj", "mish")],
)
def test_longt5_refuses_unsupported_settings(setting, value):
    hf = {**transformers.LongT5Config(**_LONGT5, **_SUMMARIES).to_dict(), setting: value}
    family, architecture = family_of({**hf, "architectures": ["LongT5EncoderModel"]})
    with pytest.raises(ConfigError, match=setting):
        family.config(hf, architecture)


def _lose_last_tokens(self, hidden, key, value, plan):
    """Planted bug: tokens after the last full summary are lost."""
    count = len(hidden) // self.config.summary_tokens
    return _SHARED(self, hidden[: count * self.config.summary_tokens], key, value, plan)


def _skip_norm(self, hidden, key, value, plan):
    """Planted bug: summaries are not normalised."""
    count = len(hidden) // self.config.summary_tokens
    sums = torch.stack([part.sum(0) for part in hidden.split(self.config.summary_tokens)])[:count]
    return self.queries_keys_values(sums, {})[1:] if count else None


_SHARED = TransientGlobalAttention._shared_keys_values


@pytest.mark.parametrize("planted", [_lose_last_tokens, _skip_norm])
@torch.inference_mode()
def test_planted_bug_is_detected(planted, tmp_path, device, monkeypatch):
    """Negative control: each of these bugs changes the encoder states."""
    config = transformers.LongT5Config(**_LONGT5, **_SUMMARIES)
    oracle = save(tmp_path, config, "LongT5EncoderModel").to(device)
    model, (text,) = load(tmp_path, device).transformer, random_ids(VOCAB, [70])
    theirs = oracle(torch.tensor([text], device=device)).last_hidden_state[0]
    torch.testing.assert_close(model.encode(encoder_batch([text], device)), theirs, atol=1e-4, rtol=1e-4)
    monkeypatch.setattr(TransientGlobalAttention, "_shared_keys_values", planted)
    assert (model.encode(encoder_batch([text], device)) - theirs).abs().max() > 0.01


@torch.inference_mode()
def test_bigbird_pegasus_classifies_by_its_last_end_token(tmp_path, device):
    config = transformers.BigBirdPegasusConfig(**_PEGASUS, num_labels=4)
    oracle = save(tmp_path, config, "BigBirdPegasusForSequenceClassification").to(device)
    loaded = load(tmp_path, device)
    texts = [[*text, 1] for text in random_ids(VOCAB, (2, 60, 27, 28))] + [[5, 1, 6, 7, 1, 9]]
    batch = encoder_batch(texts, device)
    found = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
    for text, ours in zip(texts, found, strict=True):
        forget_short_texts(oracle)
        theirs = oracle(torch.tensor([text], device=device)).logits[0]
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert loaded.tasks == ("classify",) and len(loaded.labels) == 4
