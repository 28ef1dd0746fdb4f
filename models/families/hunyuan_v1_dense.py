"""Hunyuan dense models (Tencent 2025): LLaMA that norms queries and keys after the rotary positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, rms_eps, rotary_settings
from models.families.shared.hunyuan import HEAD_NORM_RULES, with_stretched_base
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    llama_decoder,
    rms_norm,
    rotary_rules,
)
from weights.gguf.metadata import Metadata
from weights.rules import Rule

_DEFAULTS = {
    "vocab_size": 290943,
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
    head_dim, norm, bias = head_dim_of(fields), rms_norm(fields), fields.flag("attention_bias", False)
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        rope=rope_config(with_stretched_base(fields, hf, head_dim), head_dim),
        norm=norm,
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm(norm, after_rotation=True),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (*HEAD_NORM_RULES, *rotary_rules(model, hf, architecture))


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    The rotary base in the file already includes the scaling by `alpha`.
    """
    bias = has_bias(of, "attn_q")
    return rotary_settings(of, model_type="hunyuan_v1_dense", attention_bias=bias, **rms_eps(of))


FAMILY = decoder_family(
    "hunyuan_v1_dense",
    "HunYuanDenseV1",
    config,
    rules,
    tokens=False,
    answers=False,
    pad_token_id=0,
    gguf=GgufFamily({"hunyuan-dense": gguf_settings}),
)
