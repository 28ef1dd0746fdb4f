"""LoRA adapters that change embeddings: those in checkpoints of Jina Embeddings 3 and 5, and those that peft saves."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from models.checkpoint.loader import load_model
from models.config import ConfigError
from models.steps.batch import EncoderBatch
from server.model_sources import find_adapters
from server.settings.settings import Settings
from tests.parity.adapters import save_adapter
from tests.parity.published_code import write_jina5
from tests.parity.recent_encoder_cases import BODIES
from tests.parity.test_published_layouts import FLASH, _as_flash
from tests.parity.test_recent_encoders import batch_of, expected, one_by_one, reference
from weights.own_adapters import adapter_directory

TASKS = ["retrieval.query", "retrieval.passage", "separation", "classification", "text-matching"]
USED = ("", "query", "passage", "query", "")
"""The adapter of each text in the batch; an empty name means none."""


def _with_tasks(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Random adapter matrices for every weight matrix. For embedding tables, they have the published layout."""
    stored = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(".original"):
            stem, (rows, width) = name.removesuffix("original"), tensor.shape
            shapes = ((5, rows, 4), (5, 4, width)) if "embeddings" in name else ((5, 4, width), (5, rows, 4))
            stored |= {
                f"{stem}0.lora_{side}": 0.3 * torch.randn(shape) for side, shape in zip("AB", shapes, strict=True)
            }
    return stored


def _merged(model: nn.Module, stored: dict[str, Tensor], task: int) -> nn.Module:
    """The transformers model with one adapter merged: `W + B A * alpha / rank`, or `W + A B` for an embedding table."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    names = {"mixer.out_proj": "self_attn.o_proj", "encoder.layers": "layers", "roberta.": ""}
    for name in stored:
        if not name.endswith("0.lora_A"):
            continue
        stem = name.removesuffix(".parametrizations.weight.0.lora_A")
        first, second = stored[name][task], stored[name.replace("lora_A", "lora_B")][task]
        update = (first @ second if "embeddings" in stem else second @ first) * (2.0 / 4)
        for old, new in names.items():
            stem = stem.replace(old, new)
        if "mixer.Wqkv" in stem:
            for part, rows in zip("qkv", update.chunk(3), strict=True):
                state[stem.replace("mixer.Wqkv", f"self_attn.{part}_proj") + ".weight"] += rows
        else:
            state[f"{stem}.weight"] += update
    merged = deepcopy(model)
    merged.load_state_dict(state)
    return merged


def _mixed(models: dict[str, nn.Module], batch: EncoderBatch) -> Tensor:
    """Expected hidden states: those of each text come from the model with its adapter merged."""
    outputs = {name: one_by_one(model, batch) for name, model in models.items()}
    return expected([outputs[name][index] for index, name in enumerate(USED)], "")


def _checkpoint(directory: Path) -> tuple[nn.Module, dict[str, Tensor]]:
    name, options = BODIES["jina_embeddings_v3-small"]
    model = reference(name, "", {**options, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}})
    model.save_pretrained(directory)
    plain = {
        key: value for key, value in _as_flash(load_file(directory / "model.safetensors")).items() if "lora" not in key
    }
    stored = _with_tasks(plain)
    save_file(stored, directory / "model.safetensors")
    hf = json.loads((directory / "config.json").read_text())
    tasks = {"lora_adaptations": TASKS, "lora_rank": 4, "lora_alpha": 2, "architectures": ["XLMRobertaModel"]}
    (directory / "config.json").write_text(json.dumps({**hf, **FLASH, **tasks}))
    return model, stored


@torch.inference_mode()
def test_tasks_of_a_checkpoint(tmp_path: Path, device: torch.device):
    model, stored = _checkpoint(tmp_path)
    adapters = {"query": tmp_path / TASKS[0], "passage": tmp_path / TASKS[1]}
    ours, batch = load_model(tmp_path, torch.float32, device, adapters=adapters), batch_of(model, device)
    models = {"": model, "query": _merged(model, stored, 0), "passage": _merged(model, stored, 1)}
    mixed = EncoderBatch(batch.token_ids, batch.lengths, batch.token_type_ids, USED)
    hidden = ours.transformer.encode(mixed)
    torch.testing.assert_close(hidden.cpu(), _mixed(models, batch), atol=1e-4, rtol=0)
    first = slice(0, batch.lengths[0])
    assert torch.equal(hidden[first], ours.transformer.encode(batch)[first]), "a text without adapter has other bits"


@torch.inference_mode()
def test_peft_adapter_of_embeddings(tmp_path: Path, device: torch.device):
    base = tmp_path / "base"
    name, options = BODIES["gte-small"]
    model = reference(name, "", options)
    model.save_pretrained(base)
    merged = save_adapter(model, tmp_path / "query", 5, target_modules=["word_embeddings", "q_proj", "up_proj"])
    ours = load_model(base, torch.float32, device, adapters={"query": tmp_path / "query"})
    batch = batch_of(model, device)
    mixed = EncoderBatch(
        batch.token_ids, batch.lengths, batch.token_type_ids, tuple(is_used and "query" for is_used in USED)
    )
    models = {"": model, "query": merged, "passage": merged}
    torch.testing.assert_close(ours.transformer.encode(mixed).cpu(), _mixed(models, batch), atol=1e-4, rtol=0)


def test_damaged_tasks_are_refused(tmp_path: Path, device: torch.device):
    _, stored = _checkpoint(tmp_path)
    gone = next(name for name in stored if name.endswith("fc1.parametrizations.weight.0.lora_B"))
    save_file({name: tensor for name, tensor in stored.items() if name != gone}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="fc1"):
        load_model(tmp_path, torch.float32, device, adapters={"query": tmp_path / TASKS[0]})


def test_a_task_is_stated_by_its_name(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"lora_adaptations": TASKS}))
    settings = Settings(models=[f"jina={tmp_path}"], adapter=["query=retrieval.query@jina"])
    (found,) = find_adapters(settings, {"jina": tmp_path})
    assert (found.name, found.directory, found.model) == ("query", tmp_path / "retrieval.query", "jina")


@torch.inference_mode()
def test_the_folder_of_a_task_in_the_checkpoint(tmp_path: Path, device: torch.device):
    """Jina Embeddings 5 has a peft adapter in a folder per task. Its tensor names begin with `layers`."""
    model = write_jina5(tmp_path, "tied")
    merged = save_adapter(model, tmp_path / "adapters" / "retrieval", 6, task_type="FEATURE_EXTRACTION")
    settings = Settings(models=[f"jina={tmp_path}"], adapter=["find=retrieval@jina"])
    (found,) = find_adapters(settings, {"jina": tmp_path})
    assert found.directory == tmp_path / "adapters" / "retrieval"
    ours, batch = (
        load_model(tmp_path, torch.float32, device, adapters={"query": found.directory}),
        batch_of(model, device),
    )
    used = tuple(is_used and "query" for is_used in USED)
    mixed = EncoderBatch(batch.token_ids, batch.lengths, batch.token_type_ids, used)
    models = {"": model, "query": merged, "passage": merged}
    torch.testing.assert_close(ours.transformer.encode(mixed).cpu(), _mixed(models, batch), atol=1e-4, rtol=0)


def test_a_task_names_a_folder_of_the_checkpoint_alone(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"task_names": ["retrieval", "../other"]}))
    assert adapter_directory(tmp_path, "retrieval") == tmp_path / "adapters" / "retrieval"
    assert adapter_directory(tmp_path, "../other") is None
    assert adapter_directory(tmp_path, "clustering") is None
