"""Command R (Cohere 2024): parallel attention and feed-forward after one layer norm without bias, and scaled logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig, NormConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rotary_decoder,
    rotary_layer,
    rotary_rules,
)
from weights.rules import Rule

_DEFAULTS = {"vocab_size": 256000, "hidden_size": 8192, "num_attention_heads": 64}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    head_dim, bias = head_dim_of(fields), fields.flag("attention_bias", False)
    norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-5), bias=False)
    rope = rope_config(fields, head_dim, pairing="interleaved")
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads")),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(fields, fields.integer("intermediate_size", 22528)),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm(norm, "own_head") if fields.flag("use_qk_norm", False) else None,
        parallel=True,
    )
    return rotary_decoder(
        fields,
        (layer,) * fields.integer("num_hidden_layers", 40),
        norm,
        scaled_max_positions(rope, fields.integer("max_position_embeddings", 8192)),
        default_tied=True,
        logit_scale=fields.positive("logit_scale", 0.0625),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    fields = Fields(hf, defaults=_DEFAULTS)
    heads = fields.integer("num_attention_heads")
    return (
        _head_norms("q_norm", "query_norm", heads),
        _head_norms("k_norm", "key_norm", fields.integer("num_key_value_heads", heads)),
        *rotary_rules(model, hf, architecture),
    )


def _head_norms(theirs: str, ours: str, heads: int) -> Rule:
    """Rule for the norms of queries or keys: a row of weights for each head."""
    names = tuple(rf"decoder.layers.\1.attention.{ours}.heads.{head}.weight" for head in range(heads))
    return Rule(rf"model\.layers\.(\d+)\.self_attn\.{theirs}\.weight", names, (_rows,))


def _rows(tensors: Sequence[Any]) -> Sequence[Any]:
    return tensors[0].unbind(0)  # type: ignore[no-any-return]


FAMILY = decoder_family(
    "cohere",
    "Cohere",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
)
