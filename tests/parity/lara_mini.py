"""Small Lara Mini models whose weights depend only on the tensor names, and the results of transformers 5.24 for them.

transformers 5.23 does not have Lara Mini. A newer version writes the results with:

    python -m tests.parity.lara_mini > tests/parity/lara_mini_oracle.json
"""

from __future__ import annotations

import json
import sys
import zlib
from functools import cache
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
SHAPES: dict[str, dict[str, Any]] = {
    "three-kinds": SETTINGS,
    "biases-untied": {
        **{name: value for name, value in SETTINGS.items() if name not in ("layer_types", "linear_conv_kernel_dim")},
        "hidden_size": 48,
        "num_hidden_layers": 6,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 16,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "linear_key_head_dim": 4,
        "linear_value_head_dim": 12,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 28,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
        "sliding_window": 7,
        "rms_norm_eps": 1e-5,
    },
}
"""The `config.json` of two models. The second names neither its layer types nor the length of its convolution."""
PATTERN = ("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention")
"""Default layer types, which repeat until every layer has one."""
PROMPTS = (IDS[:1], IDS[:5], IDS[:11])
BEAMS = {"num_beams": 4, "max_new_tokens": 12, "num_return_sequences": 4}
"""Settings of the beam search from each of `PROMPTS`."""


def delta_rows(settings: dict[str, Any]) -> dict[str, int]:
    """Number of rows of each part of the fused projection of linear attention, by the part's name in transformers."""
    heads = settings["linear_num_value_heads"]
    keys, values = settings["linear_num_key_heads"] * settings["linear_key_head_dim"], _value_width(settings)
    return {"qkv": 2 * keys + values, "z": values, "b": heads, "a": heads}


def _value_width(settings: dict[str, Any]) -> int:
    return settings["linear_num_value_heads"] * settings["linear_value_head_dim"]


def kinds_of(settings: dict[str, Any]) -> list[str]:
    """The type of each layer."""
    count = settings["num_hidden_layers"]
    return settings.get("layer_types") or [PATTERN[index % len(PATTERN)] for index in range(count)]


def _mixer(settings: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    rows, hidden = delta_rows(settings), settings["hidden_size"]
    heads, kernel = settings["linear_num_value_heads"], settings.get("linear_conv_kernel_dim", 4)
    return {
        **{"A_log": (heads,), "dt_bias": (heads,), "conv1d.weight": (rows["qkv"], 1, kernel)},
        **{"in_proj.weight": (sum(rows.values()), hidden), "out_norm.weight": (settings["linear_value_head_dim"],)},
        "out_proj.weight": (hidden, _value_width(settings)),
    }


def _attention(settings: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    size, hidden = settings["head_dim"], settings["hidden_size"]
    width, narrow = settings["num_attention_heads"] * size, settings["num_key_value_heads"] * size
    found: dict[str, tuple[int, ...]] = {"q_norm.weight": (size,), "k_norm.weight": (size,)}
    for name, out, inputs in (("q", width, hidden), ("k", narrow, hidden), ("v", narrow, hidden), ("o", hidden, width)):
        found[f"{name}_proj.weight"] = (out, inputs)
        if settings.get("attention_bias"):
            found[f"{name}_proj.bias"] = (out,)
    return found


def _experts(settings: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, count, inner = settings["hidden_size"], settings["num_experts"], settings["moe_intermediate_size"]
    shared = settings["shared_expert_intermediate_size"]
    return {
        **{"experts.gate_up_proj": (count, 2 * inner, hidden), "experts.down_proj": (count, hidden, inner)},
        **{f"shared_expert.{part}_proj.weight": (shared, hidden) for part in ("gate", "up")},
        **{"shared_expert.down_proj.weight": (hidden, shared), "gate.weight": (count, hidden)},
    }


def write_lara_mini(directory: Path, shape: str = "three-kinds") -> None:
    """Write one of the two models with the names and layout of the published files."""
    settings = SHAPES[shape]
    hidden, words = settings["hidden_size"], (settings["vocab_size"], settings["hidden_size"])
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": words, "model.norm.weight": (hidden,)}
    if not settings.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = words
    for index, kind in enumerate(kinds_of(settings)):
        is_delta = kind == "linear_attention"
        mixer = ("linear_attn", _mixer(settings)) if is_delta else ("self_attn", _attention(settings))
        for part, inner in (mixer, ("mlp", _experts(settings))):
            shapes |= {f"model.layers.{index}.{part}.{name}": shape for name, shape in inner.items()}
        for norm in ("input", "post_attention"):
            shapes[f"model.layers.{index}.{norm}_layernorm.weight"] = (hidden,)
    save_file({name: _weight(name, shape) for name, shape in shapes.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(settings))


def _weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    values = np.random.default_rng(zlib.crc32(name.encode())).random(shape) - 0.5
    is_norm = "norm" in name
    return torch.from_numpy(values * (0.4 if is_norm else 0.6) + (1.0 if is_norm else 0.0)).float()


@cache
def oracle() -> dict[str, Any]:
    """The stored results of transformers.

    `shapes` has those of each model, and `defaults` the settings of its configuration class without arguments.
    """
    found: dict[str, Any] = json.loads((Path(__file__).parent / "lara_mini_oracle.json").read_text())
    return found


def _computed(shape: str) -> dict[str, Any]:
    """What transformers computes with a model: logits, a greedy answer, and the texts and scores of beam search."""
    from transformers import AutoModelForCausalLM

    from tests.engine.harness import Pair, reference

    with TemporaryDirectory() as directory, torch.inference_mode():
        write_lara_mini(Path(directory), shape)
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        logits = model(torch.tensor([IDS])).logits[0]
        answer = model.generate(torch.tensor([IDS[:6]]), max_new_tokens=12, do_sample=False)[0, 6:]
        beams = [reference(Pair(shape, model, None), prompt, **BEAMS) for prompt in PROMPTS]
    rounded = [[round(x, 5) for x in row] for row in logits.tolist()]
    return {"logits": rounded, "answer": answer.tolist(), "beams": beams}


def main() -> None:
    from transformers import CONFIG_MAPPING

    defaults = json.loads(CONFIG_MAPPING["lara_mini"]().to_json_string(use_diff=False))
    del defaults["architectures"], defaults["transformers_version"]
    json.dump({"defaults": defaults, "shapes": {shape: _computed(shape) for shape in SHAPES}}, sys.stdout)


if __name__ == "__main__":
    main()
