"""Phi-3 and Phi-4 (Abdin et al. 2024, arXiv:2404.14219): LLaMA with fused projections and optional windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ConfigError, ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import (
    GgufFamily,
    Settings,
    fused_gate_rules,
    partly_rotary_settings,
    rms_eps,
    sliding_window,
)
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, llama_decoder, rotary_rules
from weights.gguf.metadata import Metadata
from weights.gguf.rope import longrope
from weights.rules import Rule, Split

_CODE = PublishedCode("microsoft", "phi3", "Phi3")

_DEFAULTS = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    # The default of `original_max_position_embeddings` takes precedence over the same setting inside `rope_scaling`.
    fields = Fields(hf, published_code=_CODE, defaults=_DEFAULTS)
    older = hf.get("rope_scaling") or hf.get("rope_parameters")
    if isinstance(older, dict) and older.get("type", older.get("rope_type")) in ("yarn", "dynamic"):
        raise ConfigError("'rope_scaling': types 'yarn' and 'dynamic' are not supported for Phi-3, only 'longrope'")
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        # The published code discards the cache once a text outgrows the length of the short factors.
        rope=rope_config(fields, head_dim_of(fields), default_share=1.0, restarts=True),
        window=fields.optional_integer("sliding_window"),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    attention, ours = model.decoder.first_attention, r"decoder.layers.\1."
    width, kv_width = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    return (
        Split(
            r"model\.layers\.(\d+)\.self_attn\.qkv_proj\.weight",
            [f"{ours}attention.{name}.weight" for name in ("query", "key", "value")],
            sizes=(width, kv_width, kv_width),
        ),
        Split(
            r"model\.layers\.(\d+)\.mlp\.gate_up_proj\.weight",
            [f"{ours}feed_forward.{name}.weight" for name in ("gate", "up")],
        ),
        *rotary_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    settings = partly_rotary_settings(of, model_type="phi3", sliding_window=sliding_window(of), **rms_eps(of))
    original = of.integer("rope.scaling.original_context_length", of.integer("context_length"))
    scaling = longrope(of, original)
    settings["original_max_position_embeddings"] = original
    return {**settings, **({"rope_scaling": scaling} if scaling else {})}


FAMILY = decoder_family(
    "phi3",
    "Phi3",
    config,
    rules,
    answers=False,
    pad_token_id=32000,
    gguf=GgufFamily({"phi3": gguf_settings}, rules=fused_gate_rules),
)
