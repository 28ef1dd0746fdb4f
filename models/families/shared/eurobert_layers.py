"""Configuration of EuroBERT's encoder: LLaMA with bidirectional attention (Boizard et al. 2025, arXiv:2503.05500)."""

from __future__ import annotations

from models.config import ModelConfig
from models.families.shared.fields import Fields
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    llama_decoder,
)

DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def eurobert_encoder(fields: Fields) -> ModelConfig:
    """Configuration of the encoder with a masked language model head.

    fields: settings in which `is_causal` is false, with `DEFAULTS` as defaults.
    """
    bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    return llama_decoder(
        fields,
        gated_feed_forward(fields, bias=mlp_bias),
        logit_bias=mlp_bias,
        qkv_bias=bias,
        output_bias=bias,
    )
