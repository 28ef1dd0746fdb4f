"""GPT-OSS with experts in MXFP4 gives the same results as with the same weights in float32, and as transformers."""

from __future__ import annotations

import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.backends import choice
from models.backends.cpu.group_weight import GroupWeight
from models.checkpoint.loader import load_model
from tests.parity.checkpoints import edit_config, random_ids, write_model
from tests.parity.paged import Rows, one_shot
from tests.parity.quantized_checkpoints import relative_error
from tests.weights.quantized_recipes import mxfp4

CPU = torch.device("cpu")
TEXTS = random_ids(70, (5, 9, 2))
CONFIG = transformers.GptOssConfig(
    vocab_size=70,
    hidden_size=64,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=32,
    num_local_experts=3,
    num_experts_per_tok=2,
    sliding_window=4,
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Write an MXFP4 checkpoint, and one with the same weights in float32. Returns both directories."""
    quantized, plain = (tmp_path_factory.mktemp(name) for name in ("quantized", "plain"))
    write_model(plain, CONFIG, "GptOssForCausalLM")
    stored = dict(load_file(plain / "model.safetensors"))
    for index, name in enumerate([name for name in stored if name.endswith("_proj") and "experts" in name]):
        experts, width, out = stored[name].shape
        parts, weights = mxfp4(experts, out, width, 121, 125, seed=index)
        stored[name] = weights.transpose(1, 2).float().contiguous()
        stored |= {name + ending: part for ending, part in parts.items()}
    shutil.copytree(plain, quantized, dirs_exist_ok=True)
    is_part = {name: name.endswith(("_blocks", "_scales")) for name in stored}
    replaced = {name.removesuffix("_blocks") for name in stored if name.endswith("_blocks")}
    meta = {"format": "pt"}
    save_file({name: tensor for name, tensor in stored.items() if not is_part[name]}, plain / "model.safetensors", meta)
    kept = {name: tensor for name, tensor in stored.items() if name not in replaced}
    save_file(kept, quantized / "model.safetensors", meta)
    edit_config(quantized, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    return quantized, plain


@torch.inference_mode()
def logits(loaded):
    hidden = one_shot(Rows(loaded.transformer), TEXTS)
    return torch.cat([loaded.transformer.logits(states) for states in hidden])


def test_without_kernels_the_weights_are_those_of_the_format(pair):
    quantized, plain = pair
    with choice.using("torch"):
        loaded, expected = load_model(quantized, torch.float32, CPU), load_model(plain, torch.float32, CPU)
        assert loaded.parameters == expected.parameters and "MXFP4" in loaded.checkpoint_format
        assert "no kernel" in loaded.notes[0]
        torch.testing.assert_close(logits(loaded), logits(expected), rtol=1e-5, atol=1e-5)
        oracle = transformers.GptOssForCausalLM.from_pretrained(plain, attn_implementation="eager").eval()
        theirs = torch.cat([oracle(torch.tensor([text])).logits[0].detach() for text in TEXTS])
        torch.testing.assert_close(logits(loaded), theirs, rtol=1e-4, atol=1e-4)


def test_kernels_compute_with_the_experts_as_they_are_stored(pair):
    if not choice.kernels_are_built:
        pytest.skip("the compiled kernels were not built")
    quantized, plain = pair
    loaded, expected = load_model(quantized, torch.float32, CPU), load_model(plain, torch.float32, CPU)
    experts = loaded.transformer.decoder.layers[0].feed_forward.packed
    assert all(isinstance(weight, GroupWeight) for weight in (experts._inner, experts._outer))
    assert loaded.weight_bytes < 0.7 * expected.weight_bytes and not loaded.notes
    assert relative_error(logits(loaded), logits(expected)) < 0.03


def test_a_missing_scale_is_named(pair, tmp_path):
    quantized, _ = pair
    shutil.copytree(quantized, tmp_path, dirs_exist_ok=True)
    stored = dict(load_file(quantized / "model.safetensors"))
    stored.pop("model.layers.1.mlp.experts.down_proj_scales")
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.experts\.down_proj_blocks.*_scales is missing"):
        load_model(tmp_path, torch.float32, CPU)
