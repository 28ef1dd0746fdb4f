"""Write a small valid checkpoint, and change its files to make hostile ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 260,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 256,
    "eos_token_id": 257,
}


def write_checkpoint(directory: Path) -> None:
    """Write a valid checkpoint: a LLaMA with two layers, and a byte-level tokenizer without merges."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory, "config.json", CONFIG)
    random = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return (random.standard_normal(shape) * 0.05).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(260, 16), "model.norm.weight": np.ones(16, np.float32)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name in "qkvo":
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = matrix(16, 16)
        for name, shape in (("gate", (32, 16)), ("up", (32, 16)), ("down", (16, 32))):
            tensors[f"{prefix}mlp.{name}_proj.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = np.ones(16, np.float32)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>", "<pad>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})


def write_json(directory: Path, name: str, content: Any) -> None:
    (directory / name).write_text(json.dumps(content), encoding="utf-8")


def change_json(directory: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Change the content of a JSON file.

    change: function that returns the new content, or changes its argument and returns None.
    """
    path = directory / name
    content = json.loads(path.read_bytes()) if path.exists() else {}
    changed = change(content)
    write_json(directory, name, content if changed is None else changed)


def config(**settings: Any) -> Callable[[Path], None]:
    """Return a case that changes settings of `config.json`."""
    return lambda directory: change_json(directory, "config.json", lambda content: {**content, **settings})


def generation(**settings: Any) -> Callable[[Path], None]:
    """Return a case that writes a `generation_config.json` with these settings."""
    return lambda directory: write_json(directory, "generation_config.json", settings)


def tensors(change: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> Callable[[Path], None]:
    """Return a case that changes the tensors of the safetensors file.

    change: function that returns the new tensors, or changes its argument and returns None.
    """

    def apply(directory: Path) -> None:
        content = load_file(directory / "model.safetensors")
        changed = change(content)
        save_file(dict(content if changed is None else changed), directory / "model.safetensors")

    return apply


def header(content: Any, data: bytes = b"", length: int | None = None) -> Callable[[Path], None]:
    """Return a case that writes a safetensors file with this header.

    data: bytes after the header. length: stated length of the header; None for the true one.
    """

    def apply(directory: Path) -> None:
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        stated = len(text) if length is None else length
        (directory / "model.safetensors").write_bytes(struct.pack("<Q", stated) + text + data)

    return apply


def tokenizer(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Return a case that changes `tokenizer.json`. change: as for `change_json`."""
    return lambda directory: change_json(directory, "tokenizer.json", change)
