"""Write GGUF files of the random checkpoints for the library of llama.cpp, without its converter.

The files have no tokenizer, because benchmarks send token ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from benchmarks import llama_library
from benchmarks.quality.formats import type_of

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
ARCHITECTURES = {"llama": "llama", "qwen3_moe": "qwen3moe"}
"""Name of the architecture in llama.cpp, by `model_type`."""
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(\w+)_proj")


def write(directory: Path, out: Path, format_name: str, folder: Path) -> Path:
    """Write a checkpoint of LLaMA or Qwen3-MoE as a GGUF file in a format of llama.cpp. Returns `out`.

    directory: directory of the checkpoint. format_name: key of `quality.formats.FORMATS`.
    folder: folder with the library of llama.cpp.
    Raises KeyError for a model of another type.
    """
    config = json.loads((directory / "config.json").read_text())
    partial = out.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, ARCHITECTURES[config["model_type"]])
    _add_settings(writer, config)
    layers, has_head = config["num_hidden_layers"], not config["tie_word_embeddings"]
    for name, weights in _tensors(directory, config):
        values = np.ascontiguousarray(weights.float().numpy())
        if weights.dim() == 1 or name.endswith("ffn_gate_inp.weight"):
            writer.add_tensor(name, values)
            continue
        kind = type_of(format_name, name, weights.shape[-1], layers, has_head)
        writer.add_tensor(name, llama_library.quantize(folder, values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(out)
    return out


def _add_settings(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config["model_type"] == "qwen3_moe":
        writer.add_expert_count(_num_experts(config))
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_tokenizer_model("none")


def _num_experts(config: dict[str, Any]) -> int:
    """Number of experts per layer. The setting's name depends on the version of transformers that wrote the file."""
    return int(config.get("num_local_experts") or config["num_experts"])


def _tensors(directory: Path, config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the name in the GGUF file and the content of each tensor.

    The matrices of all experts of a layer are stacked to one tensor.
    """
    index = directory / "model.safetensors.index.json"
    files = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    experts: dict[str, dict[int, Tensor]] = {}
    for file in sorted(files):
        with safe_open(directory / file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                weights = stored.get_tensor(name)
                layer = re.match(r"model\.layers\.(\d+)\.", name)
                module = name.removesuffix(".weight").removeprefix(layer[0] if layer else "")
                prefix = f"blk.{layer[1]}." if layer else ""
                expert = _EXPERT.fullmatch(module)
                if expert is not None:
                    joined = f"{prefix}ffn_{expert[2]}_exps.weight"
                    of_layer = experts.setdefault(joined, {})
                    of_layer[int(expert[1])] = weights
                    if len(of_layer) == _num_experts(config):
                        yield joined, torch.stack([of_layer[number] for number in sorted(of_layer)])
                        del experts[joined]
                    continue
                if config["model_type"] == "llama" and module in ("self_attn.q_proj", "self_attn.k_proj"):
                    weights = _paired(weights, config["hidden_size"] // config["num_attention_heads"])
                yield f"{prefix}{_NAMES[module]}.weight", weights


def _paired(weights: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of a query or key projection for llama.cpp.

    There, rotary positions rotate pairs of neighbouring dimensions.
    """
    rows, width = weights.shape
    return weights.view(-1, 2, head_dim // 2, width).transpose(1, 2).reshape(rows, width)
