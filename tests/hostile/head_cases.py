"""Hostile EAGLE-3 heads and prediction heads, in the folder `head` of the checkpoint of their model."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.hostile.base import CONFIG, change_json, write_json
from tests.hostile.weight_cases import ESCAPES, LONG, Case

Change = Callable[[dict[str, Tensor]], object]
TOKENS = "embed_tokens.weight"
_LAYERS = "eagle_aux_hidden_state_layer_ids"


def _write_head(directory: Path) -> Path:
    """Write an EAGLE-3 head that fits the checkpoint, and return its folder."""
    hidden, inner, count, logits = 16, 32, 2, 40
    settings = {
        name: CONFIG[name]
        for name in ("vocab_size", "hidden_size", "intermediate_size", "head_dim", "rms_norm_eps", "rope_theta")
    }
    settings |= {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1, "hidden_act": "silu"}
    settings |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": logits, _LAYERS: [0, 1]}
    shapes = {
        "fc.weight": (hidden, count * hidden),
        **{f"midlayer.self_attn.{name}_proj.weight": (hidden, 2 * hidden) for name in "qkv"},
        "midlayer.self_attn.o_proj.weight": (hidden, hidden),
        **{f"midlayer.mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")},
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "lm_head.weight": (logits, hidden),
        **{f"midlayer.{name}.weight": (hidden,) for name in ("hidden_norm", "input_layernorm")},
        **{f"{name}.weight": (hidden,) for name in ("midlayer.post_attention_layernorm", "norm")},
    }
    tensors = {name: torch.full(shape, 0.01) for name, shape in shapes.items()}
    folder = directory / "head"
    folder.mkdir()
    write_json(folder, "config.json", settings)
    save_file(tensors | {"d2t": torch.zeros(logits, dtype=torch.int64)}, folder / "model.safetensors")
    return folder


def head(change: Change = lambda tensors: None, **settings: Any) -> Case:
    """A head whose tensors are changed in place, with these settings in its `config.json`."""

    def apply(directory: Path) -> None:
        folder = _write_head(directory)
        config = json.loads((folder / "config.json").read_bytes()) | settings
        write_json(folder, "config.json", config)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        (folder / "model.safetensors").unlink()
        save_file(tensors, folder / "model.safetensors")

    return apply


def _map(change: Callable[[Tensor], Tensor]) -> Case:
    return head(lambda tensors: tensors.update(d2t=change(tensors["d2t"])))


def _filled(name: str, value: float) -> Case:
    return head(lambda tensors: tensors[name].fill_(value))


def _pickled(change: Change) -> Case:
    """A head in a pickle of torch, which may state more numbers than it has."""

    def apply(directory: Path) -> None:
        folder = _write_head(directory)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        (folder / "model.safetensors").unlink()
        torch.save(tensors, folder / "pytorch_model.bin")

    return apply


def _linked(directory: Path) -> None:
    folder = _write_head(directory)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")


def _pipe(directory: Path) -> None:
    folder = _write_head(directory)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def _text(name: str, content: bytes) -> Case:
    """A head with another content in a file."""

    def apply(directory: Path) -> None:
        (_write_head(directory) / name).write_bytes(content)

    return apply


def _cut(directory: Path) -> None:
    file = _write_head(directory) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-50])


def _other_shard(directory: Path) -> None:
    """Let the index of a head name a file of the directory above it."""
    folder = _write_head(directory)
    (folder / "model.safetensors").rename(folder / "fc.safetensors")
    write_json(folder, "model.safetensors.index.json", {"weight_map": {"fc.weight": "../model.safetensors"}})


def _whole_model(directory: Path) -> None:
    """Use the weights of the model itself as a head."""
    folder = _write_head(directory)
    (folder / "model.safetensors").write_bytes((directory / "model.safetensors").read_bytes())


def _map_in_a_hole(count: int) -> Case:
    """A head that maps `count` logits, with a file that is a hole. It takes no room on the disk."""

    def apply(directory: Path) -> None:
        folder = _write_head(directory)
        change_json(folder, "config.json", lambda config: config | {"vocab_size": count, "draft_vocab_size": count})
        described = {"d2t": {"dtype": "I64", "shape": [count], "data_offsets": [0, 8 * count]}}
        text = json.dumps(described).encode()
        with (folder / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + 8 * count)

    return apply


HEADS: dict[str, Case] = {
    "head, num_hidden_layers 100,000": head(num_hidden_layers=100_000),
    "head, head_dim 1e9": head(head_dim=10**9),
    "head, hidden_size 1e9": head(hidden_size=10**9),
    "head, intermediate_size 1e12": head(intermediate_size=10**12),
    "head, vocab_size 2e9": head(vocab_size=2 * 10**9, draft_vocab_size=None),
    "head, num_attention_heads 0": head(num_attention_heads=0),
    "head, draft_vocab_size 0": head(draft_vocab_size=0),
    "head, draft_vocab_size 2e9": head(draft_vocab_size=2 * 10**9),
    "head, draft_vocab_size 1e30": head(draft_vocab_size=10**30),
    "head, draft_vocab_size 0.5": head(draft_vocab_size=0.5),
    "head, rope_theta NaN": head(rope_theta=float("nan")),
    "head, rope factor 1e300": head(rope_scaling={"rope_type": "linear", "factor": 1e300}),
    "head, rms_norm_eps -1": head(rms_norm_eps=-1.0),
    "head, unknown activation with escapes": head(hidden_act="\x1b]0;owned\x07" + LONG),
    "head, layer settings are a list": head(transformer_layer_config=[1]),
    "head, no layers": head(**{_LAYERS: []}),
    "head, layers are a text": head(**{_LAYERS: "0,1"}),
    "head, a layer 1e30": head(**{_LAYERS: [0, 10**30]}),
    "head, a layer below 0": head(**{_LAYERS: [0, -1]}),
    "head, 1,000,000 layers": head(**{_LAYERS: list(range(1_000_000))}),
    "head, one layer 1,000,000 times": head(**{_LAYERS: [0] * 1_000_000}),
    "head, layers of outputs that end": head(**{_LAYERS: None, "eagle_config": {_LAYERS: [0, 1]}}),
    "head, map of floats": _map(lambda d2t: d2t.float()),
    "head, map beyond the vocabulary": _map(lambda d2t: d2t + 10_000),
    "head, map that overflows": _map(lambda d2t: d2t + (1 << 63) - 1),
    "head, map below 0": _map(lambda d2t: d2t - 50),
    "head, map with a token twice": _map(lambda d2t: d2t - torch.arange(40)),
    "head, map of two dimensions": _map(lambda d2t: d2t[None].contiguous()),
    "head, empty map": _map(lambda d2t: d2t[:0].clone()),
    "head, map of 2 ** 40 numbers in one place": _pickled(
        lambda tensors: tensors.update(d2t=torch.zeros(1, dtype=torch.int32).expand(1 << 40))
    ),
    "head, weights NaN": _filled("fc.weight", float("nan")),
    "head, norm infinite": _filled("norm.weight", float("inf")),
    "head, projection of another width": head(lambda tensors: tensors.update({"fc.weight": torch.zeros(16, 48)})),
    "head, tensor is missing": head(lambda tensors: tensors.pop("midlayer.self_attn.q_proj.weight")),
    "head, tensor's name with escapes": head(lambda tensors: tensors.update({ESCAPES: torch.zeros(2)})),
    "head, integers for weights": head(lambda tensors: tensors.update({"fc.weight": torch.zeros(16, 32).long()})),
    "head, of a model with fewer tokens": head(vocab_size=100),
    "head, of a wider model": head(hidden_size=32),
    "head, vocab_size is a text": head(vocab_size="260"),
    "head, draft_vocab_size -5": head(draft_vocab_size=-5),
    "head, draft_vocab_size is a list": head(draft_vocab_size=[40]),
    "head, num_hidden_layers -1": head(num_hidden_layers=-1),
    "head, num_hidden_layers is a list": head(num_hidden_layers=[1]),
    "head, norm_before_residual is a text": head(norm_before_residual="yes"),
    "head, attention is not causal": head(is_causal=False),
    "head, rotation depends on the length": head(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    "head, code in auto_map": head(auto_map={"AutoModel": "model.Model"}),
    "head, map of bytes": _map(lambda d2t: d2t.to(torch.uint8)),
    "head, map without dimensions": _map(lambda d2t: d2t.sum()),
    "head, map of 500,000,000 tokens in a hole": _map_in_a_hole(500_000_000),
    "head, table of another vocabulary": head(lambda tensors: tensors.update({TOKENS: torch.zeros(100, 16)})),
    "head, table NaN": head(lambda tensors: tensors.update({TOKENS: torch.full((260, 16), float("nan"))})),
    "head, projection twice": head(lambda tensors: tensors.update({"model.fc.weight": torch.zeros(16, 32)})),
    "head, 20,000 further tensors": head(
        lambda tensors: tensors.update({f"x{number}": torch.zeros(1) for number in range(20_000)})
    ),
    "head, weights of the model itself": _whole_model,
    "head, file is cut": _cut,
    "head, file is empty": _text("model.safetensors", b""),
    "head, shard outside the directory": _other_shard,
    "head, SHA256SUMS of other bytes": _text("SHA256SUMS", b"0" * 64 + b"  model.safetensors\n"),
    "head, config.json is a list": _text("config.json", b"[1]"),
    "head, config.json, 100,000 brackets": _text("config.json", b"[" * 100_000),
    "head, weights are a link to /dev/zero": _linked,
    "head, config.json is a pipe": _pipe,
}
