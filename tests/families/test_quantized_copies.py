"""For every family, `triptych quantize` rounds the same matrices as `--quantize`, or refuses the family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.backends import choice
from models.backends.cpu import linear
from models.checkpoint.loader import load_model
from models.checkpoint.quantize_checkpoint import quantize_checkpoint
from models.config import ConfigError, LanguageModelHead
from models.families import FAMILIES
from tests.families import checkpoints

pytestmark = pytest.mark.rare_family
CPU = torch.device("cpu")
REFUSED = {
    "cohere_asr": "its shape is [96, 48, 1]",
    "convbert": "its shape is [16, 32, 1]",
    "gpt2": "it is stored transposed",
    "gpt_oss": "a tensor named 'weight' for each linear",
    "granitemoe": "its shape is [5, 112, 32]",
    "granitemoehybrid": "its shape is [6, 112, 32]",
    "granitemoe_swa": "a tensor named 'weight' for each linear",
    "granitemoeshared": "its shape is [5, 112, 32]",
    "lara_mini": "a part of it keeps its dtype with --quantize",
    "llama4": "a tensor named 'weight' for each linear",
    "llama4_text": "a tensor named 'weight' for each linear",
    "mistral4": "a tensor named 'weight' for each linear",
    "openai_privacy_filter": "a tensor named 'weight' for each linear",
    "openai-gpt": "it is stored transposed",
    "parakeet_ctc": "its shape is [28, 48, 1]",
    "squeezebert": "its shape is [32, 16, 1]",
    "triptych": "a tensor named 'weight' for each linear",
}
"""Refused model types, whose linear layers are not stored as separate matrices, and a part of the error message."""
REPEATED = ("lfm3",)
"""Model types with a matrix whose rows are repeated at load."""


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_copy_of_every_family(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkpoints.write_checkpoint(tmp_path / "in", name)
    if name in REFUSED:
        with pytest.raises(ConfigError) as error:
            quantize_checkpoint(source, tmp_path / "out", "int8-fast")
        assert REFUSED[name] in str(error.value) and "cannot be quantized" in str(error.value)
        return
    report = quantize_checkpoint(source, tmp_path / "out", "int8-fast")
    copy = load_model(tmp_path / "out", torch.float32, CPU)
    assert copy.checkpoint_format == report.description
    if not choice.kernels_are_built:
        return
    notes = [note for note in copy.notes if not note.startswith("only its language model is loaded")]
    assert not notes, "every matrix is computed as it is stored"
    rounded, round_rows = 0, linear.quantize_int8

    def count(weight: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal rounded
        # Experts are padded with rows of zeros.
        rounded += int((weight != 0).any(1).sum()) * weight.shape[1]
        return round_rows(weight)

    monkeypatch.setattr(linear, "quantize_int8", count)
    config = load_model(source, torch.float32, CPU, quantization="int8-fast").config
    head = config.vocab_size * config.output_size if isinstance(config.head, LanguageModelHead) else 0
    assert rounded == report.weights + head or (name in REPEATED and rounded > report.weights + head)
