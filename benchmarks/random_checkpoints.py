"""Write checkpoints with random weights from their shapes alone, because transformers would need minutes for 8B."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks import vocabulary

Shapes = dict[str, tuple[int, ...]]


def write(directory: Path, hf: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> Path:
    """Write a checkpoint with a tokenizer, unless the directory has a complete one. Returns the directory.

    hf: contents of `config.json`, with the `model_type` `llama`, `qwen3` or `marian`.
    device: device that generates the random numbers.
    """
    done = directory / "complete"
    if done.exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    files = _marian(hf) if hf["model_type"] == "marian" else _llama(hf)
    for file, shapes in files.items():
        tensors = {name: _random(shape, dtype, device) for name, shape in shapes.items()}
        save_file(tensors, directory / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, shapes in files.items() for name in shapes}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text(json.dumps(dict(hf)))
    vocabulary.write(directory, hf["vocab_size"], wrap=False, pad_last=hf["model_type"] == "marian")
    done.touch()
    return directory


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A matrix of small random numbers, or a vector of ones (the weights of a norm), on the CPU."""
    tensor = torch.empty(shape, dtype=dtype, device=device)
    return (tensor.normal_(std=0.02) if len(shape) > 1 else tensor.fill_(1)).cpu()


def _llama(hf: Mapping[str, Any]) -> dict[str, Shapes]:
    """Tensor shapes of a LLaMA or Qwen 3, by file and tensor name: one file per layer, and one for other tensors."""
    hidden, middle, vocab = hf["hidden_size"], hf["intermediate_size"], hf["vocab_size"]
    heads, kv_heads = (hf[name] * hf["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    layer: Shapes = {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (middle, hidden),
        "mlp.up_proj": (middle, hidden),
        "mlp.down_proj": (hidden, middle),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if hf["model_type"] == "qwen3":
        layer |= {"self_attn.q_norm": (hf["head_dim"],), "self_attn.k_norm": (hf["head_dim"],)}
    files = {
        f"layer-{number}.safetensors": {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
        for number in range(hf["num_hidden_layers"])
    }
    rest: Shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    files["rest.safetensors"] = rest if hf["tie_word_embeddings"] else rest | {"lm_head.weight": (vocab, hidden)}
    return files


def _marian(hf: Mapping[str, Any]) -> dict[str, Shapes]:
    """Tensor shapes of a Marian model, by file and tensor name. All tensors are in one file."""
    hidden, vocab = hf["d_model"], hf["vocab_size"]
    shapes: Shapes = {"model.shared.weight": (vocab, hidden), "final_logits_bias": (1, vocab)}
    for side in ("encoder", "decoder"):
        attentions = ("self_attn", "encoder_attn") if side == "decoder" else ("self_attn",)
        for number in range(hf[f"{side}_layers"]):
            middle = hf[f"{side}_ffn_dim"]
            linears = {
                f"{attention}.{part}_proj": (hidden, hidden)
                for attention in attentions
                for part in ("q", "k", "v", "out")
            }
            linears |= {"fc1": (middle, hidden), "fc2": (hidden, middle)}
            norms = [*(f"{attention}_layer_norm" for attention in attentions), "final_layer_norm"]
            prefix = f"model.{side}.layers.{number}"
            for name, shape in linears.items():
                shapes |= {f"{prefix}.{name}.weight": shape, f"{prefix}.{name}.bias": shape[:1]}
            for name in norms:
                shapes |= {f"{prefix}.{name}.weight": (hidden,), f"{prefix}.{name}.bias": (hidden,)}
    return {"model.safetensors": shapes}
