"""Write checkpoints of models that transformers has no class for, each with a reference (oracle) to compare with.

Their code is published beside their weights. EXAONE and NVIDIA's embedding models are LLaMA under other names, so LLaMA
of transformers is their oracle. The oracle of Nomic Embed v2 and Jina Embeddings 2 is a plain computation that follows
the published code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from models.families.shared.alibi import bloom_slopes
from tests.parity.cases import WIDE_WITH_TOKENS
from tests.parity.checkpoints import edit_config, save

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LLAMAS = {
    "grouped": {"num_key_value_heads": 2, "rope_parameters": _LLAMA3, "tie_word_embeddings": False},
    "tied": {"head_dim": 12, "tie_word_embeddings": True},
}
_EXAONE_TENSORS = {
    r"^model\.embed_tokens": "transformer.wte",
    r"^model\.layers\.": "transformer.h.",
    r"^model\.norm": "transformer.ln_f",
    r"input_layernorm": "ln_1",
    r"post_attention_layernorm": "ln_2",
    r"self_attn\.o_proj": "attn.attention.out_proj",
    r"self_attn\.": "attn.attention.",
    r"mlp\.gate_proj": "mlp.c_fc_0",
    r"mlp\.up_proj": "mlp.c_fc_1",
    r"mlp\.down_proj": "mlp.c_proj",
}
_EXAONE_SETTINGS = {
    "num_hidden_layers": "num_layers",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}
Encoder = Callable[[Tensor], Tensor]
"""A function from the token ids of one text to its last hidden states, [tokens, hidden]."""


def _rewrite(directory: Path, tensors: Callable[[dict[str, Tensor]], dict[str, Tensor]], **settings: Any) -> None:
    path = directory / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors(load_file(path)).items()}, path)
    edit_config(directory, **settings)


def write_exaone(directory: Path, shape: str) -> Any:
    """Write an EXAONE checkpoint, and return the LLaMA of transformers with the same weights."""
    oracle = save(directory, transformers.LlamaConfig(**WIDE_WITH_TOKENS, **LLAMAS[shape]), "LlamaForCausalLM")
    hf = json.loads((directory / "config.json").read_text())

    def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        for old, new in _EXAONE_TENSORS.items():
            tensors = {re.sub(old, new, name): tensor for name, tensor in tensors.items()}
        return tensors

    settings = dict.fromkeys(_EXAONE_SETTINGS) | {new: hf[old] for old, new in _EXAONE_SETTINGS.items()}
    code = {"AutoConfig": "configuration_exaone.ExaoneConfig", "AutoModel": "modeling_exaone.ExaoneForCausalLM"}
    named = {"model_type": "exaone", "architectures": ["ExaoneForCausalLM"], "auto_map": code}
    _rewrite(directory, renamed, **settings, **named)
    return oracle


def write_llama_bidirec(directory: Path, shape: str, labels: int = 0, pooling: str = "avg") -> Any:
    """Write an embedding model of NVIDIA, and return the LLaMA of transformers with the same weights.

    labels: number of classes. 0: no classification head.
    """
    kind = "LlamaForSequenceClassification" if labels else "LlamaModel"
    more = {"num_labels": labels} if labels else {}
    settings = {**WIDE_WITH_TOKENS, **LLAMAS[shape], **more, "is_causal": False}
    oracle = save(directory, transformers.LlamaConfig(**settings), kind)
    architecture = f"LlamaBidirectional{'ForSequenceClassification' if labels else 'Model'}"
    module = "llama_bidirectional_model.LlamaBidirectional"
    code = {"AutoConfig": f"{module}Config", "AutoModel": f"{module}Model"}
    named = {"model_type": "llama_bidirec", "architectures": [architecture], "auto_map": code}
    edit_config(directory, **named, pooling=pooling, temperature=1.0, is_causal=None)
    return oracle


def write_pplx(directory: Path, shape: str) -> Any:
    """Write an embedding model of Perplexity, and return the Qwen3 of transformers with the same weights."""
    settings = {**WIDE_WITH_TOKENS, "head_dim": 8, "num_key_value_heads": 2, **LLAMAS[shape], "is_causal": False}
    oracle = save(directory, transformers.Qwen3Config(**settings), "Qwen3Model")
    code = {"AutoConfig": "configuration.PPLXQwen3Config", "AutoModel": "modeling.PPLXQwen3Model"}
    named = {"model_type": "bidirectional_pplx_qwen3", "architectures": ["PPLXQwen3Model"], "auto_map": code}
    edit_config(directory, **named, use_bidirectional_attention=True, is_causal=None)
    return oracle


def write_voyage(directory: Path, shape: str) -> Any:
    """Write an embedding model of Voyage, and return the Qwen3 of transformers with the same weights.

    The final projection of the embedding is its attribute `linear`.
    """
    settings = {**WIDE_WITH_TOKENS, "head_dim": 8, "num_key_value_heads": 2, **LLAMAS[shape], "is_causal": False}
    oracle = save(directory, transformers.Qwen3Config(**settings), "Qwen3Model")
    oracle.linear = torch.nn.Linear(settings["hidden_size"], 40, bias=False)

    def named(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        body = {f"model.{name}": tensor for name, tensor in tensors.items()}
        return {**body, "linear.weight": oracle.linear.weight.detach()}

    code = {"AutoModel": "modeling_voyage.VoyageQwen3BidirectionalEmbedModel"} if shape == "tied" else None
    more = {"architectures": ["VoyageQwen3BidirectionalEmbedModel"], "auto_map": code, "num_labels": 40}
    _rewrite(directory, named, **more, is_causal=None)
    return oracle


def write_jina5(directory: Path, shape: str) -> Any:
    """Write Jina Embeddings 5, and return the model of transformers, without a head, that has the same weights.

    shape: `grouped` for Qwen3 (published as `-small`), `tied` for EuroBERT (`-nano`), whose settings name its own code.
    """
    settings = {**WIDE_WITH_TOKENS, "head_dim": 8, "num_key_value_heads": 2, **LLAMAS[shape]}
    stem = "Qwen3" if shape == "grouped" else "EuroBert"
    tokens = {"mask_token_id": 0} if stem == "EuroBert" else {}
    oracle = save(directory, getattr(transformers, f"{stem}Config")(**settings, **tokens), f"{stem}Model")
    code = "jina_embeddings_v5.JinaEmbeddingsV5"
    auto_map = {"AutoConfig": f"configuration_{code}Config", "AutoModel": f"modeling_{code}Model"}
    named = {"model_type": "jina_embeddings_v5", "architectures": ["JinaEmbeddingsV5Model"], "auto_map": auto_map}
    more = {"is_decoder": False} if stem == "EuroBert" else {}
    edit_config(directory, **named, **more, is_causal=None, task_names=["retrieval", "text-matching"])
    return oracle


def _write(directory: Path, hf: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Write a random checkpoint with these settings, and tensors of these names and shapes. Returns the tensors."""
    torch.manual_seed(5)
    tensors = {name: 0.2 * torch.randn(shape) + float(name.endswith("norm.weight")) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(hf))
    return tensors


def _linear_shapes(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _attend(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | float) -> Tensor:
    """Self-attention of one text. queries, keys, values: [heads, tokens, head_dim]. Returns [tokens, hidden]."""
    scores = queries @ keys.transpose(1, 2) * queries.shape[-1] ** -0.5 + bias
    return (scores.softmax(-1) @ values).transpose(0, 1).flatten(1)


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(1, (heads, -1)).transpose(0, 1)


NOMIC: Mapping[str, Any] = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    "activation_function": "gelu",
    "layer_norm_epsilon": 1e-5,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "moe_every_n_layers": 2,
    "moe_normalize_expert_weights": False,
    "moe_top_k": 2,
    "n_embd": 32,
    "n_head": 4,
    "n_inner": 40,
    "n_layer": 3,
    "n_positions": 64,
    "num_experts": 4,
    "num_shared_experts": 0,
    "expert_choice_router": False,
    "qkv_proj_bias": True,
    "rotary_emb_base": 10000,
    "type_vocab_size": 1,
    "vocab_size": 97,
}


def write_nomic(directory: Path, **settings: Any) -> Encoder:
    """Write a Nomic Embed v2 checkpoint, and return its oracle."""
    hf = {**NOMIC, **settings}
    hidden, inner, heads, experts = hf["n_embd"], hf["n_inner"], hf["n_head"], hf["num_experts"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (hf["vocab_size"], hidden),
        "embeddings.token_type_embeddings.weight": (1, hidden),
    }
    norms = ["emb_ln"]
    for layer in range(hf["n_layer"]):
        name = f"encoder.layers.{layer}."
        norms += [f"{name}norm1", f"{name}norm2"]
        shapes |= _linear_shapes(f"{name}attn.Wqkv", 3 * hidden, hidden)
        shapes |= _linear_shapes(f"{name}attn.out_proj", hidden, hidden)
        if layer % hf["moe_every_n_layers"] == 1:
            shapes |= {f"{name}mlp.router.layer.weight": (experts, hidden), f"{name}mlp.experts.bias": (hidden,)}
            shapes |= {f"{name}mlp.experts.mlp.{matrix}": (experts * inner, hidden) for matrix in ("w1", "w2")}
        else:
            shapes |= _linear_shapes(f"{name}mlp.fc1", inner, hidden) | _linear_shapes(f"{name}mlp.fc2", hidden, inner)
    shapes |= {f"{norm_name}.{kind}": (hidden,) for norm_name in norms for kind in ("weight", "bias")}
    of = _write(directory, hf, shapes)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, of[f"{name}.weight"], of[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (hidden,), of[f"{name}.weight"], of[f"{name}.bias"], hf["layer_norm_epsilon"])

    def rotated(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        angles = torch.outer(torch.arange(x.shape[1]), hf["rotary_emb_base"] ** (-torch.arange(half) / half))
        first, second = x.split(half, -1)
        sines, cosines = angles.sin(), angles.cos()
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)

    def mixed(x: Tensor, name: str) -> Tensor:
        shares, chosen = F.linear(x, of[f"{name}router.layer.weight"]).softmax(-1).topk(hf["moe_top_k"])
        if hf["moe_normalize_expert_weights"]:
            shares = shares / shares.sum(-1, keepdim=True)
        up, down = (of[f"{name}experts.mlp.{matrix}"].unflatten(0, (experts, inner)) for matrix in ("w1", "w2"))
        each = F.gelu(torch.einsum("th,eih->tei", x, up))
        results = torch.einsum("tei,eih->teh", each, down)
        return (results.gather(1, chosen[..., None].expand(-1, -1, hidden)) * shares[..., None]).sum(1) + of[
            f"{name}experts.bias"
        ]

    def encode(ids: Tensor) -> Tensor:
        tokens = of["embeddings.word_embeddings.weight"][ids] + of["embeddings.token_type_embeddings.weight"][0]
        x = norm(tokens, "emb_ln")
        for layer in range(hf["n_layer"]):
            name = f"encoder.layers.{layer}."
            queries, keys, values = (_heads(part, heads) for part in linear(x, f"{name}attn.Wqkv").chunk(3, -1))
            attended = _attend(rotated(queries), rotated(keys), values, 0.0)
            x = norm(x + linear(attended, f"{name}attn.out_proj"), f"{name}norm1")
            if layer % hf["moe_every_n_layers"] == 1:
                inner_result = mixed(x, f"{name}mlp.")
            else:
                inner_result = linear(F.gelu(linear(x, f"{name}mlp.fc1")), f"{name}mlp.fc2")
            x = norm(x + inner_result, f"{name}norm2")
        return x

    return encode


JINA: Mapping[str, Any] = {
    "model_type": "bert",
    "architectures": ["JinaBertModel"],
    "auto_map": {
        "AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig",
        "AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
        "AutoModelForMaskedLM": "jinaai/jina-bert-implementation--modeling_bert.JinaBertForMaskedLM",
    },
    "feed_forward_type": "geglu",
    "hidden_act": "gelu",
    "hidden_size": 32,
    "intermediate_size": 40,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "position_embedding_type": "alibi",
    "type_vocab_size": 2,
    "vocab_size": 97,
}


def write_jina(directory: Path, **settings: Any) -> Encoder:
    """Write a Jina Embeddings 2 checkpoint, and return its oracle, which uses token type 0 for all tokens."""
    hf = {**JINA, **settings}
    hidden, inner, heads = hf["hidden_size"], hf["intermediate_size"], hf["num_attention_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (hf["vocab_size"], hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
    }
    shapes |= _linear_shapes("pooler.dense", hidden, hidden)
    norms = ["embeddings.LayerNorm"]
    for layer in range(hf["num_hidden_layers"]):
        name = f"encoder.layer.{layer}."
        norms += [f"{name}attention.output.LayerNorm", f"{name}mlp.layernorm"]
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= _linear_shapes(f"{name}attention.{part}", hidden, hidden)
        shapes |= {f"{name}mlp.gated_layers.weight": (2 * inner, hidden)}
        shapes |= _linear_shapes(f"{name}mlp.wo", hidden, inner)
    shapes |= {f"{norm_name}.{kind}": (hidden,) for norm_name in norms for kind in ("weight", "bias")}
    of = _write(directory, hf, shapes)
    activation = {"geglu": F.gelu, "reglu": F.relu}[hf["feed_forward_type"]]

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, of[f"{name}.weight"], of[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (hidden,), of[f"{name}.weight"], of[f"{name}.bias"], hf["layer_norm_eps"])

    def encode(ids: Tensor) -> Tensor:
        tokens = of["embeddings.word_embeddings.weight"][ids] + of["embeddings.token_type_embeddings.weight"][0]
        x, positions = norm(tokens, "embeddings.LayerNorm"), torch.arange(len(ids))
        slopes = torch.tensor(bloom_slopes(heads))
        bias = -slopes[:, None, None] * (positions[:, None] - positions).abs()
        for layer in range(hf["num_hidden_layers"]):
            name = f"encoder.layer.{layer}."
            parts = (linear(x, f"{name}attention.self.{part}") for part in ("query", "key", "value"))
            attended = _attend(*(_heads(part, heads) for part in parts), bias)
            result = linear(attended, f"{name}attention.output.dense")
            x = norm(x + result, f"{name}attention.output.LayerNorm")
            gate, up = F.linear(x, of[f"{name}mlp.gated_layers.weight"]).chunk(2, -1)
            x = norm(x + linear(activation(gate) * up, f"{name}mlp.wo"), f"{name}mlp.layernorm")
        return x

    return encode
