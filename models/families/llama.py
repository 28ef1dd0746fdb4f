"""LLaMA 1 to 3 (Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783).

A decoder with RMS pre-norm, rotary positions and a gated feed-forward; also used with bidirectional attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import (
    GgufFamily,
    Settings,
    has_bias,
    num_experts,
    paired_neighbours,
    rms_eps,
    rotary_settings,
    sliding_window,
)
from models.families.shared.rotary_decoder import gated_feed_forward, llama_decoder, rotary_rules
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}
_ENCODER = "llama-embed"
"""Architecture name in GGUF files of LLaMA models with bidirectional attention."""


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    bias = fields.flag("attention_bias", False)
    feed_forward = gated_feed_forward(fields, bias=fields.flag("mlp_bias", False))
    return llama_decoder(fields, feed_forward, qkv_bias=bias, output_bias=bias)


def gguf_settings(of: Metadata) -> Settings:
    for key in ("expert_count", "attention.sliding_window"):  # only a file of `llama-embed` gets here with one
        if of.integer(key, 0):
            raise of.error(key, "is not supported in this architecture")
    biases = {"attention_bias": has_bias(of, "attn_q"), "mlp_bias": has_bias(of, "ffn_up")}
    return rotary_settings(of, model_type="llama", **biases, **rms_eps(of))


def _is_llama(of: Metadata) -> bool:
    """Whether a GGUF file of architecture `llama` is a LLaMA: a Mixtral has experts, and a Mistral has a window.

    True for every file of the encoder architecture.
    """
    return of.architecture == _ENCODER or (not num_experts(of) and sliding_window(of) is None)


FAMILY = decoder_family(
    "llama",
    "Llama",
    config,
    rotary_rules,
    gguf=GgufFamily(dict.fromkeys(("llama", _ENCODER), gguf_settings), _is_llama, paired_neighbours),
)
