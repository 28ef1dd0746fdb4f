"""Write quantised copies of a decoder, as `triptych quantize` does, with and without calibration.

The reference is a GGUF file of a LLaMA, which is first converted to a checkpoint directory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.quality import texts
from models.backends import choice
from models.checkpoint.loader import load_model
from models.checkpoint.quantize_checkpoint import quantize_checkpoint
from models.checkpoint.quantizing.schemes import Precision
from server.text.tokenizers.load import load_tokenizer
from weights.gguf.container import read_gguf

COPIES: Mapping[str, tuple[Precision, bool]] = {
    "copy int8": ("int8", False),
    "copy int4": ("int4", False),
    "copy int4, calibrated": ("int4", True),
    "copy int4-128": ("int4-128", False),
    "copy int4-128, calibrated": ("int4-128", True),
}
"""Copies by the contestant's name: precision, and whether texts are used for calibration."""
LLAMAS = frozenset({"smollm2-135m"})
"""Decoders of `sources.DECODERS` that are LLaMAs. Copies are made of these only."""
CALIBRATION_TOKENS = 4096
"""Number of tokens for calibration. They are not part of the texts that models are compared on."""

_NAMES = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "attention_norms.input": "input_layernorm",
    "feed_forward_norms.input": "post_attention_layernorm",
}


def written(file: Path, name: str) -> Path:
    """Directory of a quantised copy of the decoder in a GGUF file. The first call writes it. name: key of `COPIES`."""
    precision, calibrates = COPIES[name]
    out = file.with_name(f"{file.stem}-{name.replace(' ', '-').replace(',', '')}")
    if not out.exists():
        chosen = texts.calibration(load_tokenizer(file), CALIBRATION_TOKENS) if calibrates else ()
        quantize_checkpoint(checkpoint(file), out, precision, texts=chosen)
    return out


def checkpoint(file: Path) -> Path:
    """Directory of a checkpoint with the weights of the LLaMA in a GGUF file. The first call writes it."""
    out = file.with_suffix("")
    if out.exists():
        return out
    metadata = read_gguf(file)
    heads, kv_heads = metadata.get("llama.attention.head_count"), metadata.get("llama.attention.head_count_kv")
    with choice.using("torch"):
        loaded = load_model(file, torch.float32, torch.device("cpu"))
    decoder = loaded.config.decoder
    assert decoder is not None and heads is not None, "the file has no LLaMA"
    (rope,) = decoder.ropes
    tensors = {}
    for name, weights in loaded.transformer.named_parameters():
        stored = _stored_name(name)
        if rope.pairing == "interleaved" and stored.endswith(("q_proj.weight", "k_proj.weight")):
            weights = _in_halves(weights, heads if "q_proj" in stored else kv_heads)
        tensors[stored] = weights.contiguous()
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": loaded.config.vocab_size,
        "hidden_size": loaded.config.hidden_size,
        "intermediate_size": metadata.get("llama.feed_forward_length"),
        "num_hidden_layers": len(decoder.layers),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": metadata.get("llama.context_length"),
        "rms_norm_eps": metadata.get("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.get("llama.rope.freq_base"),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
    }
    partial = out.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    save_file(tensors, partial / "model.safetensors", {"format": "pt"})
    (partial / "config.json").write_text(json.dumps(config))
    partial.rename(out)
    return out


def _stored_name(name: str) -> str:
    """Convert the name of one of our parameters to its name in a LLaMA checkpoint."""
    whole = {"decoder.embedding.tokens.weight": "model.embed_tokens.weight"}
    whole |= {"decoder.final_norm.weight": "model.norm.weight", "head.weight": "lm_head.weight"}
    if name in whole:
        return whole[name]
    _, _, layer, module, part, ending = name.split(".")
    return f"model.layers.{layer}.{_NAMES[f'{module}.{part}']}.{ending}"


def _in_halves(weights: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head of a query or key projection for a LLaMA checkpoint.

    In a GGUF file, rotary positions rotate pairs of neighbouring rows; here, the rows `i` and `i + head_dim / 2`.
    """
    rows, width = weights.shape
    return weights.view(heads, -1, 2, width).transpose(1, 2).reshape(rows, width)
