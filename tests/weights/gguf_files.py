"""Write GGUF files from Hugging Face checkpoints, with the names and keys of the `gguf` package.

The layouts follow `convert_hf_to_gguf.py` of https://github.com/ggml-org/llama.cpp (2026-11).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from tests.weights.gguf_layouts import CHANGES
from tests.weights.gguf_metadata import METADATA

_MIN_LAYERS = 8
"""Layers in the table of names, for models that state their number under another name."""
_GROUPS = ("experts", "norms", "altup_projections", "altup_unembed_projections")
Quantize = Callable[[str, np.ndarray], tuple[np.ndarray, gguf.GGMLQuantizationType] | None]
"""A function from a tensor's GGUF name and matrix to its quantised blocks and their type. None: stored in float32."""

_ARCHITECTURES = {
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
    "phi": "phi2",
    "gpt_neox": "gptneox",
    "nomic_bert": "nomic-bert",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    "gpt_oss": "gpt-oss",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
    "lfm2_moe": "lfm2moe",
    "granitemoehybrid": "granitehybrid",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "youtu": "deepseek2",
    "glm4_moe_lite": "deepseek2",
    "granitemoeshared": "granitemoe",
    "hunyuan_v1_moe": "hunyuan-moe",
    "glm": "chatglm",
    "glm4_moe": "glm4moe",
    "llama4_text": "llama4",
    "olmo3": "olmo2",
    "cohere": "command-r",
    "hunyuan_v1_dense": "hunyuan-dense",
    "ernie4_5_moe": "ernie4_5-moe",
    "nemotron_h": "nemotron_h_moe",
    "falcon_h1": "falcon-h1",
    "gpt_bigcode": "starcoder",
    "ministral3": "mistral3",
    "umt5": "t5",
    "modernbert": "modern-bert",
    "jina_embeddings_v3": "jina-bert-v3",
    "roberta": "bert",
    "bert/JinaBertModel": "jina-bert-v2",
    "nomic_bert/moe": "nomic-bert-moe",
    "llama/both-ways": "llama-embed",
    "cohere2_moe": "cohere2moe",
    "granitemoe_swa": "granite_swa",
}
_NAMED_LIKE = {"mellum": "qwen3moe", "hy_v3": "dots1", "cohere2moe": "afmoe", "granite_swa": "granite"}
"""Architectures that the package `gguf` does not know yet, each with an older one that has the same tensor names."""
_PAIRED = (
    *("llama", "mistral", "mixtral", "smollm3", "granite", "granitemoe", "granitemoehybrid", "olmo", "arcee"),
    *("ministral3", "granitemoeshared", "llama/both-ways", "granite_swa", "granitemoe_swa"),
)
_UNTRANSPOSED = ("gpt_oss", "llama4_text")


def architecture_of(model_type: str, both_ways: bool = False) -> str:
    """The name of a family in GGUF files. both_ways: whether the model is a Gemma without a causal mask."""
    return "gemma-embedding" if both_ways else _ARCHITECTURES.get(model_type, model_type)


def write_gguf(
    path: Path,
    directory: Path,
    quantize: Quantize = lambda name, matrix: None,
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    fuse_qkv: bool = False,
) -> Path:
    """Write the model of a checkpoint directory as a GGUF file.

    change: adds metadata to the file, for example a tokenizer.
    fuse_qkv: whether one tensor has the queries, keys and values of a layer (`--fuse-qkv`).
    """
    hf = json.loads((directory / "config.json").read_text())
    kind = hf["model_type"]
    if hf.get("feed_forward_type") == "geglu":
        kind = "bert/JinaBertModel"
    elif hf.get("moe_every_n_layers"):
        kind = "nomic_bert/moe"
    elif kind == "llama" and hf.get("is_causal") is False:
        kind = "llama/both-ways"
    hf = {**hf, "model_type": kind}
    architecture = architecture_of(kind, hf.get("use_bidirectional_attention") is True)
    writer = gguf.GGUFWriter(path, architecture)
    _add_settings(writer, hf)
    for key, value in METADATA.get(kind, lambda hf: {})(hf).items():
        add_value(writer, f"{architecture}.{key}", value)
    if hf.get("is_causal") is False:
        add_value(writer, f"{architecture}.attention.causal", False)
    change(writer)
    known = _NAMED_LIKE.get(architecture, architecture)
    enum = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == known)
    names = gguf.get_tensor_name_map(enum, max(_MIN_LAYERS, hf.get("num_hidden_layers", 0)))
    alpha: dict[str, list[float]] = {}
    tensors: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType | None]] = {}
    for name, tensor in _changed(hf, _stacked(kind, _arrays(directory / "model.safetensors"))):
        if "act_fn" in name:  # numbers of an activation, which are metadata
            alpha.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(tensor.item())
            continue
        # Models without a head have no prefix, which the package expects in some families.
        found = (names.get_name(prefix + _older_name(name), (".weight", ".bias")) for prefix in ("", "model."))
        mapped = name if name.startswith("blk.") else next(filter(None, found), None)
        if mapped is None or (mapped == "output.weight" and hf.get("tie_word_embeddings", kind == "gpt2")):
            assert mapped is not None or name.startswith("pooler."), f"no name for {name}"
            continue
        assert mapped not in tensors, f"two tensors are {mapped}"
        stored = None if tensor.ndim < 2 else quantize(mapped, tensor)
        if stored is None:
            tensors[mapped] = np.ascontiguousarray(_layout(hf, name, tensor.astype(np.float32))), None
        else:
            tensors[mapped] = _layout(hf, name, stored[0]), stored[1]
    for name, (tensor, dtype) in (_fused(tensors) if fuse_qkv else tensors).items():
        writer.add_tensor(name, tensor, raw_dtype=dtype)
    for name, factors in _rope_tensors(hf).items():
        writer.add_tensor(name, factors)
    for key, numbers in alpha.items():
        add_value(writer, key, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _arrays(file: Path) -> dict[str, np.ndarray]:
    """The tensors of a file; in float32 if they are stored in bfloat16, which numpy does not have."""
    tensors = load_file(file)
    return {name: (each.float() if each.dtype == torch.bfloat16 else each).numpy() for name, each in tensors.items()}


Stored = Mapping[str, tuple[np.ndarray, gguf.GGMLQuantizationType | None]]
"""By name, the tensors of a file and their block types. None: the type of the numpy array."""


def _fused(tensors: Stored) -> Stored:
    """Join the matrices of queries, keys and values in each layer where all three have the same type."""
    out = dict(tensors)
    for name in tensors:
        if not re.match(r"blk\.\d+\.attn_q\.", name):
            continue
        parts = [name.replace(".attn_q.", f".attn_{part}.") for part in ("q", "k", "v")]
        if all(part in out for part in parts) and len({out[part][1] for part in parts}) == 1:
            rows, dtypes = zip(*(out.pop(part) for part in parts), strict=True)
            out[name.replace(".attn_q.", ".attn_qkv.")] = np.concatenate(rows), dtypes[0]
    return out


def _add_settings(writer: gguf.GGUFWriter, hf: Mapping[str, Any]) -> None:
    def first(*names: str) -> Any:
        return next((hf[name] for name in names if hf.get(name) is not None), None)

    hidden, heads = (
        first("hidden_size", "n_embd", "d_model"),
        first("num_attention_heads", "n_head", "num_heads", "n_heads") or 1,
    )
    head_dim = first("head_dim") or hidden // heads
    values = {
        writer.add_block_count: first("num_hidden_layers", "n_layer", "num_layers"),
        writer.add_context_length: first("max_position_embeddings", "n_positions", "max_seq_len") or 512,
        writer.add_embedding_length: hidden,
        writer.add_feed_forward_length: first("intermediate_size", "n_inner", "ffn_hidden_size") or 4 * hidden,
        writer.add_head_count: heads,
        writer.add_head_count_kv: (first("num_key_value_heads") if hf["model_type"] != "falcon" else _falcon_heads(hf)),
        writer.add_layer_norm_rms_eps: first("rms_norm_eps"),
        writer.add_layer_norm_eps: first("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
        writer.add_key_length: first("head_dim"),
        writer.add_value_length: first("head_dim"),
        writer.add_expert_count: first("num_local_experts", "num_experts", "n_routed_experts"),
        writer.add_expert_used_count: first("num_experts_per_tok", "top_k_experts"),
        writer.add_expert_feed_forward_length: first("moe_intermediate_size"),
        writer.add_expert_shared_feed_forward_length: first("shared_expert_intermediate_size"),
        writer.add_attn_logit_softcapping: first("attn_logit_softcapping"),
        writer.add_final_logit_softcapping: first("final_logit_softcapping"),
        writer.add_sliding_window: first("sliding_window") if hf["model_type"].startswith(("gemma", "star")) else None,
    }
    for add, value in values.items():
        if value is not None:
            add(value)
    rope = hf.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    if hf["model_type"] == "gpt_neox":
        writer.add_parallel_residual(hf["use_parallel_residual"])
    if full.get("rope_theta") is not None:
        writer.add_rope_freq_base(full["rope_theta"])
    if full.get("partial_rotary_factor") is not None:
        writer.add_rope_dimension_count(int(full["partial_rotary_factor"] * head_dim))
    if full.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(full["rope_type"]))
        writer.add_rope_scaling_factor(full["factor"])
    for key in ("beta_fast", "beta_slow"):
        add_value(writer, f"{writer.arch}.rope.scaling.yarn_{key}", full.get(key))
    if full.get("rope_type") in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(
            hf.get("original_max_position_embeddings") or full["original_max_position_embeddings"]
        )
    if full.get("attention_factor") is not None:
        writer.add_rope_scaling_attn_factors(full["attention_factor"])


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a metadata value, which replaces an earlier one of the same key. None adds nothing."""
    if value is None:
        return
    writer.kv_data[0].pop(key, None)
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    adders.get(type(value), writer.add_array)(key, value)


def _changed(hf: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors that `CHANGES` makes from those of a checkpoint."""
    change = CHANGES.get(hf["model_type"], lambda hf, name, tensor: [(name, tensor)])
    for name, tensor in tensors.items():
        yield from change(hf, name, tensor)


def _falcon_heads(hf: Mapping[str, Any]) -> int:
    return hf["num_kv_heads"] if hf["new_decoder_architecture"] else 1


def _rope_tensors(hf: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Tensors with divisors of the rotary frequencies, as llama.cpp's converter computes them."""
    rope = hf.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32) for kind in ("long", "short")
        }
    if rope.get("full_attention", {}).get("rope_type") == "proportional":
        width = next(shape["head_dim"] for shape in hf["per_layer_config"].values())
        turning = int(rope["full_attention"]["partial_rotary_factor"] * width // 2)
        return {"rope_freqs.weight": np.array([1.0] * turning + [1e30] * (width // 2 - turning), np.float32)}
    if rope.get("rope_type") != "llama3":
        return {}
    dim, factors = hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"], []
    for exponent in range(0, dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (exponent / dim)
        original, low, high = (
            rope[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def _older_name(name: str) -> str:
    """The name that a tensor had before transformers 5, which the tables of the `gguf` package contain."""
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    return name.replace("mlp.gate.", "block_sparse_moe.gate.") if "block_sparse" in name else name


def _stacked(kind: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Stack the matrices of all experts into one tensor and, in StableLM, the norms of all heads."""
    out: dict[str, np.ndarray] = {}
    groups: dict[str, list[np.ndarray]] = {}
    for name in sorted(
        tensors, key=lambda name: [int(part) if part.isdigit() else part for part in name.split(".")] and name
    ):
        tensor = tensors[name]
        parts = name.split(".")
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")) and not kind.startswith("gemma4"):
            stem = name.rpartition(".")[0]
            tensor = tensor.swapaxes(1, 2) if kind in _UNTRANSPOSED else tensor
            if name.endswith("down_proj"):
                out[f"{stem}.down_proj.weight"] = tensor
            elif kind == "gpt_oss":
                out[f"{stem}.gate_proj.weight"], out[f"{stem}.up_proj.weight"] = tensor[:, ::2], tensor[:, 1::2]
            else:
                out[f"{stem}.gate_proj.weight"], out[f"{stem}.up_proj.weight"] = np.split(tensor, 2, axis=1)
        elif (set(_GROUPS) & {*parts}) and any(part.isdigit() for part in parts[parts.index(_group(parts)) :]):
            place = parts.index(_group(parts))
            joined = parts[:place] if parts[place] == "norms" else parts[: place + 1]
            groups.setdefault(".".join([*joined, *parts[place + 2 :]]), []).append((int(parts[place + 1]), tensor))
        else:
            out[name] = tensor
    return out | {
        name: np.stack([expert for _, expert in sorted(found, key=lambda item: item[0])])
        for name, found in groups.items()
    }


def _group(parts: Sequence[str]) -> str:
    """The part of a tensor name before an index, such as `experts` in `experts.3.w1`."""
    return next(part for part in parts if part in _GROUPS)


def _layout(hf: Mapping[str, Any], name: str, tensor: np.ndarray) -> np.ndarray:
    """Rearrange the rows of a tensor, which may be quantised, as llama.cpp's converter does."""
    kind, rows = hf["model_type"], len(tensor)
    heads = hf.get("num_attention_heads") or hf.get("n_head")
    kv_heads = hf.get("num_key_value_heads") or heads
    if kind in _PAIRED and ("q_proj" in name or "k_proj" in name):
        count = heads if "q_proj" in name else kv_heads
        return tensor.reshape(count, 2, rows // count // 2, -1).swapaxes(1, 2).reshape(tensor.shape)
    if kind in ("gemma", "gemma2", "gemma3_text") and name.endswith("norm.weight"):
        return tensor + np.float32(1)
    if kind == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return tensor.T
    if kind == "gpt_neox" and "query_key_value" in name:
        return tensor.reshape(heads, 3, rows // heads // 3, -1).swapaxes(0, 1).reshape(tensor.shape)
    if kind == "falcon" and "query_key_value" in name:
        groups = _falcon_heads(hf)
        parts = tensor.reshape(groups, heads // groups + 2, hf["hidden_size"] // heads, -1)
        joined = [parts[:, :-2], parts[:, [-2]], parts[:, [-1]]]
        return np.concatenate([part.reshape(-1, parts.shape[-1]) for part in joined]).reshape(tensor.shape)
    return tensor


def of_type(kind: gguf.GGMLQuantizationType) -> Quantize:
    """Write all matrices in this type, which the package `gguf` can write."""
    return lambda name, matrix: (gguf.quants.quantize(matrix, kind), kind)


def q4_k(matrix: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """Round a matrix to Q4_K blocks: groups of 32 weights, with a scale and a minimum of six bits each."""
    groups = matrix.astype(np.float32).reshape(-1, 8, 32)
    low = np.minimum(groups.min(2), 0)
    steps = np.maximum((groups.max(2) - low) / 15, 1e-8)
    unit, low_unit = (
        np.maximum(steps_or_low.max(1, keepdims=True) / 63, 1e-8).astype(np.float16) for steps_or_low in (steps, -low)
    )
    scales, minimums = (
        (multiples / unit.astype(np.float32)).round().clip(0, 63).astype(np.uint8)
        for multiples, unit in ((steps, unit), (-low, low_unit))
    )
    wide = unit.astype(np.float32) * scales, low_unit.astype(np.float32) * minimums
    codes = (
        ((groups + wide[1][..., None]) / np.where(wide[0] == 0, 1, wide[0])[..., None])
        .round()
        .clip(0, 15)
        .astype(np.uint8)
    )
    packed = codes.reshape(-1, 4, 2, 32)
    header = np.concatenate(
        [
            scales[:, :4] | (scales[:, 4:] >> 4) << 6,
            minimums[:, :4] | (minimums[:, 4:] >> 4) << 6,
            scales[:, 4:] & 15 | (minimums[:, 4:] & 15) << 4,
        ],
        axis=1,
    )
    blocks = [
        unit.view(np.uint8),
        low_unit.view(np.uint8),
        header,
        (packed[:, :, 0] | packed[:, :, 1] << 4).reshape(-1, 128),
    ]
    return _rows(matrix, blocks), gguf.GGMLQuantizationType.Q4_K


def q6_k(matrix: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """Round a matrix to Q6_K blocks: groups of 16 weights, with a scale of eight bits each."""
    groups = matrix.astype(np.float32).reshape(-1, 16, 16)
    steps = np.abs(groups).max(2) / 31
    unit = np.maximum(steps.max(1, keepdims=True) / 127, 1e-8).astype(np.float16)
    scales = (steps / unit.astype(np.float32)).round().clip(1, 127).astype(np.int8)
    wide = unit.astype(np.float32) * scales
    codes = ((groups / np.where(wide == 0, 1, wide)[..., None]).round().clip(-32, 31) + 32).astype(np.uint8)
    halves = codes.reshape(-1, 2, 2, 64)
    quarters = codes.reshape(-1, 2, 4, 32) >> 4
    upper = sum(quarters[:, :, part] << 2 * part for part in range(4))
    lower = halves[:, :, 0] & 15 | (halves[:, :, 1] & 15) << 4
    blocks = [
        lower.reshape(-1, 128),
        upper.reshape(-1, 64).astype(np.uint8),
        scales.view(np.uint8),
        unit.view(np.uint8),
    ]
    return _rows(matrix, blocks), gguf.GGMLQuantizationType.Q6_K


def _rows(matrix: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts, axis=1).reshape(*matrix.shape[:-1], -1)
