"""Write checkpoints with random weights without transformers, which would take minutes for a model of 8B parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from benchmarks import checkpoints, vocabulary

Shapes = dict[str, tuple[int, ...]]


Kind = Literal["random", "fp8", "constant"]
"""Kind of the weights of a checkpoint.

random: random numbers.
fp8: random numbers; matrices of layers are stored as 8-bit codes with a scale for each block, as DeepSeek stores them.
constant: the weights of the final norm are 0. All logits are then 0, and every chosen token has id 0."""
FP8_BLOCK = 128
MAX_DRAFTED_TOKENS = 32_000
"""Largest number of different tokens that a draft head predicts, as in the heads that EAGLE-3's authors published."""
_FINAL_NORM = "model.norm.weight"


def write(
    directory: Path, hf: Mapping[str, Any], dtype: torch.dtype, device: torch.device, kind: Kind = "random"
) -> Path:
    """Write a checkpoint with a tokenizer, unless the directory has a complete one. Returns the directory.

    hf: contents of `config.json`, with the `model_type` `llama`, `qwen3`, `marian` or `bert`. A BERT without a head
        gets the files for mean pooling and normalization to unit length.
    device: device that generates the random numbers.
    kind: kind of the weights; for models other than LLaMA it must be `random`.
    """
    done = directory / "complete"
    if done.exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    files = {"marian": _marian, "bert": _bert}.get(hf["model_type"], _llama)(hf)
    file_of: dict[str, str] = {}
    for file, shapes in files.items():
        tensors = {name: _random(shape, dtype, device) for name, shape in shapes.items()}
        if kind == "fp8":
            tensors = {new: tensor for name, old in tensors.items() for new, tensor in _in_fp8(name, old).items()}
        if kind == "constant" and _FINAL_NORM in tensors:
            tensors[_FINAL_NORM].zero_()
        save_file(tensors, directory / file, metadata={"format": "pt"})
        file_of |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": file_of}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    fp8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [FP8_BLOCK, FP8_BLOCK]}}
    (directory / "config.json").write_text(json.dumps(dict(hf) | (fp8 if kind == "fp8" else {})))
    family = hf["model_type"]
    vocabulary.write(directory, hf["vocab_size"], wrap=family == "bert", pad_last=family == "marian")
    if family == "bert" and hf["architectures"] == ["BertModel"]:
        checkpoints.write_pooling(directory, hf["hidden_size"])
    done.touch()
    return directory


def write_draft_head(
    directory: Path, hf: Mapping[str, Any], dtype: torch.dtype, device: torch.device, is_constant: bool
) -> Path:
    """Write an EAGLE-3 head for a LLaMA, unless the directory has a complete one. Returns the directory.

    hf: contents of the model's `config.json`. is_constant: whether it drafts the first token only.
    """
    done = directory / "complete"
    if done.exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    hidden, middle, layers = hf["hidden_size"], hf["intermediate_size"], hf["num_hidden_layers"]
    read_layers = sorted({1, layers // 2, layers - 1})
    heads, kv_heads = (hf[name] * hf["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    drafted = min(hf["vocab_size"], MAX_DRAFTED_TOKENS)
    layer: Shapes = {
        "self_attn.q_proj": (heads, 2 * hidden),
        "self_attn.k_proj": (kv_heads, 2 * hidden),
        "self_attn.v_proj": (kv_heads, 2 * hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (middle, hidden),
        "mlp.up_proj": (middle, hidden),
        "mlp.down_proj": (hidden, middle),
        **dict.fromkeys(("hidden_norm", "input_layernorm", "post_attention_layernorm"), (hidden,)),
    }
    shapes = {f"midlayer.{name}.weight": shape for name, shape in layer.items()}
    shapes |= {
        "fc.weight": (hidden, len(read_layers) * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (drafted, hidden),
    }
    tensors = {name: _random(shape, dtype, device) for name, shape in shapes.items()}
    if is_constant:
        tensors["norm.weight"].zero_()
    # Logit i is that of token i.
    tensors["d2t"] = torch.zeros(drafted, dtype=torch.int64)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    settings = dict(hf) | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    settings |= {"draft_vocab_size": drafted, "eagle_aux_hidden_state_layer_ids": read_layers}
    (directory / "config.json").write_text(json.dumps(settings))
    done.touch()
    return directory


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A matrix of small random numbers, or a vector of ones (the weights of a norm), on the CPU."""
    tensor = torch.empty(shape, dtype=dtype, device=device)
    return (tensor.normal_(std=0.02) if len(shape) > 1 else tensor.fill_(1)).cpu()


def _in_fp8(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The stored tensors of one tensor in an fp8 checkpoint, by name.

    A matrix of a layer becomes codes and scales; any other tensor is stored unchanged.
    """
    if not name.endswith("_proj.weight"):
        return {name: tensor}
    blocks = [-(-size // FP8_BLOCK) for size in tensor.shape]
    # Random weights with a standard deviation of 0.02 become codes with a standard deviation of 1.
    scales = torch.full(blocks, 0.02)
    return {name: (tensor.float() / 0.02).to(torch.float8_e4m3fn), f"{name}_scale_inv": scales}


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


def _bert(hf: Mapping[str, Any]) -> dict[str, Shapes]:
    """Tensor shapes of a BERT, with the classification head if it has one. All tensors are in one file."""
    hidden, middle = hf["hidden_size"], hf["intermediate_size"]
    has_head = hf["architectures"] == ["BertForSequenceClassification"]
    prefix = "bert." if has_head else ""
    embeddings = {"word": hf["vocab_size"], "position": hf["max_position_embeddings"], "token_type": 2}
    shapes: Shapes = {
        f"{prefix}embeddings.{name}_embeddings.weight": (size, hidden) for name, size in embeddings.items()
    }
    norms = [f"{prefix}embeddings.LayerNorm"]
    linears: dict[str, tuple[int, int]] = {}
    for number in range(hf["num_hidden_layers"]):
        layer = f"{prefix}encoder.layer.{number}."
        linears |= {f"{layer}attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")}
        linears |= {f"{layer}attention.output.dense": (hidden, hidden)}
        linears |= {f"{layer}intermediate.dense": (middle, hidden), f"{layer}output.dense": (hidden, middle)}
        norms += [f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"]
    if has_head:
        linears |= {"bert.pooler.dense": (hidden, hidden), "classifier": (hf["num_labels"], hidden)}
    for name, shape in linears.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": (hidden,), f"{name}.bias": (hidden,)}
    return {"model.safetensors": shapes}
