"""Encoder-decoders with heads other than a language model head equal transformers.

Classification and question answering use encoder and decoder. Token classification with T5 uses only the encoder.
"""

from __future__ import annotations

import pytest
import torch
import transformers

from tests.parity.cases import BART
from tests.parity.checkpoints import edit_config, forget_short_texts, load, random_ids, save
from tests.parity.paged import encoder_batch

VOCAB, END = 97, 1
SMALL = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 2}
_DEEP_ENCODER = {
    **SMALL,
    "d_kv": 12,
    "num_layers": 3,
    "num_decoder_layers": 1,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
    "decoder_start_token_id": 5,
}
_BART = {"vocab_size": VOCAB, **BART}
_UNLIKE = {**_BART, "encoder_layers": 3, "decoder_layers": 1, "decoder_attention_heads": 2}
_LED = {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 40}
T5 = {
    "t5": ("T5", {**SMALL, "decoder_start_token_id": 0}),
    "t5-1.1-deep-encoder": ("T5", _DEEP_ENCODER),
    "mt5": ("MT5", {**SMALL, "decoder_start_token_id": 0}),
    "mt5-deep-encoder": ("MT5", _DEEP_ENCODER),
    "umt5": ("UMT5", {**SMALL, "decoder_start_token_id": 0}),
    "umt5-deep-encoder": ("UMT5", {**_DEEP_ENCODER, "feed_forward_proj": "gated-silu"}),
}
ANSWERS = T5 | {
    "bart": ("Bart", _BART),
    "mvp": ("Mvp", _BART),
    "mvp-scaled-deep-encoder": ("Mvp", {**_UNLIKE, "scale_embedding": True, "decoder_start_token_id": 7}),
    "bart-scaled-deep-encoder": ("Bart", {**_UNLIKE, "scale_embedding": True, "decoder_start_token_id": 7}),
    # In mBART, the decoder starts with the last token of the text that is not padding.
    "mbart": ("MBart", {**_BART, "pad_token_id": 0}),
    "mbart-scaled-deep-encoder": ("MBart", {**_UNLIKE, "scale_embedding": True, "pad_token_id": 0}),
    "led": ("LED", {**_BART, **_LED, "attention_window": 8}),
    "led-deep-encoder": ("LED", {**_UNLIKE, **_LED, "attention_window": [4, 16, 8], "decoder_start_token_id": 7}),
    "bigbird-pegasus": ("BigBirdPegasus", {**_BART, "block_size": 2, "num_random_blocks": 1}),
    "bigbird-pegasus-biased": (
        "BigBirdPegasus",
        {**_UNLIKE, "block_size": 1, "num_random_blocks": 3, "use_bias": True, "decoder_start_token_id": 7},
    ),
}
TEXTS = [[*text, END] for text in random_ids(VOCAB, (5, 1, 17, 9, 23))]


def saved(directory, case, head, device, **options):
    """Save a random checkpoint. Returns the model that transformers loads from it."""
    stem, settings = case
    config = getattr(transformers, f"{stem}Config")(**settings, **options)
    return save(directory, config, f"{stem}For{head}").to(device)


def one_by_one(oracle):
    found = []
    for text in TEXTS:
        forget_short_texts(oracle)
        found.append(oracle(torch.tensor([text], device=oracle.device)))
    return found


@pytest.mark.parametrize("labels", [1, 5])
@pytest.mark.parametrize("name", T5)
@torch.inference_mode()
def test_class_logits(name, labels, tmp_path, device):
    oracle = saved(tmp_path, T5[name], "SequenceClassification", device, num_labels=labels)
    loaded, batch = load(tmp_path, device), encoder_batch(TEXTS, device)
    found = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
    expected = torch.cat([output.logits for output in one_by_one(oracle)])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert expected.std() > 0.1
    assert loaded.tasks == (("classify", "rerank") if labels == 1 else ("classify",))
    alone = [encoder_batch([text], device) for text in TEXTS]
    parts = [loaded.transformer.classify(loaded.transformer.encode(text_batch), text_batch) for text_batch in alone]
    torch.testing.assert_close(torch.cat(parts), found, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_another_start_token_is_detected(tmp_path, device):
    """Negative control: with a wrong first decoder token, the logits differ by far more than the tolerance."""
    oracle = saved(tmp_path, T5["t5"], "SequenceClassification", device)
    edit_config(tmp_path, decoder_start_token_id=9)
    loaded, batch = load(tmp_path, device), encoder_batch(TEXTS, device)
    found = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
    expected = torch.cat([output.logits for output in one_by_one(oracle)])
    assert (found - expected).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("name", T5)
@torch.inference_mode()
def test_token_logits(name, tmp_path, device):
    oracle = saved(tmp_path, T5[name], "TokenClassification", device, num_labels=4)
    loaded, batch = load(tmp_path, device), encoder_batch(TEXTS, device)
    found = loaded.transformer.classify_tokens(loaded.transformer.encode(batch), batch)
    expected = torch.cat([output.logits[0] for output in one_by_one(oracle)])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert loaded.tasks == ("token_classify",)


def spans(oracle):
    pairs = [(output.start_logits[0], output.end_logits[0]) for output in one_by_one(oracle)]
    return torch.cat([torch.stack(pair, dim=1) for pair in pairs])


@pytest.mark.parametrize("name", ANSWERS)
@torch.inference_mode()
def test_span_logits(name, tmp_path, device):
    oracle = saved(tmp_path, ANSWERS[name], "QuestionAnswering", device, num_labels=2)
    loaded, batch = load(tmp_path, device), encoder_batch(TEXTS, device)
    found = loaded.transformer.classify_tokens(loaded.transformer.encode(batch), batch)
    expected = spans(oracle)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    batches = [encoder_batch([text], device) for text in TEXTS]
    alone = [
        loaded.transformer.classify_tokens(loaded.transformer.encode(text_batch), text_batch) for text_batch in batches
    ]
    torch.testing.assert_close(torch.cat(alone), found, atol=1e-5, rtol=1e-5)
    assert (loaded.tasks, loaded.labels) == (("question_answer",), ())


@torch.inference_mode()
def test_missing_decoder_pass_is_detected(tmp_path, device, monkeypatch):
    """Negative control: without the pass through the decoder, the logits differ."""
    oracle = saved(tmp_path, ANSWERS["bart"], "QuestionAnswering", device, num_labels=2)
    loaded, batch = load(tmp_path, device), encoder_batch(TEXTS, device)
    monkeypatch.setattr(type(loaded.transformer), "_reread", lambda self, hidden, batch: hidden)
    found = loaded.transformer.classify_tokens(loaded.transformer.encode(batch), batch)
    assert (found - spans(oracle)).abs().amax() > 1e-2
