"""The text part of Gemma 3n, Gemma 4 and Llama 4 checkpoints, which also read pictures, equals transformers."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.families import FAMILIES, family_of
from tests.parity.checkpoints import load, random_ids, save, write_model
from tests.parity.further_decoder_cases import FURTHER_CASES
from tests.parity.paged import Rows, chunked, greedy
from weights.load import WeightsError

VOCAB = 97
LENGTHS = (1, 7, 23, 12)
_TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}


def _text(name):
    """The configuration of a text part, taken from the decoder cases."""
    return FURTHER_CASES[name][1]


def _gemma4(text):
    tower = transformers.Gemma4VisionConfig(**_TOWER, num_key_value_heads=2, head_dim=8, position_embedding_size=16)
    return transformers.Gemma4Config(text_config=_text(text), vision_config=tower, audio_config=None)


def _gemma4_unified(text):
    embedder = transformers.Gemma4UnifiedVisionConfig(
        patch_size=2, pooling_kernel_size=1, mm_embed_dim=32, mm_posemb_size=8, output_proj_dims=32
    )
    return transformers.Gemma4UnifiedConfig(text_config=_text(text), vision_config=embedder, audio_config=None)


def _llama4(text):
    tower = transformers.Llama4VisionConfig(
        **_TOWER, vision_output_dim=16, image_size=8, patch_size=4, projector_input_dim=16, projector_output_dim=16
    )
    return transformers.Llama4Config(text_config=_text(text), vision_config=tower)


CASES = {
    "gemma4": ("Gemma4ForConditionalGeneration", lambda: _gemma4("gemma4")),
    "gemma4-values-of-keys": ("Gemma4ForConditionalGeneration", lambda: _gemma4("gemma4-values-of-keys-capped")),
    "gemma4-unified": ("Gemma4UnifiedForConditionalGeneration", lambda: _gemma4_unified("gemma4-unified")),
    "gemma4-unified-values-of-keys": (
        "Gemma4UnifiedForConditionalGeneration",
        lambda: _gemma4_unified("gemma4-unified-values-of-keys"),
    ),
    "llama4": ("Llama4ForConditionalGeneration", lambda: _llama4("llama4")),
    "llama4-two-experts": ("Llama4ForConditionalGeneration", lambda: _llama4("llama4-two-experts-plain-heads")),
}
SHAPES = {"gemma4": 2, "gemma4_unified": 2, "llama4": 2, "gemma3n": 2}
"""Number of shapes (small configurations) that this file compares, per family."""


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_text_part(name, tmp_path, device):
    architecture, config = CASES[name]
    oracle = save(tmp_path, config(), architecture).to(device)
    assert any("vision" in key for key in load_file(tmp_path / "model.safetensors"))
    _compare(oracle, load(tmp_path, device).transformer, device)


@pytest.mark.parametrize("name", ["gemma3n", "gemma3n-two-streams-uncorrected"])
@torch.inference_mode()
def test_text_part_of_gemma3n(name, tmp_path, device):
    """The vision part needs another library, so only the text part is saved, with its names from a whole checkpoint."""
    config = _text(name)
    oracle = save(tmp_path, config, "Gemma3nForCausalLM").to(device)
    as_gemma3n(tmp_path, config)
    _compare(oracle, load(tmp_path, device).transformer, device)


def test_a_tensor_of_no_part_is_refused(tmp_path, device):
    architecture, config = CASES["llama4"]
    write_model(tmp_path, config(), architecture)
    stored = load_file(tmp_path / "model.safetensors")
    save_file(stored | {"stranger.weight": torch.ones(3)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match=r"unexpected \(stranger\.weight\)"):
        load(tmp_path, device)


@pytest.mark.parametrize("kind", SHAPES)
def test_picture_models_generate_text_only(kind):
    family, architecture = family_of({"model_type": kind, "architectures": [_multimodal(kind)]})
    assert family.architectures[architecture] == ("generate",)


def _multimodal(kind):
    return next(name for name in FAMILIES[kind].architectures if name.endswith("ForConditionalGeneration"))


def as_gemma3n(directory, config):
    """Rewrite a saved text part with the names and settings that it has in a Gemma 3n checkpoint with pictures."""
    stored = load_file(directory / "model.safetensors")
    renamed = {key.replace("model.", "model.language_model.", 1): tensor for key, tensor in stored.items()}
    others = {f"model.{part}.weight": torch.ones(3) for part in ("vision_tower.stem", "embed_audio.norm")}
    save_file(renamed | others, directory / "model.safetensors", {"format": "pt"})
    settings = {
        "model_type": "gemma3n",
        "architectures": ["Gemma3nForConditionalGeneration"],
        "text_config": config.to_dict(),
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    (directory / "config.json").write_text(json.dumps(settings))


def _compare(oracle, model, device):
    """Assert that the logits, computed in chunks, and the greedy text equal transformers."""
    texts = random_ids(VOCAB, LENGTHS, low=4)
    for text, hidden in zip(texts, chunked(Rows(model), texts), strict=True):
        expected = oracle(torch.tensor([text], device=device)).logits[0]
        torch.testing.assert_close(model.logits(hidden), expected, atol=1e-4, rtol=1e-4)
    for prompt, answer in zip(texts, greedy(Rows(model), texts, 20), strict=True):
        logits = oracle(torch.tensor([prompt + answer], device=device)).logits[0]
        assert answer == logits[len(prompt) - 1 : -1].argmax(-1).tolist()
