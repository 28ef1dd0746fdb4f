"""The text part of ModernVBERT equals transformers. We do not load its vision part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from tests.parity.checkpoints import load, random_ids, save
from tests.parity.paged import encoder_batch

VOCAB = 97
LENGTHS = (1, 7, 23, 12)
SHAPES = {
    "": {"num_hidden_layers": 4, "local_attention": 6},
    "biases": {"num_hidden_layers": 3, "classifier_bias": True, "norm_bias": True, "num_attention_heads": 2},
}


def config(shape: str, **changes) -> transformers.ModernVBertConfig:
    """Configuration of a small ModernVBERT. changes: settings that are not in its text part."""
    text = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4}
    text |= {"max_position_embeddings": 64, "pad_token_id": 0, "sep_token_id": 1, "cls_token_id": 2, **SHAPES[shape]}
    picture = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    tower = {"model_type": "siglip_vision_model", **picture, "image_size": 32, "patch_size": 4}
    return transformers.ModernVBertConfig(
        text_config={"model_type": "modernbert", **text}, vision_config=tower, image_token_id=3, **changes
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tied", [False, True])
@torch.inference_mode()
def test_masked_words(shape: str, tied: bool, tmp_path: Path, device: torch.device) -> None:
    oracle = save(tmp_path, config(shape, tie_word_embeddings=tied), "ModernVBertForMaskedLM").to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS, low=4)
    theirs = torch.cat([oracle(torch.tensor([text], device=device)).logits[0] for text in texts])
    found = loaded.transformer.logits(loaded.transformer.encode(encoder_batch(texts, device)))
    torch.testing.assert_close(found, theirs, atol=1e-4, rtol=1e-4)
    assert loaded.tasks == ("embed", "fill_mask") and theirs.std() > 0.1


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_vectors(shape: str, tmp_path: Path, device: torch.device) -> None:
    oracle = save(tmp_path, config(shape), "ModernVBertModel").to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS, low=4)
    theirs = [oracle(torch.tensor([text], device=device)).last_hidden_state[0] for text in texts]
    hidden = loaded.transformer.encode(encoder_batch(texts, device))
    torch.testing.assert_close(hidden, torch.cat(theirs), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@torch.inference_mode()
def test_classes(pooling: str, tmp_path: Path, device: torch.device) -> None:
    settings = config("biases", classifier_pooling=pooling, num_labels=3)
    oracle = save(tmp_path, settings, "ModernVBertForSequenceClassification").to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS, low=4)
    batch = encoder_batch(texts, device)
    theirs = torch.cat([oracle(torch.tensor([text], device=device)).logits for text in texts])
    found = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
    torch.testing.assert_close(found, theirs, atol=1e-4, rtol=1e-4)
