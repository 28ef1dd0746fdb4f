"""The text part of models that also read pictures equals transformers, for both sets of tensor names of Gemma 3."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.parity.checkpoints import load, random_ids, save
from tests.parity.paged import Rows, chunked, greedy

VOCAB = 97
LENGTHS = (1, 7, 23, 12)


def gemma3_config(**changes):
    """Configuration of a small Gemma 3 that reads pictures. changes: changed settings of its text part."""
    text = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "sliding_window": 5,
        "sliding_window_pattern": 2,
        "max_position_embeddings": 64,
        **changes,
    }
    picture = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    tower = transformers.SiglipVisionConfig(**picture, image_size=28, patch_size=14)
    return transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**text), vision_config=tower, image_token_index=3
    )


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 1, "head_dim": 8}], ids=["", "multi-query"])
@torch.inference_mode()
def test_text_part(in_memory, changes, tmp_path, device):
    oracle = save(tmp_path, gemma3_config(**changes), "Gemma3ForConditionalGeneration").to(device)
    names = load_file(tmp_path / "model.safetensors")
    assert any("vision_tower" in name for name in names)
    if in_memory:
        save_file({_as_in_memory(name): tensor for name, tensor in names.items()}, tmp_path / "model.safetensors")
    model = load(tmp_path, device).transformer
    texts = random_ids(VOCAB, LENGTHS, low=4)
    for text, hidden in zip(texts, chunked(Rows(model), texts), strict=True):
        expected = oracle(torch.tensor([text], device=device)).logits[0]
        torch.testing.assert_close(model.logits(hidden), expected, atol=1e-4, rtol=1e-4)
    for prompt, answer in zip(texts, greedy(Rows(model), texts, 20), strict=True):
        logits = oracle(torch.tensor([prompt + answer], device=device)).logits[0]
        assert answer == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


def _as_in_memory(name: str) -> str:
    """The name that a tensor of the file has in a loaded model of transformers 5."""
    return "model." + name.replace("language_model.model.", "language_model.", 1)


_QWEN_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 6,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
        "mrope_section": [2, 1, 1],
    },
}
_QWEN_TOWER = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 2,
    "num_position_embeddings": 16,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
}


_QWEN = {"qwen3_5": ("Qwen3_5", {"intermediate_size": 56}), "qwen3_5_moe": ("Qwen3_5Moe", _EXPERTS)}


def qwen_case(name, tied=False):
    """Class name and configuration of a small Qwen3.5 that reads pictures."""
    stem, more = _QWEN[name]
    config = getattr(transformers, f"{stem}Config")(
        text_config={**_QWEN_TEXT, **more, "tie_word_embeddings": tied},
        vision_config=_QWEN_TOWER,
        tie_word_embeddings=tied,
        image_token_id=VOCAB - 1,
        video_token_id=VOCAB - 2,
        vision_start_token_id=VOCAB - 3,
        vision_end_token_id=VOCAB - 4,
    )
    return f"{stem}ForConditionalGeneration", config


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", _QWEN)
@torch.inference_mode()
def test_text_part_of_qwen(name, tied, tmp_path, device):
    architecture, config = qwen_case(name, tied)
    oracle = save(tmp_path, config, architecture).to(device)
    names = load_file(tmp_path / "model.safetensors")
    assert any("visual" in key for key in names) and ("lm_head.weight" in names) is not tied
    model = load(tmp_path, device).transformer
    texts = random_ids(VOCAB - 4, LENGTHS)
    for text, hidden in zip(texts, chunked(Rows(model), texts), strict=True):
        expected = oracle(torch.tensor([text], device=device)).logits[0]
        torch.testing.assert_close(model.logits(hidden), expected, atol=1e-4, rtol=1e-4)
    for prompt, answer in zip(texts, greedy(Rows(model), texts, 20), strict=True):
        logits = oracle(torch.tensor([prompt + answer], device=device)).logits[0]
        assert answer == logits[len(prompt) - 1 : -1].argmax(-1).tolist()
