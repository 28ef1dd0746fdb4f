"""Lara Mini equals transformers 5.24 (`lara_mini_oracle.json`), with the published tensor names and transformers'."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.ipc.wire.descriptions import ModelSpec
from tests.engine.harness import Pair, generate, run
from tests.parity.checkpoints import edit_config, load
from tests.parity.lara_mini import BEAMS, IDS, PROMPTS, SHAPES, delta_rows, kinds_of, oracle, write_lara_mini
from tests.parity.paged import Rows, chunked, encoder_batch, greedy, one_by_one, one_shot


def _split(directory: Path, settings: dict[str, Any]) -> None:
    """Rewrite a checkpoint with the tensor names that transformers uses, which divide the fused matrices."""
    found, rows_of = {}, delta_rows(settings)
    for name, tensor in load_file(directory / "model.safetensors").items():
        if name.endswith("in_proj.weight"):
            parts = tensor.split(list(rows_of.values()))
            stem = name.removesuffix(".weight")
            found |= {f"{stem}_{part}.weight": rows.contiguous() for part, rows in zip(rows_of, parts, strict=True)}
        else:
            found[name.replace("out_norm", "norm")] = tensor
    save_file(found, directory / "model.safetensors")


@pytest.mark.parametrize("layout", ["published", "modules"])
@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_lara_mini(shape: str, layout: str, tmp_path: Path, device: torch.device) -> None:
    write_lara_mini(tmp_path, shape)
    if layout == "modules":
        _split(tmp_path, SHAPES[shape])
    loaded, wanted = load(tmp_path, device), oracle()["shapes"][shape]
    assert (loaded.family, loaded.tasks) == ("lara_mini", ("generate",))
    expected = torch.tensor(wanted["logits"], device=device)
    ways: tuple[Callable[..., list[torch.Tensor]], ...] = (one_shot, chunked, one_by_one)
    for way in ways:
        (hidden,) = way(Rows(loaded.transformer), [IDS])
        torch.testing.assert_close(loaded.transformer.logits(hidden), expected, atol=1e-4, rtol=1e-4)
    assert len(set(wanted["answer"])) > 3, "control: an answer that repeats one token shows little"
    assert greedy(Rows(loaded.transformer), [IDS[:6]], 12) == [wanted["answer"]]
    assert len(loaded.config.decoder.layers) == len(kinds_of(SHAPES[shape]))


@pytest.mark.parametrize("shape", SHAPES)
def test_four_beams(shape: str, tmp_path: Path, device: torch.device) -> None:
    """Beam search over three prompts in one batch gives the tokens of transformers' `generate` for single prompts."""
    write_lara_mini(tmp_path, shape)
    spec = ModelSpec(shape, str(tmp_path), "float32")
    loaded = LoadedCheckpoint(spec, load(tmp_path, device), torch.float32, device, 0.0)
    config = SimpleNamespace(eos_token_id=SHAPES[shape]["eos_token_id"], is_encoder_decoder=False)
    pair = Pair(shape, SimpleNamespace(config=config), loaded)
    results = run(pair.engine(), [generate(pair, index, text, **BEAMS) for index, text in enumerate(PROMPTS)])
    for index, (texts, scores) in enumerate(oracle()["shapes"][shape]["beams"]):
        assert results.texts(index) == texts
        found = [hypothesis.score for hypothesis in results.finished[index].hypotheses]
        assert found == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_embeddings(shape: str, tmp_path: Path, device: torch.device) -> None:
    """A checkpoint without a head has other tensor names. Its hidden states give the logits of the oracle."""
    write_lara_mini(tmp_path, shape)
    tensors = load_file(tmp_path / "model.safetensors")
    head = tensors.pop("lm_head.weight", tensors["model.embed_tokens.weight"])
    save_file({name.removeprefix("model."): tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    edit_config(tmp_path, architectures=["LaraMiniModel"])
    loaded = load(tmp_path, device)
    assert loaded.tasks == ("embed",)
    hidden = loaded.transformer.encode(encoder_batch([IDS[:3], IDS], device))[3:]
    expected = torch.tensor(oracle()["shapes"][shape]["logits"], device=device)
    torch.testing.assert_close(hidden @ head.to(device).T, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "change", [{"norm_topk_prob": True}, {"sliding_window": 6}, {"rms_norm_eps": 1e-2}], ids=json.dumps
)
@torch.inference_mode()
def test_a_wrong_setting_is_detected(change: dict[str, Any], tmp_path: Path, device: torch.device) -> None:
    """Negative control: a wrong value of a setting that no tensor depends on changes the logits."""
    write_lara_mini(tmp_path, "biases-untied")
    edit_config(tmp_path, **change)
    model = load(tmp_path, device).transformer
    (hidden,) = chunked(Rows(model), [IDS])
    expected = torch.tensor(oracle()["shapes"]["biases-untied"]["logits"], device=device)
    assert (model.logits(hidden) - expected).abs().max() > 1e-2
