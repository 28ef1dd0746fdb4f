"""Published `config.json` files describe the model that transformers builds from them, or are refused with a reason.

`tests/published/configurations.json` contains their settings with repository, commit and path, without fields that do
not describe the model. Vision and audio parts are empty, because they are not loaded.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from models.checkpoint.expected_tensors import expected_tensors
from models.config import ConfigError
from models.families import FAMILIES, family_of
from models.transformer import Transformer
from tests import warm_processes
from tests.families.checkpoints import write_tokenizer
from tests.parity.checkpoints import write_model
from weights.load import plan_load
from weights.stored import StoredTensor

pytestmark = pytest.mark.rare_family
FILE = Path(__file__).parents[1] / "published" / "configurations.json"
ENTRIES: dict[str, dict[str, Any]] = {
    [folder for folder in Path(entry["path"]).parent.parts if folder != "config"][-1]: entry["config"]
    for entry in json.loads(FILE.read_text(encoding="utf-8"))
}
"""The settings of each file, by the name of its folder, or of the folder around one that is named `config`."""
REFUSED = {
    "MiniCPM3-4B": "its architecture MiniCPM3ForCausalLM is that of 'minicpm3'",
    "MiniCPM4": "nearest served family is granite",
    "Qwen-7B-Chat": "nearest served family is qwen2",
    "Baichuan2-7B": "nearest served family is llama",
    "glm-4-9b-chat": "nearest served family is glm",
    "chatglm3-6b": "nearest served family is glm",
}
"""Files that are refused, and a part of the error message of each. The file of MiniCPM3 has no `model_type`."""
SERVED = sorted(ENTRIES.keys() - REFUSED.keys())
OTHER_PARTS = ("vision", "visual", "audio", "multi_modal_projector", "embed_vision", "embed_audio")
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "head_dim": 16,
    "n_embd": 64,
    "n_inner": 96,
    "n_head": 4,
    "n_layer": 2,
    "num_hidden_layers": 2,
    "vocab_size": 320,
}
"""Small sizes that replace published sizes, if a file has them."""


def build(config: dict[str, Any]) -> transformers.PreTrainedModel:
    """Build the model of transformers on the meta device, without its vision and audio parts."""
    kind = config["model_type"]
    text = {name: value for name, value in config.items() if name not in ("vision_config", "audio_config")}
    tiny = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "depth": 1}
    if kind == "gemma4":
        text |= {"audio_config": None}
    parts = {"vision_config": tiny} if "vision_config" in config and kind not in ("qwen3_5", "qwen2_5_vl") else {}
    made = transformers.CONFIG_MAPPING[kind].from_dict({**text, **parts})
    with torch.device("meta"):
        model: transformers.PreTrainedModel = getattr(transformers, config["architectures"][0])(made)
    return model


def names_of(model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    """The tensors of a model's text part by the names of `save_pretrained`. Tied tensors occur once."""
    tied = set(model.all_tied_weights_keys)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    return {name: tensor for name, tensor in tensors.items() if not any(part in name for part in OTHER_PARTS)}


def test_the_corpus_says_where_each_file_is_from() -> None:
    entries = json.loads(FILE.read_text(encoding="utf-8"))
    assert len(entries) == len(ENTRIES) >= 20
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", entry["repository"]) and re.fullmatch(
            "[0-9a-f]{12,40}", entry["commit"]
        )
    assert {config["model_type"] for name, config in ENTRIES.items() if name in SERVED} >= {
        *("llama", "mistral", "qwen2", "qwen2_5_vl", "qwen3", "qwen3_5", "gemma3", "gemma4", "gpt_bigcode"),
        "hyperclovax",
    }


@pytest.mark.parametrize("name", SERVED)
def test_the_tensors_are_those_of_transformers(name: str) -> None:
    """The names and shapes of tensors equal those of transformers at the published size, without any weights."""
    config = ENTRIES[name]
    family, architecture = family_of(config)
    ours = family.config(config, architecture)
    with torch.device("meta"):
        transformer = Transformer(ours)
    stored = {
        name: StoredTensor(tuple(tensor.shape), torch.float32, "model.safetensors", lambda: torch.empty(0))
        for name, tensor in names_of(build(config)).items()
    }
    rules = family.rules(ours, config, architecture)
    plan = plan_load(stored, rules, expected_tensors(transformer, family, rules, stored).shapes)
    assert (plan.missing, plan.unexpected, plan.misshapen) == ([], [], [])
    assert len(stored) > 100


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_with_a_reason(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        family_of(ENTRIES[name])
    assert REFUSED[name] in str(refused.value)


def test_minicpm3_is_served_with_its_type() -> None:
    config = {**ENTRIES["MiniCPM3-4B"], "model_type": "minicpm3"}
    family, architecture = family_of(config)
    assert len(family.config(config, architecture).decoder.layers) == 62


def small(config: dict[str, Any]) -> dict[str, Any]:
    """Copy a configuration with few, narrow layers. The other settings are as published."""
    heads = config.get("num_attention_heads", 0)
    changed = {name: value for name, value in SMALL.items() if name in config}
    if "num_key_value_heads" in config:
        changed["num_key_value_heads"] = max(4 * config["num_key_value_heads"] // heads, 1)
    ids = {name: 1 for name in config if name.endswith("_token_id")}
    return {**config, **changed, **ids}


@pytest.mark.parametrize("name", [name for name in SERVED if "vision_config" not in ENTRIES[name]])
def test_check_describes_a_checkpoint_of_this_shape(name: str, tmp_path: Path) -> None:
    config = small(ENTRIES[name])
    made = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
    write_model(tmp_path, made, config["architectures"][0])
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_tokenizer(tmp_path, (), {})
    done = warm_processes.run("check", f"it={tmp_path}", "--device", "cpu", "--dtype", "float32", "--threads", "1")
    assert done.returncode == 0, done.stderr
    table = dict(re.split(" {2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    assert table["family"] == f"{FAMILIES[config['model_type']].name} ({config['architectures'][0]})"
    assert table["serves"] == "generate" and table["execution"] == "program"
