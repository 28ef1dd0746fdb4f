"""LoRA adapters: supported files are loaded, unsupported settings are refused by name, and rows get their adapter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.checkpoint.loader import load_model
from models.config import ConfigError
from models.lora.adapters import AdapterRows
from models.lora.config import LoraConfig
from tests.engine.tiny_checkpoints import DECODERS
from tests.parity.adapters import save_adapter
from tests.parity.checkpoints import save

CPU = torch.device("cpu")
PLAIN = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
FILE = "adapter_model.safetensors"
EVERYWHERE = {"target_modules": "all-linear"}
UP = "base_model.model.model.layers.1.mlp.up_proj.lora_{}.weight"


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("lora")
    architecture, config = DECODERS["llama-tied"]
    save_adapter(save(home / "base", config, architecture), home / "tone", 1)
    return home


def served(home: Path, directory: Path):
    return load_model(home / "base", torch.float32, CPU, adapters={"tone": directory})


def changed(home: Path, directory: Path, settings=None, tensors=None) -> Path:
    """Copy the valid adapter with changes. Returns the directory of the copy.

    settings: settings to replace in the file. tensors: function that changes the tensors in place.
    """
    directory.mkdir()
    config = json.loads((home / "tone" / "adapter_config.json").read_text()) | (settings or {})
    (directory / "adapter_config.json").write_text(json.dumps(config))
    content = load_file(home / "tone" / FILE)
    if tensors is not None:
        tensors(content)
    save_file(content, directory / FILE)
    return directory


def test_valid_adapter_is_loaded(home, tmp_path):
    (adapter,) = served(home, changed(home, tmp_path / "same")).adapters.values()
    assert adapter.parameters == sum(tensor.numel() for tensor in load_file(home / "tone" / FILE).values())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("peft_type", "IA3"),
        ("peft_type", "ADALORA"),
        ("peft_type", None),
        ("use_dora", True),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("modules_to_save", ["lm_head"]),
        ("trainable_token_indices", [3]),
        ("target_parameters", ["mlp.experts.down_proj"]),
        ("layer_replication", [[0, 1], [0, 2]]),
        ("alora_invocation_tokens", [5]),
        ("use_qalora", True),
        ("megatron_config", {"tp": 2}),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", "loftq"),
        ("something_of_tomorrow", "yes"),
        ("r", 0),
        ("r", "four"),
        ("lora_alpha", float("inf")),
        ("use_rslora", "no"),
        ("target_modules", None),
        ("target_modules", [3]),
        ("target_modules", "(q_proj"),
        ("exclude_modules", 7),
        ("layers_to_transform", [-1]),
        ("layers_to_transform", "all"),
        ("layers_pattern", "(layers"),
        ("rank_pattern", {"q_proj": 0}),
        ("rank_pattern", ["q_proj"]),
        ("alpha_pattern", {"(": 2}),
    ],
)
def test_unsupported_setting_is_named(setting, value):
    named = "q_proj" if value == {"q_proj": 0} else setting
    with pytest.raises(ConfigError, match=named):
        LoraConfig.read(PLAIN | {setting: value})


def test_settings_that_change_no_output_are_accepted():
    config = LoraConfig.read(
        PLAIN
        | {
            "lora_dropout": 0.1,
            "inference_mode": False,
            "task_type": "CAUSAL_LM",
            "init_lora_weights": "gaussian",
            "fan_in_fan_out": True,
            "base_model_name_or_path": "org/base",
            "runtime_config": {"ephemeral_gpu_offload": True},
            "use_dora": False,
            "modules_to_save": None,
            "loftq_config": {},
        }
    )
    assert (config.rank, config.scale_of("model.layers.0.self_attn.q_proj")) == (4, 2.0)


def without_a_layer(tensors) -> None:
    del tensors[UP.format("A")], tensors[UP.format("B")]


def without_lora_b(tensors) -> None:
    del tensors[UP.format("B")]


def with_another_width(tensors) -> None:
    tensors[UP.format("A")] = torch.zeros(4, 24)


def with_another_height(tensors) -> None:
    tensors[UP.format("B")] = torch.zeros(50, 4)


def with_another_rank(tensors) -> None:
    tensors[UP.format("A")], tensors[UP.format("B")] = torch.zeros(5, 32), torch.zeros(48, 5)


def with_integers(tensors) -> None:
    tensors[UP.format("A")] = torch.zeros(4, 32, dtype=torch.int32)


def with_magnitudes(tensors) -> None:
    tensors["base_model.model.model.layers.1.mlp.up_proj.lora_magnitude_vector"] = torch.ones(48)


def with_embeddings(tensors) -> None:
    name = "base_model.model.model.embed_tokens.lora_embedding_{}"
    tensors[name.format("A")], tensors[name.format("B")] = torch.zeros(4, 97), torch.zeros(32, 4)


def with_a_saved_module(tensors) -> None:
    tensors["base_model.model.lm_head.weight"] = torch.zeros(97, 32)


def with_a_third_layer(tensors) -> None:
    for side, shape in (("A", (4, 32)), ("B", (48, 4))):
        tensors[UP.format(side).replace("layers.1", "layers.2")] = torch.zeros(shape)


def with_a_norm(tensors) -> None:
    name = "base_model.model.model.layers.1.up_proj.lora_{}.weight"
    tensors[name.format("A")], tensors[name.format("B")] = torch.zeros(4, 32), torch.zeros(48, 4)


def with_nan(tensors) -> None:
    tensors[UP.format("B")][3, 1] = float("nan")


def with_output_head(tensors) -> None:
    name = "base_model.model.lm_head.lora_{}.weight"
    tensors[name.format("A")], tensors[name.format("B")] = torch.zeros(4, 32), torch.zeros(97, 4)


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (without_a_layer, {}, "lacks 1 of its target layers, for example decoder.layers.1.feed_forward.up"),
        (without_lora_b, {}, "'model.layers.1.mlp.up_proj' has only one of the two tensors lora_A and lora_B"),
        (with_another_width, {}, r"up_proj' is for a weight of shape \[48, 24\]; the base model's is \[48, 32\]"),
        (with_another_height, {}, r"up_proj' is for a weight of shape \[50, 32\]"),
        (with_another_rank, {}, "has ranks 5 and 5; adapter_config.json says 4"),
        (with_integers, {}, "not a matrix of floating-point numbers"),
        (with_magnitudes, {}, "lora_magnitude_vector' is not supported"),
        (with_embeddings, EVERYWHERE, "embed_tokens' is not a linear layer or table of the base model"),
        (with_a_saved_module, {}, "'base_model.model.lm_head.weight' is not supported"),
        (
            with_a_third_layer,
            EVERYWHERE,
            "'model.layers.2.mlp.up_proj' is not a linear layer or table of the base model",
        ),
        (with_a_norm, EVERYWHERE, "the base model has no module 'model.layers.1.up_proj'"),
        (
            with_output_head,
            EVERYWHERE,
            "'lm_head' is not a linear layer or table of the base model that can be adapted",
        ),
        (with_output_head, {}, "'lm_head', which adapter_config.json does not list as a target"),
        (None, {"target_modules": ["q_proj"]}, "does not list as a target"),
        (None, {"rank_pattern": {"up_proj": 8}}, "has ranks 4 and 4; adapter_config.json says 8"),
        (dict.clear, {}, "changes nothing"),
        (with_nan, {}, "'model.layers.1.mlp.up_proj' contains NaN or infinity"),
    ],
)
def test_file_that_contradicts_its_settings_is_refused(home, tmp_path, change, settings, message):
    with pytest.raises(ConfigError, match=message) as error:
        served(home, changed(home, tmp_path / "bad", settings, change))
    assert str(error.value).startswith("adapter 'tone': ") and "\n" not in str(error.value)


def test_directory_without_its_files_is_refused(home, tmp_path):
    with pytest.raises(ConfigError, match=r"has no adapter_config\.json"):
        served(home, tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps(PLAIN))
    with pytest.raises(ConfigError, match=f"has no {FILE}"):
        served(home, tmp_path)
    (tmp_path / FILE).write_bytes(b"\x00" * 100)
    with pytest.raises(ConfigError, match="truncated or damaged"):
        served(home, tmp_path)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to(home / "tone" / FILE)
    with pytest.raises(ConfigError, match="leads out of"):
        served(home, tmp_path)


def test_adapter_of_another_base_model_is_refused(home, tmp_path):
    architecture, config = DECODERS["gpt2"]
    save_adapter(save(tmp_path / "gpt2", config, architecture), tmp_path / "other", 1)
    with pytest.raises(ConfigError, match=r"the base model has no module 'transformer\.h\.0"):
        served(home, tmp_path / "other")


SHARED = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
UNADAPTABLE = {
    "distances": ("DebertaV2Model", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, "query_proj"),
    "global tokens": ("LongformerForSequenceClassification", {"attention_window": [8, 8]}, "key_global"),
    "summaries": ("LongT5EncoderModel", {"encoder_attention_type": "transient-global"}, "v"),
    "a gate": ("Qwen2MoeForCausalLM", {"num_key_value_heads": 2, "num_experts": 4}, "shared_expert_gate"),
}


@pytest.mark.parametrize("kind", UNADAPTABLE)
def test_linear_that_is_not_applied_to_token_rows_is_refused(kind, tmp_path):
    """Adapters for some matrices are refused: those whose input rows are no tokens of a single sequence.

    Such rows are distances, global tokens and summaries. A gate is refused too, because it is not a `Linear`.
    """
    architecture, settings, name = UNADAPTABLE[kind]
    config = getattr(transformers, architecture).config_class(**SHARED, **settings)
    base = save(tmp_path / "base", config, architecture)
    save_adapter(base, tmp_path / "tone", 1, target_modules=[name])
    with pytest.raises(ConfigError, match="is not a linear layer or table of the base model that can be adapted"):
        load_model(tmp_path / "base", torch.float32, CPU, adapters={"tone": tmp_path / "tone"})


def test_rows_are_selected_by_adapter():
    rows = AdapterRows(["a", "", "b", "a"], [2, 1, 3, 1], CPU)
    both = rows.select(frozenset({"a", "b"}))
    assert both.rows.tolist() == [0, 1, 6, 3, 4, 5] and both.rest.tolist() == [2]
    assert both.parts == (("a", slice(0, 3)), ("b", slice(3, 6)))
    assert rows.select(frozenset({"b"})).rows.tolist() == [3, 4, 5]
    assert rows.select(frozenset({"c"})) is None
    assert rows.select(frozenset({"b"})) is rows.select(frozenset({"b"}))
    only = AdapterRows(["a", "a"], [2, 1], CPU).select(frozenset({"a"}))
    assert only.rows == slice(None) and only.rest is None
    mixed = AdapterRows(["a", "b", "a"], [1, 1, 1], CPU).select(frozenset({"a", "b"}))
    assert mixed.rows.tolist() == [0, 2, 1] and mixed.rest is None
