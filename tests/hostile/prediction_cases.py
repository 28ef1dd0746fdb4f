"""Hostile heads for multi-token prediction. They are stored in the checkpoint of their model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.hostile.base import change_json
from tests.hostile.weight_cases import ESCAPES, Case

Change = Callable[[dict[str, Tensor]], object]
_FILE = "model.safetensors"
_LATENT = {"q_lora_rank": None, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
_DEEPSEEK = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 2,
    "num_nextn_predict_layers": 1,
    **_LATENT,
}
_GLM = {"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "first_k_dense_replace": 2}
_GLM |= {"num_nextn_predict_layers": 1}
_QWEN = {
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 2,
    "linear_value_head_dim": 8,
}


def _full(shape: tuple[int, ...]) -> Tensor:
    return torch.full(shape, 0.01)


def _write(directory: Path, settings: dict[str, Any], change: Change) -> None:
    """Turn the LLaMA of the checkpoint into a model with a prediction head.

    change: changes the tensors of the model and of the head in place.
    """
    change_json(directory, "config.json", lambda config: config | settings)
    tensors = load_file(directory / _FILE)
    change(tensors)
    (directory / _FILE).unlink()
    save_file(tensors, directory / _FILE)


def _layer_after_the_last(tensors: dict[str, Tensor]) -> None:
    """Add a head as a layer after the last one, whose layer is a copy of the layer before."""
    for name in [name for name in tensors if name.startswith("model.layers.1.")]:
        tensors[name.replace(".1.", ".2.", 1)] = tensors[name].clone()
    tensors |= {f"model.layers.2.{name}.weight": torch.ones(16) for name in ("enorm", "hnorm", "shared_head.norm")}
    tensors["model.layers.2.eh_proj.weight"] = _full((16, 32))


def _latent(tensors: dict[str, Tensor]) -> None:
    """Give all layers latent attention."""
    for layer in range(2):
        start = f"model.layers.{layer}.self_attn."
        for name in "kv":
            del tensors[f"{start}{name}_proj.weight"]
        tensors[f"{start}q_proj.weight"] = _full((32, 16))
        tensors[f"{start}kv_a_proj_with_mqa.weight"] = _full((16, 16))
        tensors[f"{start}kv_a_layernorm.weight"] = torch.ones(8)
        tensors[f"{start}kv_b_proj.weight"] = _full((32, 8))


def _gated(tensors: dict[str, Tensor]) -> None:
    """Give the first layer a gated delta rule, and the second one gated attention with norms of queries and keys."""
    _delta(tensors, 0)
    start = "model.layers.1.self_attn."
    tensors[f"{start}q_proj.weight"] = _full((32, 16))
    tensors |= {f"{start}{name}_norm.weight": torch.zeros(8) for name in "qk"}


def _delta(tensors: dict[str, Tensor], layer: int) -> None:
    """Give a layer a gated delta rule in place of attention."""
    start = f"model.layers.{layer}."
    for name in [name for name in tensors if name.startswith(f"{start}self_attn.")]:
        del tensors[name]
    start += "linear_attn."
    tensors[f"{start}conv1d.weight"] = _full((48, 1, 4))
    tensors |= {f"{start}in_proj_{name}.weight": _full((2, 16)) for name in "ab"}
    tensors |= {f"{start}{name}": torch.zeros(2) for name in ("A_log", "dt_bias")}
    tensors[f"{start}norm.weight"] = torch.ones(8)
    tensors |= {f"{start}in_proj_qkv.weight": _full((48, 16)), f"{start}in_proj_z.weight": _full((16, 16))}
    tensors[f"{start}out_proj.weight"] = _full((16, 16))


def deepseek(change: Change = lambda tensors: None, **settings: Any) -> Case:
    """A dense DeepSeek-V3 with a head. change: changes all tensors in place. settings: added to `config.json`."""

    def all_changes(tensors: dict[str, Tensor]) -> None:
        _latent(tensors)
        _layer_after_the_last(tensors)
        change(tensors)

    return lambda directory: _write(directory, _DEEPSEEK | settings, all_changes)


def glm(change: Change = lambda tensors: None, **settings: Any) -> Case:
    """A dense GLM-4.5 with a head. The arguments are those of `deepseek`."""

    def all_changes(tensors: dict[str, Tensor]) -> None:
        _layer_after_the_last(tensors)
        change(tensors)

    return lambda directory: _write(directory, _GLM | settings, all_changes)


def qwen(change: Change = lambda tensors: None, **settings: Any) -> Case:
    """A Qwen3.5 with a head. The arguments are those of `deepseek`."""

    def all_changes(tensors: dict[str, Tensor]) -> None:
        _gated(tensors)
        for name in [name for name in tensors if name.startswith("model.layers.1.")]:
            tensors[name.replace("model.layers.1.", "mtp.layers.0.")] = tensors[name].clone()
        norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        tensors |= {f"mtp.{name}.weight": torch.zeros(16) for name in norms}
        tensors["mtp.fc.weight"] = _full((16, 32))
        change(tensors)

    return lambda directory: _write(directory, _QWEN | settings, all_changes)


def _without(*names: str) -> Change:
    return lambda tensors: [tensors.pop(name) for name in names]


def _set(**tensors_by_part: Tensor) -> Change:
    """Set tensors of the head of a GLM. The keys are names inside the layer, with `__` for a dot."""
    named = {f"model.layers.2.{part.replace('__', '.')}.weight": value for part, value in tensors_by_part.items()}
    return lambda tensors: tensors.update(named)


def _second_delta(tensors: dict[str, Tensor]) -> None:
    """Give the second layer a gated delta rule too, so that the layer of the head has no pattern."""
    _delta(tensors, 1)


def _cut(directory: Path) -> None:
    """Cut the weight file inside the last tensor."""
    glm()(directory)
    file = directory / _FILE
    file.write_bytes(file.read_bytes()[:-100])


def _in_a_shard(name: str) -> Case:
    """A head whose tensors are in another file. name: name by which the index calls the file `head.safetensors`."""

    def apply(directory: Path) -> None:
        glm()(directory)
        tensors = load_file(directory / _FILE)
        (directory / _FILE).unlink()
        own = {key for key in tensors if key.startswith("model.layers.2.")}
        save_file({key: tensor for key, tensor in tensors.items() if key not in own}, directory / "body.safetensors")
        save_file({key: tensors[key] for key in own}, directory / "head.safetensors")
        weight_map = {key: name if key in own else "body.safetensors" for key in tensors}
        change_json(directory, f"{_FILE}.index.json", lambda index: {"weight_map": weight_map})

    return apply


NAN, INFINITE = float("nan"), float("inf")
PREDICTION_HEADS: dict[str, Case] = {
    "prediction head, num_nextn_predict_layers 1e9": deepseek(num_nextn_predict_layers=10**9),
    "prediction head, num_nextn_predict_layers 1e30": deepseek(num_nextn_predict_layers=10**30),
    "prediction head, num_nextn_predict_layers -1": deepseek(num_nextn_predict_layers=-1),
    "prediction head, num_nextn_predict_layers is a text": deepseek(num_nextn_predict_layers="1\x1b[2J"),
    "prediction head, num_nextn_predict_layers is a list": deepseek(num_nextn_predict_layers=[1]),
    "prediction head, num_nextn_predict_layers 0.5": deepseek(num_nextn_predict_layers=0.5),
    "prediction head, num_nextn_predict_layers 0": deepseek(num_nextn_predict_layers=0),
    "prediction head, num_mtp_layers 1e9": deepseek(num_nextn_predict_layers=None, num_mtp_layers=10**9),
    "prediction head, mtp_use_dedicated_embeddings is a text": qwen(mtp_use_dedicated_embeddings="\x1b[2J" * 2000),
    "prediction head, weights NaN": glm(_set(eh_proj=torch.full((16, 32), NAN))),
    "prediction head, norm infinite": glm(_set(shared_head__norm=torch.full((16,), INFINITE))),
    "prediction head, one weight NaN": qwen(
        lambda tensors: tensors["mtp.layers.0.mlp.up_proj.weight"][3, 5].fill_(NAN)
    ),
    "prediction head, weights beyond float32": glm(_set(eh_proj=torch.full((16, 32), 1e300, dtype=torch.float64))),
    "prediction head, projection of another width": glm(_set(eh_proj=torch.zeros(16, 48))),
    "prediction head, projection transposed": glm(_set(eh_proj=torch.zeros(32, 16))),
    "prediction head, projection without dimensions": glm(_set(eh_proj=torch.tensor(1.0))),
    "prediction head, projection of odd width": qwen(
        lambda tensors: tensors.update({"mtp.fc.weight": _full((16, 33))})
    ),
    "prediction head, empty projection": glm(_set(eh_proj=torch.zeros(16, 0))),
    "prediction head, integers for weights": glm(_set(eh_proj=torch.zeros(16, 32, dtype=torch.int64))),
    "prediction head, norm is missing": glm(_without("model.layers.2.hnorm.weight")),
    "prediction head, layer is missing": qwen(
        lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("mtp.layers.0.")]
    ),
    "prediction head, of a wider model": glm(_set(enorm=torch.ones(32), hnorm=torch.ones(32), eh_proj=_full((32, 64)))),
    "prediction head, of a model with other attention": deepseek(
        lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("model.layers.2.self_attn.kv")]
    ),
    "prediction head, layer in two places": glm(
        lambda tensors: tensors.update({"model.layers.3.eh_proj.weight": _full((16, 32))})
    ),
    "prediction head, 20,000 further tensors": glm(
        lambda tensors: tensors.update({f"model.layers.2.x{number}": torch.zeros(1) for number in range(20_000)})
    ),
    "prediction head, named as in another family": glm(
        lambda tensors: tensors.update({"mtp.fc.weight": _full((16, 32))})
    ),
    "prediction head, tensor's name with escapes": glm(lambda tensors: tensors.update({ESCAPES: torch.zeros(2)})),
    "prediction head, file is cut": _cut,
    "prediction head, shard is missing": _in_a_shard("other.safetensors"),
    "prediction head, shard outside the directory": _in_a_shard("../checkpoint/head.safetensors"),
}
VALID = (deepseek(), glm(), qwen(), _in_a_shard("head.safetensors"))
"""Prediction heads without damage."""
UNUSED: dict[str, Case] = {
    "no projection": glm(_without("model.layers.2.eh_proj.weight")),
    "no layer with attention": qwen(_second_delta, layer_types=["linear_attention"] * 2),
}
