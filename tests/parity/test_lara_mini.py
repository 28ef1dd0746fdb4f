"""Lara Mini equals transformers 5.24 (`lara_mini_oracle.json`), in the layouts of both files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.parity.checkpoints import load
from tests.parity.lara_mini import IDS, KINDS, write_lara_mini
from tests.parity.paged import Rows, chunked, greedy

ORACLE = json.loads((Path(__file__).parent / "lara_mini_oracle.json").read_text())
_ROWS = {"qkv": 64, "z": 32, "b": 4, "a": 4}
"""Rows of the parts of the fused matrix, under the names of the modules of transformers."""


def _split(directory: Path) -> None:
    """Write the tensors under the names of the modules of transformers."""
    found = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        if name.endswith("in_proj.weight"):
            parts = tensor.split(list(_ROWS.values()))
            stem = name.removesuffix(".weight")
            found |= {f"{stem}_{part}.weight": rows.contiguous() for part, rows in zip(_ROWS, parts, strict=True)}
        else:
            found[name.replace("out_norm", "norm")] = tensor
    save_file(found, directory / "model.safetensors")


@pytest.mark.parametrize("layout", ["published", "modules"])
@torch.inference_mode()
def test_lara_mini(layout: str, tmp_path: Path, device: torch.device) -> None:
    write_lara_mini(tmp_path)
    if layout == "modules":
        _split(tmp_path)
    loaded = load(tmp_path, device)
    assert (loaded.family, loaded.tasks) == ("lara_mini", ("generate",))
    (hidden,) = chunked(Rows(loaded.transformer), [IDS])
    expected = torch.tensor(ORACLE["logits"], device=device)
    torch.testing.assert_close(loaded.transformer.logits(hidden), expected, atol=1e-4, rtol=1e-4)
    assert len(set(ORACLE["answer"])) > 3, "control: an answer that repeats one token shows little"
    assert greedy(Rows(loaded.transformer), [IDS[:6]], 12) == [ORACLE["answer"]]
    assert len(loaded.config.decoder.layers) == len(KINDS)
