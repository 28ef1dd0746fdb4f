"""Hostile EAGLE-3 heads and prediction heads, in the folder `head` of the checkpoint of their model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.hostile.base import CONFIG, write_json
from tests.hostile.weight_cases import ESCAPES, LONG, Case

Change = Callable[[dict[str, Tensor]], object]
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
    "head, weights are a link to /dev/zero": _linked,
    "head, config.json is a pipe": _pipe,
}
