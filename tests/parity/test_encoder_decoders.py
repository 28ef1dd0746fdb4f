"""Encoder-decoders equal transformers: hidden states, logits, cached cross-attention, greedy text, classification."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from transformers import (
    BartConfig,
    BlenderbotConfig,
    BlenderbotSmallConfig,
    M2M100Config,
    MBartConfig,
    MT5Config,
    MvpConfig,
    PegasusConfig,
    PLBartConfig,
    SwitchTransformersConfig,
    T5Config,
    UMT5Config,
)

from models.config import ConfigError
from tests.parity.checkpoints import edit_config, forget_short_texts, load, random_ids, save
from tests.parity.encoder_decoder_cases import CASES, TINY_BART, TINY_T5, VOCAB, own_logits, untie
from tests.parity.paged import Rows, chunked, encoder_batch, greedy, one_by_one, one_shot

SOURCES = (5, 19, 1, 12, 5)
TARGETS = (11, 1, 18, 6, 9)
NO_FLOAT16 = ("t5", "mt5", "umt5", "longt5", "switch_transformers", "t5gemma", "t5gemma2")


@pytest.fixture(scope="module", params=CASES, ids=str)
def pair(request, tmp_path_factory, device):
    architecture, config, change = CASES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    oracle = save(directory, config, architecture, change=change).to(device)
    return oracle, load(directory, device), directory


def texts_of(loaded):
    encoder, decoder = loaded.config.encoder.embedding, loaded.config.decoder.embedding
    return random_ids(encoder.vocab_size, SOURCES), random_ids(min(decoder.vocab_size, 71), TARGETS, seed=2)


def expected(oracle, sources, targets):
    """Encoder states, last decoder states and logits of transformers, one pair of source and target at a time."""
    return _outputs(oracle, tuple(map(tuple, sources)), tuple(map(tuple, targets)))


# Several tests of a case need the same outputs.
@lru_cache(maxsize=8)
@torch.inference_mode()
def _outputs(oracle, sources, targets):
    # With a cache, FSMT of transformers has no causal mask for several tokens.
    cache = {"use_cache": False} if oracle.config.model_type == "fsmt" else {}
    results = []
    for source, target in zip(sources, targets, strict=True):
        forget_short_texts(oracle)
        output = oracle(
            input_ids=torch.tensor([source], device=oracle.device),
            attention_mask=torch.ones(1, len(source), device=oracle.device),
            decoder_input_ids=torch.tensor([target], device=oracle.device),
            output_hidden_states=True,
            **cache,
        )
        results.append((output.encoder_last_hidden_state[0], output.decoder_hidden_states[-1][0], output.logits[0]))
    return results


@pytest.mark.parametrize("way", [one_shot, chunked, one_by_one])
def test_decoder_states_and_logits(pair, way):
    oracle, loaded, _ = pair
    sources, targets = texts_of(loaded)
    hidden = way(Rows(loaded.transformer, sources), targets)
    for ours, (_, theirs, logits) in zip(hidden, expected(oracle, sources, targets), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(loaded.transformer.logits(ours), logits, atol=1e-4, rtol=1e-4)
        assert logits.std(-1).min() > 0.1


def test_encoder_states(pair, device):
    oracle, loaded, _ = pair
    sources, targets = texts_of(loaded)
    with torch.inference_mode():
        hidden = loaded.transformer.encode(encoder_batch(sources, device)).split(SOURCES)
    for ours, (theirs, _, _) in zip(hidden, expected(oracle, sources, targets), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_greedy_text(pair):
    """Each token of our text is the most likely next token in the reference."""
    oracle, loaded, _ = pair
    sources, _ = texts_of(loaded)
    start = list(loaded.generation.decoder_start_token_ids)
    answers = greedy(Rows(loaded.transformer, sources), [start] * len(sources), 20)
    for source, answer in zip(sources, answers, strict=True):
        ((_, _, logits),) = expected(oracle, [source], [start + answer])
        assert answer == logits[:-1].argmax(-1).tolist()


@pytest.mark.rare_family
def test_generated_tokens_are_never_beyond_a_capacity(tmp_path, device):
    """Our answers equal `generate` of transformers, which gives the experts one token at a time.

    With a whole text at once, transformers exceeds `expert_capacity`, drops most tokens and computes other logits.
    """
    config = SwitchTransformersConfig(
        **TINY_T5,
        num_decoder_layers=2,
        num_sparse_encoder_layers=2,
        num_sparse_decoder_layers=2,
        num_experts=2,
        expert_capacity=1,
    )
    oracle = save(tmp_path, config, "SwitchTransformersForConditionalGeneration").to(device)
    sources = random_ids(VOCAB, SOURCES)
    answers = greedy(Rows(load(tmp_path, device).transformer, sources), [[0]] * len(sources), 12)
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": VOCAB + 1, "pad_token_id": 0}
    differs = 0
    for source, answer in zip(sources, answers, strict=True):
        theirs = oracle.generate(torch.tensor([source], device=device), **settings)[0, 1:].tolist()
        assert answer == theirs
        ((_, _, logits),) = expected(oracle, [source], [[0, *answer]])
        differs += answer != logits[:-1].argmax(-1).tolist()
    assert differs > 0


@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 0.1), (torch.float16, 0.015)], ids=str)
def test_half_precision_is_close_to_float32(pair, device, dtype, bound):
    """The mean error of logits is small relative to their standard deviation. The errors of both stacks add up."""
    oracle, loaded, directory = pair
    if loaded.family in NO_FLOAT16 and dtype == torch.float16:
        with pytest.raises(ConfigError, match="float16"):
            load(directory, device, dtype)
        return
    model = load(directory, device, dtype).transformer
    sources, targets = texts_of(loaded)
    hidden = one_shot(Rows(model, sources), targets)
    for ours, (_, _, logits) in zip(hidden, expected(oracle, sources, targets), strict=True):
        assert (model.logits(ours) - logits).abs().mean() < bound * logits.std()


@pytest.mark.parametrize("scaled", [False, True])
def test_bart_classifies_by_its_decoder(tmp_path, device, scaled):
    config = BartConfig(**TINY_BART, num_labels=4, scale_embedding=scaled)
    oracle = save(tmp_path, config, "BartForSequenceClassification").to(device)
    loaded = load(tmp_path, device)
    texts = [[0, *text, 2] for text in random_ids(VOCAB, (3, 17, 8, 3, 1))]
    batch = encoder_batch(texts, device)
    with torch.inference_mode():
        ours = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
        theirs = torch.cat([oracle(torch.tensor([text], device=device)).logits for text in texts])
    assert loaded.tasks == ("classify",) and len(loaded.labels) == 4
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [MBartConfig, PLBartConfig, MvpConfig], ids=lambda kind: kind.model_type)
@pytest.mark.parametrize("ends", [[2, 9], [2, 2, 9], [9, 5, 2]], ids=["mbart", "twice", "mbart-50"])
def test_mbart_classifies_by_its_last_end_token(tmp_path, device, ends, kind):
    """mBART texts end with a language token, which also starts the decoder; mBART-50 texts begin with it."""
    start = {"decoder_start_token_id": ends[-1]} if kind is MvpConfig else {}
    config = kind(**TINY_BART, **start, num_labels=4, scale_embedding=len(ends) == 2)
    oracle = save(tmp_path, config, kind.__name__.replace("Config", "ForSequenceClassification")).to(device)
    loaded = load(tmp_path, device)
    texts = [[*text, *ends] for text in random_ids(VOCAB, (3, 17, 8, 3, 1))]
    batch = encoder_batch(texts, device)
    with torch.inference_mode():
        ours = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
        theirs = torch.cat([oracle(torch.tensor([text], device=device)).logits for text in texts])
    assert loaded.tasks == ("classify",) and len(loaded.labels) == 4
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [T5Config, MT5Config, UMT5Config], ids=lambda kind: kind.model_type)
def test_t5_encoder_alone(tmp_path, device, kind):
    oracle = save(tmp_path, kind(**TINY_T5), kind.__name__.replace("Config", "EncoderModel")).to(device)
    loaded = load(tmp_path, device)
    texts = random_ids(VOCAB, SOURCES)
    with torch.inference_mode():
        hidden = loaded.transformer.encode(encoder_batch(texts, device)).split(SOURCES)
        for ours, text in zip(hidden, texts, strict=True):
            theirs = oracle(torch.tensor([text], device=device)).last_hidden_state[0]
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "kind",
    [
        BartConfig,
        MvpConfig,
        PLBartConfig,
        MBartConfig,
        M2M100Config,
        PegasusConfig,
        BlenderbotConfig,
        BlenderbotSmallConfig,
    ],
    ids=lambda kind: kind.model_type,
)
def test_checkpoint_without_head(tmp_path, device, kind):
    """A checkpoint without a head, such as `BartModel`, has no bias of logits; zeros take its place."""
    bare = save(tmp_path, kind(**TINY_BART), kind.__name__.replace("Config", "Model"))
    loaded = load(tmp_path, device)
    hidden = one_shot(Rows(loaded.transformer, [[5, 6, 7]]), [[2, 9]])[0]
    with torch.inference_mode():
        logits = loaded.transformer.logits(hidden).cpu()
    torch.testing.assert_close(logits, hidden.cpu() @ bare.shared.weight.detach().T, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_t5_logits_scaling_with_tied_and_untied_heads(tmp_path, device, own, scaled):
    def change(model):
        model.config.scale_decoder_outputs = scaled
        if own:
            own_logits(model)

    oracle = save(tmp_path, T5Config(**TINY_T5), "T5ForConditionalGeneration", change=change).to(device)
    edit_config(tmp_path, tie_word_embeddings=not own)
    loaded = load(tmp_path, device)
    hidden = one_shot(Rows(loaded.transformer, [[5, 6, 7]]), [[0, 9]])[0]
    ((_, _, theirs),) = expected(oracle, [[5, 6, 7]], [[0, 9]])
    torch.testing.assert_close(loaded.transformer.logits(hidden), theirs, atol=1e-4, rtol=1e-4)


def test_published_umt5_does_not_scale_logits(tmp_path, device):
    """Before transformers 5, `tie_word_embeddings: false` meant unscaled logits; transformers 5 scales them."""
    oracle = save(tmp_path, UMT5Config(**TINY_T5), "UMT5ForConditionalGeneration", change=own_logits).to(device)
    edit_config(tmp_path, tie_word_embeddings=False)
    loaded = load(tmp_path, device)
    hidden = one_shot(Rows(loaded.transformer, [[5, 6, 7]]), [[0, 9]])[0]
    ((_, _, theirs),) = expected(oracle, [[5, 6, 7]], [[0, 9]])
    torch.testing.assert_close(loaded.transformer.logits(hidden), theirs * 32**0.5, atol=1e-4, rtol=1e-4)


def test_t5_settings_before_transformers_5(tmp_path, device):
    """Before transformers 5, `tie_word_embeddings: false` alone means T5 version 1.1."""
    oracle = save(tmp_path, T5Config(**TINY_T5, tie_word_embeddings=False), "T5ForConditionalGeneration", change=untie)
    edit_config(tmp_path, scale_decoder_outputs=None, tie_word_embeddings=False)
    loaded = load(tmp_path, device)
    hidden = one_shot(Rows(loaded.transformer, [[5, 6, 7]]), [[0, 9]])[0]
    with torch.inference_mode():
        theirs = oracle(torch.tensor([[5, 6, 7]]), decoder_input_ids=torch.tensor([[0, 9]])).logits[0]
    torch.testing.assert_close(loaded.transformer.logits(hidden).cpu(), theirs, atol=1e-4, rtol=1e-4)
