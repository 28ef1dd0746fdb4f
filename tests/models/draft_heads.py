"""Write tiny checkpoints with draft heads, and compute these heads in plain torch as references.

The references follow the published descriptions: DeepSeek-AI 2024, arXiv:2412.19437, section 2.2, for prediction heads,
and Li et al. 2025, arXiv:2503.01840, section 3, for EAGLE-3 heads. They compute whole texts in float64 without a cache.
The layer of a prediction head is computed by transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.parity.checkpoints import save

VOCAB = 97
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
}
_LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
_DELTA = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
_SHARED = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
PREDICTING = {
    "glm4_moe": ("Glm4MoeForCausalLM", transformers.Glm4MoeConfig(**_SIZES, **_EXPERTS, num_hidden_layers=3)),
    "glm4_moe_lite": (
        "Glm4MoeLiteForCausalLM",
        transformers.Glm4MoeLiteConfig(**{**_SIZES, **_EXPERTS, **_LATENT}, num_hidden_layers=2),
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        transformers.DeepseekV3Config(**{**_SIZES, **_EXPERTS, **_LATENT}, num_hidden_layers=2),
    ),
    "hy_v3": (
        "HYV3ForCausalLM",
        transformers.HYV3Config(
            **_SIZES, num_hidden_layers=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
        ),
    ),
    "qwen3_5": ("Qwen3_5ForCausalLM", transformers.Qwen3_5TextConfig(**_SIZES, **_DELTA)),
    "qwen3_5_tied": (
        "Qwen3_5ForCausalLM",
        transformers.Qwen3_5TextConfig(**{**_SIZES, "tie_word_embeddings": True}, **_DELTA),
    ),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", transformers.Qwen3_5MoeTextConfig(**_SIZES, **_DELTA, **_SHARED)),
    "qwen3_next": ("Qwen3NextForCausalLM", transformers.Qwen3NextConfig(**_SIZES, **_DELTA, **_SHARED)),
}
"""Checkpoints with prediction heads: class in transformers and configuration, by name."""
LLAMA = ("LlamaForCausalLM", transformers.LlamaConfig(**_SIZES, num_hidden_layers=8))


@dataclass
class HeadReference:
    """A draft head in float64, and the model for which it drafts.

    states: function that computes the model's states which the head reads: [tokens] -> [tokens, width].
    head: function that computes logits [tokens, vocab] and the head's own states [tokens, hidden]. Its arguments are
        the model's states, the head's own states of earlier draft tokens, and the token after each of these states.
    """

    model: nn.Module
    states: Callable[[Tensor], Tensor]
    head: Callable[[Tensor, Sequence[Tensor], Tensor], tuple[Tensor, Tensor]]

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Logits of the head at every position of a text except the last one: [tokens - 1, vocab], float64."""
        ids = torch.tensor(tokens)
        with torch.inference_mode():
            return self.head(self.states(ids)[:-1], (), ids[1:])[0]

    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        """Draft `count` tokens greedily after a text.

        Each is computed from the head's own state of the previous one.
        """
        ids = torch.tensor(tokens)
        found: list[int] = []
        again: list[Tensor] = []
        with torch.inference_mode():
            states = self.states(ids)[:-1]
            for _ in range(count):
                logits, own = self.head(states, again, torch.cat([ids[1:], torch.tensor(found, dtype=torch.int64)]))
                found.append(int(logits[-1].argmax()))
                again.append(own[-1])
        return found


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def random_tensor(generator: torch.Generator, *shape: int, around: float = 0.0) -> Tensor:
    return around + 0.2 * torch.randn(shape, generator=generator)


def predicting_checkpoint(name: str, directory: Path) -> HeadReference:
    """Write a checkpoint of `PREDICTING` with a random prediction head, and return its reference."""
    architecture, config = PREDICTING[name]
    oracle = save(directory, config, architecture).double()
    # The fast implementation of experts takes no float64.
    config._experts_implementation = oracle.config._experts_implementation = "eager"
    generator = torch.Generator().manual_seed(11)
    hidden, layers = config.hidden_size, config.num_hidden_layers
    from_one = name.startswith("qwen")
    # The head has a layer with attention. The last layer of every configuration is one.
    layer = type(oracle.model.layers[-1])(config, layers - 1).double().eval()
    parts = {
        "tokens": random_tensor(generator, hidden, around=0.0 if from_one else 1.0),
        "states": random_tensor(generator, hidden, around=0.0 if from_one else 1.0),
        "projection": random_tensor(generator, hidden, 2 * hidden),
        "output": random_tensor(generator, hidden, around=0.0 if from_one else 1.0),
    }
    for key, tensor in layer.state_dict().items():
        if tensor.is_floating_point():
            around = 1.0 if "norm" in key and not from_one else 0.0
            tensor.copy_(random_tensor(generator, *tensor.shape, around=around))
    start = "mtp." if from_one else f"model.layers.{layers}."
    names = (
        ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
        if from_one
        else ("enorm", "hnorm", "eh_proj", "final_layernorm" if name == "hy_v3" else "shared_head.norm")
    )
    file = directory / "model.safetensors"
    tensors = load_file(file)
    tensors |= {f"{start}{theirs}.weight": value for theirs, value in zip(names, parts.values(), strict=True)}
    inner = "mtp.layers.0." if from_one else start
    tensors |= {inner + key: value.float().contiguous() for key, value in layer.state_dict().items()}
    if not from_one:
        tensors[f"{start}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"{start}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, file, metadata={"format": "pt"})

    offset = 1.0 if from_one else 0.0
    weights = {key: (value if key == "projection" else value + offset).double() for key, value in parts.items()}
    eps = config.rms_norm_eps

    def states(ids: Tensor) -> Tensor:
        return oracle.model(ids[None], use_cache=False).last_hidden_state[0]

    def head(states: Tensor, again: Sequence[Tensor], tokens: Tensor) -> tuple[Tensor, Tensor]:
        states = torch.cat([states, *(row[None] for row in again)])
        vectors = oracle.get_input_embeddings()(tokens)
        both = [_rms(vectors, weights["tokens"], eps), _rms(states, weights["states"], eps)]
        x = (torch.cat(both, -1) @ weights["projection"].T)[None]
        count = len(tokens)
        positions = torch.arange(count)[None]
        mask = torch.full((count, count), -torch.inf, dtype=torch.float64).triu(1)[None, None]
        rotary = oracle.model.rotary_emb(x, positions)
        x = layer(x, position_embeddings=rotary, attention_mask=mask, position_ids=positions)
        x = (x[0] if isinstance(x, tuple) else x)[0]
        x = _rms(x, weights["output"], eps)
        return oracle.lm_head(x), x

    return HeadReference(oracle, states, head)


def eagle_config(**more: object) -> dict:
    """Contents of `config.json` of a tiny EAGLE-3 head in its authors' format. more: settings to change."""
    sizes = {key: _SIZES[key] for key in ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads")}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **sizes,
        "head_dim": 8,
        "intermediate_size": 48,
        "hidden_act": "silu",
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "draft_vocab_size": 40,
        **more,
    }


def eagle_tensors(config: dict, count: int = 3, own_tokens: bool = False) -> dict[str, Tensor]:
    """Random tensors of an EAGLE-3 head.

    count: number of layers whose inputs the head reads. own_tokens: whether the head has its own token table.
    """
    generator = torch.Generator().manual_seed(13)
    hidden, dim = config["hidden_size"], config["head_dim"]
    width, kv_width = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    inner, logits = config["intermediate_size"], config["draft_vocab_size"] or config["vocab_size"]
    shapes = {
        "fc.weight": (hidden, count * config.get("target_hidden_size", hidden)),
        "midlayer.self_attn.q_proj.weight": (width, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (kv_width, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (kv_width, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, width),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "lm_head.weight": (logits, hidden),
    }
    norms = ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm")
    tensors = {name: random_tensor(generator, *shape) for name, shape in shapes.items()}
    tensors |= {f"{name}.weight": random_tensor(generator, hidden, around=1.0) for name in norms}
    if own_tokens:
        tensors["embed_tokens.weight"] = random_tensor(generator, config["vocab_size"], hidden)
    if config["draft_vocab_size"]:
        chosen = torch.randperm(config["vocab_size"], generator=generator)[:logits].sort().values
        tensors["d2t"] = chosen - torch.arange(logits)
        tensors["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool).index_fill(0, chosen, True)
    return tensors


def write_head(directory: Path, config: dict, tensors: dict[str, Tensor]) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def eagle_reference(
    oracle: nn.Module, config: dict, stored: dict[str, Tensor], layers: Sequence[int], normed_residual: bool = False
) -> HeadReference:
    """The reference of an EAGLE-3 head.

    oracle: the model. config, stored: contents of `config.json` and tensors of the head.
    layers: indices of the model's layers whose inputs the head reads.
    """
    oracle = oracle.double()
    t = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in stored.items()}
    eps, dim = config["rms_norm_eps"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    table = t.get("embed_tokens.weight", oracle.get_input_embeddings().weight.detach())

    def states(ids: Tensor) -> Tensor:
        found = oracle.model(ids[None], use_cache=False, output_hidden_states=True).hidden_states
        return torch.cat([found[index][0] for index in layers], -1)

    def rotated(x: Tensor) -> Tensor:
        """Apply rotary position embedding. x: [heads, tokens, dim]."""
        frequencies = config["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), frequencies)
        first, second = x[..., : dim // 2], x[..., dim // 2 :]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def head(states: Tensor, again: Sequence[Tensor], tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([states @ t["fc.weight"].T, *(row[None] for row in again)])
        normed = _rms(x, t["midlayer.hidden_norm.weight"], eps)
        both = torch.cat([_rms(table[tokens], t["midlayer.input_layernorm.weight"], eps), normed], -1)
        query, key, value = (
            (both @ t[f"midlayer.self_attn.{name}_proj.weight"].T).view(len(tokens), -1, dim).transpose(0, 1)
            for name in "qkv"
        )
        query, key = rotated(query), rotated(key)
        key, value = (side.repeat_interleave(heads // kv_heads, 0) for side in (key, value))
        scores = query @ key.transpose(1, 2) / dim**0.5
        scores = scores + torch.full_like(scores[0], -torch.inf).triu(1)
        attended = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
        x = (normed if normed_residual else x) + attended @ t["midlayer.self_attn.o_proj.weight"].T
        inner = _rms(x, t["midlayer.post_attention_layernorm.weight"], eps)
        gate = nn.functional.silu(inner @ t["midlayer.mlp.gate_proj.weight"].T)
        x = x + (gate * (inner @ t["midlayer.mlp.up_proj.weight"].T)) @ t["midlayer.mlp.down_proj.weight"].T
        own = _rms(x, t["norm.weight"], eps) @ t["lm_head.weight"].T
        if "d2t" not in t:
            return own, x
        logits = own.new_full((len(tokens), config["vocab_size"]), -torch.inf)
        logits[:, torch.arange(own.shape[1]) + t["d2t"]] = own
        return logits, x

    return HeadReference(oracle, states, head)
