"""Command R (Cohere 2024): attention and feed-forward run in parallel after one layer norm, which has no bias.

Logits are scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig, NormConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, layer_eps, rotary_settings
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, llama_decoder, rotary_rules
from weights.gguf.metadata import Metadata
from weights.rules import Rule

_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "logit_scale": 0.0625,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    bias, norm = fields.flag("attention_bias", False), NormConfig("layer", fields.number("layer_norm_eps"), bias=False)
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        rope=rope_config(fields, head_dim_of(fields), pairing="interleaved"),
        norm=norm,
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm(norm, "own_head") if fields.flag("use_qk_norm", False) else None,
        parallel=True,
        default_tied=True,
        logit_scale=fields.positive("logit_scale"),
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
    """Rule for the norms of queries or keys. Each head has separate weights: [heads, head_dim].

    theirs, ours: name of the norm in the checkpoint and in the model. heads: number of query or key heads.
    """
    names = tuple(rf"decoder.layers.\1.attention.{ours}.heads.{head}.weight" for head in range(heads))
    return Rule(rf"model\.layers\.(\d+)\.self_attn\.{theirs}\.weight", names, (_rows,))


def _rows(tensors: Sequence[Any]) -> Sequence[Any]:
    return tensors[0].unbind(0)  # type: ignore[no-any-return]


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(
        of,
        model_type="cohere",
        attention_bias=has_bias(of, "attn_q"),
        layer_norm_eps=layer_eps(of),
        use_qk_norm=bool(of.layers_with("attn_q_norm.weight")),
        logit_scale=of.number("logit_scale"),
    )


FAMILY = decoder_family(
    "cohere",
    "Cohere",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"command-r": gguf_settings}),
)
