"""A small Lara Mini with weights that depend on their names alone, and the logits that transformers 5.24 computes.

transformers 5.23 has no such class. With a newer one:

    python -m tests.parity.lara_mini > tests/parity/lara_mini_oracle.json
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

IDS = [5, 71, 9, 9, 44, 23, 80, 12, 7, 66, 31, 90, 18, 5, 71, 9, 52]
KINDS = ("linear_attention", "sliding_attention", "full_attention")
SETTINGS: dict[str, Any] = {
    "model_type": "lara_mini",
    "architectures": ["LaraMiniForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 5,
    "layer_types": list(KINDS),
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "pad_token_id": 0,
    "eos_token_id": 1,
}
_MIXER = {
    **{"A_log": (4,), "dt_bias": (4,), "conv1d.weight": (64, 1, 4), "in_proj.weight": (104, 32)},
    **{"out_norm.weight": (8,), "out_proj.weight": (32, 32)},
}
_ATTENTION = {
    **{"q_proj.weight": (32, 32), "k_proj.weight": (16, 32), "v_proj.weight": (16, 32), "o_proj.weight": (32, 32)},
    **{"q_norm.weight": (8,), "k_norm.weight": (8,)},
}
_EXPERTS = {
    **{"experts.gate_up_proj": (5, 48, 32), "experts.down_proj": (5, 32, 24), "gate.weight": (5, 32)},
    **{f"shared_expert.{part}_proj.weight": (20, 32) for part in ("gate", "up")},
    "shared_expert.down_proj.weight": (32, 20),
}


def write_lara_mini(directory: Path) -> None:
    """Write the checkpoint in the layout of the published files."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (97, 32), "model.norm.weight": (32,)}
    for index, kind in enumerate(KINDS):
        mixer = ("linear_attn", _MIXER) if kind == "linear_attention" else ("self_attn", _ATTENTION)
        for part, inner in (mixer, ("mlp", _EXPERTS)):
            shapes |= {f"model.layers.{index}.{part}.{name}": shape for name, shape in inner.items()}
        for norm in ("input", "post_attention"):
            shapes[f"model.layers.{index}.{norm}_layernorm.weight"] = (32,)
    save_file({name: _weight(name, shape) for name, shape in shapes.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(SETTINGS))


def _weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    values = np.random.default_rng(zlib.crc32(name.encode())).random(shape) - 0.5
    is_norm = "norm" in name
    return torch.from_numpy(values * (0.4 if is_norm else 0.6) + (1.0 if is_norm else 0.0)).float()


def main() -> None:
    from transformers import AutoModelForCausalLM

    with TemporaryDirectory() as directory, torch.inference_mode():
        write_lara_mini(Path(directory))
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        logits = model(torch.tensor([IDS])).logits[0]
        answer = model.generate(torch.tensor([IDS[:6]]), max_new_tokens=12, do_sample=False)[0, 6:]
    found = {"logits": [[round(x, 5) for x in row] for row in logits.tolist()], "answer": answer.tolist()}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
