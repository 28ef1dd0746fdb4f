"""OLMo 2 (OLMo et al. 2025, arXiv:2501.00656): LLaMA with norms of sublayer outputs instead of inputs.

Queries and keys are normed as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, rms_eps, rotary_settings, sliding_window
from models.families.shared.rotary_decoder import gated_feed_forward, llama_decoder, rms_norm, rotary_rules
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    norm, bias = rms_norm(fields), fields.flag("attention_bias", False)
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        norm=norm,
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm(norm, "all"),
        norm_slots=("output",),
    )


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(of, model_type="olmo2", attention_bias=has_bias(of, "attn_q"), **rms_eps(of))


FAMILY = decoder_family(
    "olmo2",
    "Olmo2",
    config,
    rotary_rules,
    answers=False,
    tokens=False,
    pad_token_id=1,
    gguf=GgufFamily({"olmo2": gguf_settings}, lambda of: sliding_window(of) is None),
)
