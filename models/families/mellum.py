"""Mellum 2 (JetBrains 2026): Qwen3-MoE in which layers with and without a window have different rotary settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, QueryKeyNorm, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import (
    GgufFamily,
    Settings,
    has_bias,
    layer_types,
    qwen_experts,
    rms_eps,
    rotary_settings,
    sliding_window,
    with_ropes_by_type,
)
from models.families.shared.mixture_of_experts import rotary_expert_rules, typed_feed_forwards
from models.families.shared.rope import rope_config, with_rope_of
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    llama_decoder,
    rms_norm,
)
from models.families.shared.windows import windows_by_type
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rule

_DEFAULTS = {
    "vocab_size": 98304,
    "hidden_size": 2304,
    "intermediate_size": 7168,
    "num_hidden_layers": 28,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 896,
    "num_experts_per_tok": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    head_dim, bias = head_dim_of(fields), fields.flag("attention_bias", False)
    full, sliding = (
        rope_config(Fields(with_rope_of(hf, kind, theta), defaults=_DEFAULTS), head_dim)
        for kind, theta in (("full_attention", 500000.0), ("sliding_attention", 10000.0))
    )
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields, fields.integer("moe_intermediate_size")),
        # transformers 5 writes the number of experts under the name that Mixtral has for it.
        num_experts=fields.integer("num_local_experts", fields.integer("num_experts", 64)),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(normalized=fields.flag("norm_topk_prob", True)),
    )
    width = fields.optional_integer("sliding_window", absent=1024)
    windows = windows_by_type(fields, width, lambda index: True)
    return llama_decoder(
        fields,
        typed_feed_forwards(fields, gated_feed_forward(fields), experts, dense_layers=0),
        windows=windows,
        ropes=[full if window is None else sliding for window in windows],
        rope=full,
        num_kv_heads=fields.integer("num_key_value_heads"),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm(rms_norm(fields)),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        # A layer that predicts a second token; generation token by token does not use it.
        Drop(r"mtp\..*"),
        *rotary_expert_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    experts = qwen_experts(of)
    dense, window = experts.pop("mlp_only_layers"), sliding_window(of)
    settings = rotary_settings(
        of,
        model_type="mellum",
        attention_bias=has_bias(of, "attn_q"),
        mlp_layer_types=["dense" if layer in dense else "sparse" for layer in range(of.layers)],
        sliding_window=window,
        layer_types=layer_types(of) if window else ["full_attention"] * of.layers,
        **experts,
        **rms_eps(of),
    )
    return with_ropes_by_type(of, settings)


FAMILY = decoder_family(
    "mellum",
    "Mellum",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"mellum": gguf_settings}),
)
