"""OLMo (Groeneveld et al. 2024, arXiv:2402.00838): LLaMA with layer norms that have no weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig, NormConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, paired_neighbours, rotary_settings
from models.families.shared.rotary_decoder import gated_feed_forward, llama_decoder, rotary_rules
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    bias = fields.flag("attention_bias", False)
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        norm=NormConfig("layer_unscaled", 1e-5),
        qkv_bias=bias,
        output_bias=bias,
        clip=fields.optional_positive("clip_qkv"),
    )


def gguf_settings(of: Metadata) -> Settings:
    clip = of.optional("attention.clamp_kqv")
    return rotary_settings(
        of,
        model_type="olmo",
        attention_bias=has_bias(of, "attn_q"),
        clip_qkv=None if clip is None else of.number("attention.clamp_kqv"),
    )


FAMILY = decoder_family(
    "olmo",
    "Olmo",
    config,
    rotary_rules,
    tokens=False,
    answers=False,
    pad_token_id=1,
    gguf=GgufFamily({"olmo": gguf_settings}, rules=paired_neighbours),
)
