"""Draft heads that load although their numbers or settings are strange: texts equal those without drafts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from server.engine.loading.load import load
from server.ipc.wire.descriptions import Speculation
from tests.engine.harness import generate, run
from tests.engine.speculative import counts
from tests.engine.test_draft_heads import PROMPTS, Drafted, longest_drafts, spec_of, texts
from tests.models.draft_heads import (
    LLAMA,
    eagle_config,
    eagle_reference,
    eagle_tensors,
    predicting_checkpoint,
    write_head,
)
from tests.parity.checkpoints import save

__all__ = ["longest_drafts"]  # a fixture that every test uses

Change = Callable[[dict[str, Tensor]], object]
SAMPLED = ({}, {"do_sample": True, "seed": 5, "temperature": 1.3}, {"repetition_penalty": 1.4})
"""Settings of the requests: the most likely tokens, sampled tokens, and changed logits."""


def _descending(tensors: dict[str, Tensor]) -> None:
    """Turn the map of the vocabulary around: the first logit is that of the largest token."""
    indices = torch.arange(40)
    tensors["d2t"] = (indices + tensors["d2t"]).flip(0) - indices


def _zeros(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            tensors[name] = torch.zeros_like(tensor)


EAGLE: dict[str, tuple[Change, dict[str, Any], bool]] = {
    "map that descends": (_descending, {}, True),
    "2,000,000,000 tokens in its settings": (lambda tensors: None, {"vocab_size": 2 * 10**9}, True),
    "a table of its own with more tokens than the model": (
        lambda tensors: tensors.update({"embed_tokens.weight": torch.ones(150, 32)}),
        {"vocab_size": 150},
        True,
    ),
    "weights of zero": (_zeros, {}, True),
    "weights that overflow": (lambda tensors: tensors["fc.weight"].fill_(3e38), {}, False),
    "output head that overflows": (lambda tensors: tensors["lm_head.weight"].fill_(3e38), {}, False),
    "map of two tokens": (
        lambda tensors: tensors.update(
            {"d2t": torch.tensor([0, 95]), "lm_head.weight": tensors["lm_head.weight"][:2].clone()}
        ),
        {"draft_vocab_size": 2},
        True,
    ),
}
"""For each head: how its tensors and its settings change, and whether its logits are finite, so that it drafts."""
PREDICTING: dict[str, tuple[Change, bool]] = {
    "weights of zero": (lambda tensors: tensors["model.layers.3.eh_proj.weight"].zero_(), True),
    "projection that overflows": (lambda tensors: tensors["model.layers.3.eh_proj.weight"].fill_(3e38), False),
    "output norm that overflows": (
        lambda tensors: tensors["model.layers.3.shared_head.norm.weight"].fill_(3e38),
        False,
    ),
}


def _check(model: Drafted, is_finite: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Compare texts with and without drafts. is_finite: the logits of the head are finite, so that it drafts."""
    requests = [
        generate(model, number, prompt, max_new_tokens=20, end_token_ids=[], **settings)
        for number, (prompt, settings) in enumerate((prompt, settings) for prompt in PROMPTS for settings in SAMPLED)
    ]
    one = model.engine()
    found = run(one, requests)
    assert not found.failed
    assert texts(found, len(requests)) == texts(run(model.plain(), requests), len(requests))
    assert "continue without drafts" not in caplog.text
    assert not is_finite or counts(one)[0] > 30


@pytest.mark.parametrize("name", EAGLE)
def test_a_strange_eagle_head_changes_no_text(
    name: str, tmp_path: Path, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    change, settings, is_finite = EAGLE[name]
    oracle = save(tmp_path / "model", LLAMA[1], LLAMA[0])
    plain = eagle_config()
    tensors = eagle_tensors(plain)
    change(tensors)
    write_head(tmp_path / "head", plain | settings, tensors)
    spec = spec_of("llama", tmp_path / "model", Speculation(eagle_directory=str(tmp_path / "head")))
    reference = eagle_reference(oracle, plain, tensors, (2, 4, 5))
    _check(Drafted("llama", load(spec, device, lambda done, total: None), reference), is_finite, caplog)


@pytest.mark.parametrize("name", PREDICTING)
def test_a_strange_prediction_head_changes_no_text(
    name: str, tmp_path: Path, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    change, is_finite = PREDICTING[name]
    reference = predicting_checkpoint("glm4_moe", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    spec = spec_of("glm4_moe", tmp_path, Speculation(prediction_head=True))
    _check(Drafted("glm4_moe", load(spec, device, lambda done, total: None), reference), is_finite, caplog)
