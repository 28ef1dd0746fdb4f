"""Convert GPT-2 and BART to native checkpoints, so that `generate` of transformers is a reference for these.

As a native model, GPT-2 is a pre-norm stack with a causal mask, and BART a post-norm `nn.Transformer` without final
norms.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_GPT2 = {
    r"transformer\.wte\.": "token_embedding.",
    r"transformer\.wpe\.": "position_embedding.",
    r"transformer\.h\.(\d+)\.ln_1\.": r"encoder.layers.\1.norm1.",
    r"transformer\.h\.(\d+)\.ln_2\.": r"encoder.layers.\1.norm2.",
    r"transformer\.h\.(\d+)\.attn\.c_attn\.": r"encoder.layers.\1.self_attn.in_proj_",
    r"transformer\.h\.(\d+)\.attn\.c_proj\.": r"encoder.layers.\1.self_attn.out_proj.",
    r"transformer\.h\.(\d+)\.mlp\.c_fc\.": r"encoder.layers.\1.linear1.",
    r"transformer\.h\.(\d+)\.mlp\.c_proj\.": r"encoder.layers.\1.linear2.",
    r"transformer\.ln_f\.": "encoder.norm.",
}
_BART = {
    r"model\.shared\.": "token_embedding.",
    r"model\.(encoder|decoder)\.layernorm_embedding\.": r"\1_embedding_norm.",
    r"model\.(encoder|decoder)\.embed_positions\.": r"\1_position_embedding.",
    r"model\.((?:en|de)coder\.layers\.\d+)\.self_attn\.out_proj\.": r"\1.self_attn.out_proj.",
    r"model\.((?:en|de)coder\.layers\.\d+)\.encoder_attn\.out_proj\.": r"\1.multihead_attn.out_proj.",
    r"model\.((?:en|de)coder\.layers\.\d+)\.self_attn_layer_norm\.": r"\1.norm1.",
    r"model\.((?:en|de)coder\.layers\.\d+)\.encoder_attn_layer_norm\.": r"\1.norm2.",
    r"model\.(encoder\.layers\.\d+)\.final_layer_norm\.": r"\1.norm2.",
    r"model\.(decoder\.layers\.\d+)\.final_layer_norm\.": r"\1.norm3.",
    r"model\.((?:en|de)coder\.layers\.\d+)\.fc1\.": r"\1.linear1.",
    r"model\.((?:en|de)coder\.layers\.\d+)\.fc2\.": r"\1.linear2.",
}
_PARTS = re.compile(r"model\.((?:en|de)coder\.layers\.\d+)\.(self|encoder)_attn\.([qkv])_proj\.(weight|bias)")


def _renamed(name: str, table: dict[str, str]) -> str:
    for pattern, new in table.items():
        if re.match(pattern, name):
            return re.sub(f"^{pattern}", new, name)
    raise KeyError(name)


def rewrite_as_native(directory: Path) -> None:
    """Convert a saved GPT-2 or BART to a native checkpoint, in place."""
    config = json.loads((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    write = {"gpt2": _write_gpt2, "bart": _write_bart}[config["model_type"]]
    settings, renamed = write(config, tensors)
    roles = ("bos_token_id", "eos_token_id", "pad_token_id")
    settings |= {name: config[name] for name in roles if config.get(name) is not None}
    settings |= {"model_type": "triptych", "vocab_size": config["vocab_size"], "tie_word_embeddings": True}
    (directory / "config.json").write_text(json.dumps(settings))
    save_file({name: tensor.contiguous() for name, tensor in renamed.items()}, directory / "model.safetensors")


def _write_gpt2(config: dict, tensors: dict) -> tuple[dict, dict]:
    renamed = {}
    for name, tensor in tensors.items():
        if name == "lm_head.weight":
            continue
        matrix = re.search(r"\.(c_attn|c_proj|c_fc)\.weight$", name)
        renamed[_renamed(name, _GPT2)] = tensor.T if matrix else tensor
    settings = {
        "architectures": ["TriptychForCausalLM"],
        "hidden_size": config["n_embd"],
        "num_heads": config["n_head"],
        "num_layers": config["n_layer"],
        "intermediate_size": 4 * config["n_embd"],
        "activation": "gelu_new",
        "norm": "pre",
        "final_norm": True,
        "positions": "learned",
        "max_positions": config["n_positions"],
        "scale_embeddings": False,
        "output_bias": False,
    }
    return settings, renamed


def _write_bart(config: dict, tensors: dict) -> tuple[dict, dict]:
    renamed, parts = {}, {}
    for name, tensor in tensors.items():
        part = _PARTS.fullmatch(name)
        if part:
            stack = f"{part[1]}.{'self_attn' if part[2] == 'self' else 'multihead_attn'}.in_proj_{part[4]}"
            parts.setdefault(stack, {})[part[3]] = tensor
        elif name == "final_logits_bias":
            renamed["output.bias"] = tensor.flatten()
        elif not name.endswith(("embed_tokens.weight", "lm_head.weight")):
            new = _renamed(name, _BART)
            new = re.sub("^encoder_", "source_", re.sub("^decoder_", "target_", new))
            renamed[new] = tensor[2:] if "position_embedding" in new else tensor
    renamed |= {name: torch.cat([found[part] for part in "qkv"]) for name, found in parts.items()}
    renamed.setdefault("output.bias", torch.zeros(config["vocab_size"]))
    settings = {
        "architectures": ["TriptychForConditionalGeneration"],
        "hidden_size": config["d_model"],
        "num_heads": config["encoder_attention_heads"],
        "num_encoder_layers": config["encoder_layers"],
        "num_decoder_layers": config["decoder_layers"],
        "intermediate_size": config["encoder_ffn_dim"],
        "activation": "gelu",
        "norm": "post",
        "final_norm": False,
        "positions": "learned",
        "max_positions": config["max_position_embeddings"],
        "scale_embeddings": config["scale_embedding"],
        "embedding_norm": True,
        "shared_embeddings": True,
        "decoder_start_token_id": config["decoder_start_token_id"],
    }
    return settings, renamed
