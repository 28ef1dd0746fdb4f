"""Checkpoints of NVIDIA's Model Optimizer, whose quantization settings are in `hf_quant_config.json`, can be read."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from models.checkpoint.checkpoint_heads import read_files
from models.checkpoint.loader import load_model
from tests.parity.checkpoints import edit_config, write_model
from tests.parity.quantized_checkpoints import quantize
from weights.errors import WeightsError

_SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}


@pytest.fixture
def checkpoint(tmp_path):
    config = transformers.LlamaConfig(vocab_size=97, max_position_embeddings=64, **_SIZES)
    write_model(tmp_path / "model", config, "LlamaForCausalLM")
    directory, _ = quantize(tmp_path / "model", "modelopt-nvfp4", tmp_path, lambda module: "proj" in module)
    return directory


def test_the_settings_are_read_from_either_file(checkpoint) -> None:
    expected = load_model(checkpoint, torch.float32, torch.device("cpu"))
    edit_config(checkpoint, quantization_config=None)
    settings = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"], "kv_cache_quant_algo": None}
    (checkpoint / "hf_quant_config.json").write_text(json.dumps({"quantization": settings}))
    found = load_model(checkpoint, torch.float32, torch.device("cpu"))
    assert found.weight_bytes == expected.weight_bytes
    for name, tensor in expected.transformer.named_parameters():
        assert torch.equal(found.transformer.get_parameter(name), tensor), name


def test_a_file_without_an_algorithm_changes_nothing(checkpoint) -> None:
    edit_config(checkpoint, quantization_config=None)
    (checkpoint / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": None}}))
    assert read_files(checkpoint).hf.get("quantization_config") is None
    with pytest.raises(WeightsError, match="unexpected"):
        load_model(checkpoint, torch.float32, torch.device("cpu"))
