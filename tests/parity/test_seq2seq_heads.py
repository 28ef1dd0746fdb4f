"""T5 with other heads equals transformers: classes of texts, which go through both stacks, and labels of tokens."""

from __future__ import annotations

import pytest
import torch
import transformers

from tests.parity.checkpoints import edit_config, load, random_ids, save
from tests.parity.paged import encoder_batch

VOCAB, END = 97, 1
SMALL = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 2}
SHAPES = {
    "t5": {**SMALL, "decoder_start_token_id": 0},
    "t5-1.1-deep-encoder": {
        **SMALL,
        "d_kv": 12,
        "num_layers": 3,
        "num_decoder_layers": 1,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "decoder_start_token_id": 5,
    },
}
TEXTS = [[*text, END] for text in random_ids(VOCAB, (5, 1, 17, 9, 23))]


@pytest.fixture(params=SHAPES)
def shape(request):
    return SHAPES[request.param]


def one_by_one(oracle):
    return [oracle(torch.tensor([text], device=oracle.device)) for text in TEXTS]


@pytest.mark.parametrize("labels", [1, 5])
@torch.inference_mode()
def test_class_logits(shape, labels, tmp_path, device):
    config = transformers.T5Config(**shape, num_labels=labels)
    oracle = save(tmp_path, config, "T5ForSequenceClassification").to(device)
    loaded, batch = load(tmp_path, device), encoder_batch(TEXTS, device)
    found = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
    expected = torch.cat([output.logits for output in one_by_one(oracle)])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert expected.std() > 0.1
    assert loaded.tasks == (("classify", "rerank") if labels == 1 else ("classify",))
    alone = [encoder_batch([text], device) for text in TEXTS]
    parts = [loaded.transformer.classify(loaded.transformer.encode(one), one) for one in alone]
    torch.testing.assert_close(torch.cat(parts), found, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_another_start_token_shows(tmp_path, device):
    """Negative control: what the decoder reads first changes the logits by far more than the tolerance."""
    oracle = save(tmp_path, transformers.T5Config(**SHAPES["t5"]), "T5ForSequenceClassification").to(device)
    edit_config(tmp_path, decoder_start_token_id=9)
    loaded, batch = load(tmp_path, device), encoder_batch(TEXTS, device)
    found = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
    expected = torch.cat([output.logits for output in one_by_one(oracle)])
    assert (found - expected).abs().amax(-1).min() > 1e-3


@torch.inference_mode()
def test_token_logits(shape, tmp_path, device):
    oracle = save(tmp_path, transformers.T5Config(**shape, num_labels=4), "T5ForTokenClassification").to(device)
    loaded = load(tmp_path, device)
    found = loaded.transformer.classify_tokens(loaded.transformer.encode(encoder_batch(TEXTS, device)))
    expected = torch.cat([output.logits[0] for output in one_by_one(oracle)])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert loaded.tasks == ("token_classify",)
