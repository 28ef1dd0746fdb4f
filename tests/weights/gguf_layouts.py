"""Layouts of the tensors of GGUF files that differ from those of most families.

They follow the package `conversion` of https://github.com/ggml-org/llama.cpp (2026-11). `CHANGES` has, by `model_type`,
the tensors that stand for one of the checkpoint, under names that the tables of the package `gguf` know, or under their
names in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tests.weights.gguf_metadata import Settings

Tensors = Sequence[tuple[str, np.ndarray]]


def _tiled(hf: Settings, tensor: np.ndarray, width: int, dim: int = 0) -> np.ndarray:
    """Reorder value heads as in Qwen3.5's files: first one value head of every key head, then the next ones."""
    keys, values = hf["linear_num_key_heads"], hf["linear_num_value_heads"] // hf["linear_num_key_heads"]
    shape = [*tensor.shape[:dim], keys, values, width, *tensor.shape[dim + 1 :]]
    return tensor.reshape(shape).swapaxes(dim, dim + 1).reshape(tensor.shape)


def _qwen35(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    width, keys = hf["linear_value_head_dim"], 2 * hf["linear_num_key_heads"] * hf["linear_key_head_dim"]
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        tensor = tensor.reshape(len(tensor), -1)
        tensor = np.concatenate([tensor[:keys], _tiled(hf, tensor[keys:], width)])
    elif name.endswith("in_proj_z.weight"):
        tensor = _tiled(hf, tensor, width)
    elif name.endswith(("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
        tensor = _tiled(hf, tensor, 1)
    elif name.endswith("linear_attn.out_proj.weight"):
        tensor = _tiled(hf, tensor, width, dim=1)
    return _delta_layout(hf, name, tensor)


def _delta_layout(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    if name.endswith("norm.weight") and "linear_attn" not in name:
        return [(name, tensor + np.float32(1))]
    if name.endswith("in_proj_qkvz.weight"):
        keys, values = hf["linear_key_head_dim"], hf["linear_value_head_dim"]
        values *= hf["linear_num_value_heads"] // hf["linear_num_key_heads"]
        parts = tensor.reshape(hf["linear_num_key_heads"], 2 * (keys + values), -1)
        split = np.split(parts, [keys, 2 * keys, 2 * keys + values], axis=1)
        query, key, value, gate = (part.reshape(-1, part.shape[-1]) for part in split)
        stem = name.removesuffix("in_proj_qkvz.weight")
        return [(f"{stem}in_proj_qkv.weight", np.concatenate([query, key, value])), (f"{stem}in_proj_z.weight", gate)]
    return _mixer(hf, name, tensor)


def _mixer(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    """Rename and reshape a tensor of a state space or of the gated delta rule."""
    if name.endswith("A_log"):
        return [(name, -np.exp(tensor))]
    if name.endswith("dt_bias"):
        return [(name.removesuffix("dt_bias") + "dt_proj.bias", tensor)]
    if name.endswith(("conv1d.weight", "conv.conv.weight")):
        return [(name, tensor.reshape(len(tensor), -1))]
    return [(name, tensor)]


def _state_space(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    groups = hf.get("mamba_n_groups") or hf.get("n_groups")
    if name.endswith((".A_log", ".D")):
        tensor = tensor[:, None]
    elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        tensor = tensor.reshape(groups, -1)
    return _mixer(hf, name, tensor)


def _interleaved_experts(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    if "sinks" in name:
        return [(f"{name}.weight", tensor)]
    stem, _, end = name.rpartition(".")
    if end == "down_proj_bias":
        return [(f"{stem}.down_proj.bias", tensor)]
    if end == "gate_up_proj_bias":
        return [(f"{stem}.gate_proj.bias", tensor[:, ::2]), (f"{stem}.up_proj.bias", tensor[:, 1::2])]
    return [(name, tensor)]


def _lfm2_experts(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    *parts, matrix, _ = name.split(".")
    if parts[-1] == "experts":
        part = {"w1": "gate", "w2": "down", "w3": "up"}[matrix]
        return [(f"blk.{parts[2]}.ffn_{part}_exps.weight", tensor)]
    return _mixer(hf, f"{name}.bias" if name.endswith("expert_bias") else name, tensor)


def _granite_experts(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    stem = name.rpartition(".")[0]
    if name.endswith(("shared_mlp.input_linear.weight", "block_sparse_moe.input_linear.weight")):
        gate, up = np.split(tensor, 2, axis=-2)
        layer = stem.split(".")[2]
        end = "shexp" if "shared" in name else "exps"
        return [(f"blk.{layer}.ffn_gate_{end}.weight", gate), (f"blk.{layer}.ffn_up_{end}.weight", up)]
    return _state_space(hf, name, tensor) if "mamba" in name else [(name, tensor)]


def _granite_sinks(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    """Rename tensors. The gate and up matrices of the shared expert stay in one tensor."""
    own = {
        "self_attn.sinks": "attn_sinks",
        "shared_mlp.input_linear.weight": "ffn_up_shexp",
        "shared_mlp.output_linear.weight": "ffn_down_shexp",
        "block_sparse_moe.router.weight": "ffn_gate_inp",
        **{f"experts.{part}_proj.weight": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    }
    to = next((to for end, to in own.items() if name.endswith(end)), None)
    return [(name if to is None else f"blk.{name.split('.')[2]}.{to}.weight", tensor)]


def _latent_layout(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    if not name.endswith("kv_b_proj.weight"):
        return [(name, tensor)]
    plain, value = hf["qk_nope_head_dim"], hf["v_head_dim"]
    heads = tensor.reshape(hf["num_attention_heads"], plain + value, -1)
    keys, values = heads[:, :plain].swapaxes(1, 2), heads[:, plain:]
    return [(name.replace("kv_b_proj", "k_b_proj"), keys), (name.replace("kv_b_proj", "v_b_proj"), values)]


def _gemma4_layout(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    layer = name.split(".")[2] if ".layers." in name else ""
    if name.endswith("layer_scalar"):
        return [(f"{name}.weight", tensor)]
    own = {
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight",
    }
    return [
        (next((f"blk.{layer}.{to}" for end, to in own.items() if name.endswith(end)), name), tensor),
    ]


def _bloom(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    if "query_key_value" in name:
        heads = hf["n_head"]
        tensor = tensor.reshape(heads, 3, len(tensor) // heads // 3, -1).swapaxes(0, 1).reshape(tensor.shape)
    return [(name.removeprefix("transformer."), tensor)]


def _gemma3n_layout(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    return [(f"{name}.weight" if name.endswith("_scale") else name, tensor)]


def _nemotron_h_layout(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    parts = name.split(".")
    if "experts" in parts:
        return [(f"blk.{parts[2]}.ffn_{parts[-2].removesuffix('_proj')}_exps.weight", tensor)]
    return _state_space(hf, name, tensor)


def _nemotron(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    return [(name, tensor + np.float32(1) if name.endswith("norm.weight") else tensor)]


def _nomic_experts(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    """Reshape the experts.

    Like the converter, leave out their bias, and the first dimension of a table with one row.
    """
    if name.endswith("experts.bias"):
        return []
    if name.endswith(("mlp.w1", "mlp.w2")):
        tensor = tensor.reshape(hf["num_experts"], -1, hf["n_embd"])
        return [(f"{name}.weight", tensor if name.endswith("w1") else tensor.swapaxes(1, 2))]
    return [(name, tensor.squeeze())]


def _roberta(hf: Settings, name: str, tensor: np.ndarray) -> Tensors:
    """The first rows of the position table are for padding, and no position has them."""
    name = name.removeprefix("roberta.")
    return [(name, tensor[hf["pad_token_id"] + 1 :] if "position_embeddings" in name else tensor)]


CHANGES: Mapping[str, Callable[[Settings, str, np.ndarray], Tensors]] = {
    "qwen3_5_text": _qwen35,
    "qwen3_5_moe_text": _qwen35,
    "qwen3_next": _delta_layout,
    "gpt_oss": _interleaved_experts,
    "gemma3n_text": _gemma3n_layout,
    "gemma4_text": _gemma4_layout,
    "lfm2": _mixer,
    "lfm2_moe": _lfm2_experts,
    "granitemoe": _granite_experts,
    "granitemoehybrid": _granite_experts,
    "granite_swa": _granite_sinks,
    "granitemoe_swa": _granite_sinks,
    "deepseek_v2": _latent_layout,
    "deepseek_v3": _latent_layout,
    "youtu": _latent_layout,
    "glm4_moe_lite": _latent_layout,
    "mistral4": _latent_layout,
    "granitemoeshared": _granite_experts,
    "nemotron": _nemotron,
    "nemotron_h": _nemotron_h_layout,
    "falcon_h1": _state_space,
    "mamba2": _state_space,
    "bloom": _bloom,
    "nomic_bert/moe": _nomic_experts,
    "roberta": _roberta,
}
