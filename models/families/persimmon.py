"""Persimmon (Adept 2023): pre-norm decoder with normed queries and keys, and squared ReLU in the feed-forward.

Rotary positions apply to half of each head. One tensor holds the projections of queries, keys and values, head by head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, ModelConfig, NormConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.language_model import token_rules
from models.families.shared.megatron_layers import megatron_layer_rules
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import llama_decoder
from weights.rules import Rename, Rule

_DEFAULTS = {
    "vocab_size": 262144,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "max_position_embeddings": 16384,
    "hidden_act": "relu2",
    "layer_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    # The published code has one head of keys and values per query head, whatever a file says.
    fields = Fields({**hf, "num_key_value_heads": None}, defaults=_DEFAULTS)
    fields.refuse_unless("is_causal", True)
    head_dim = head_width(fields.integer("hidden_size"), fields.integer("num_attention_heads"))
    norm = NormConfig("layer", fields.number("layer_norm_eps"))
    return llama_decoder(
        fields,
        FeedForwardConfig(fields.integer("intermediate_size"), fields.activation("hidden_act")),
        rope=rope_config(fields, head_dim, default_share=0.5),
        norm=norm,
        head_dim=head_dim,
        qkv_bias=True,
        output_bias=True,
        query_key_norm=QueryKeyNorm(norm) if fields.flag("qk_layernorm", True) else None,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        *token_rules(model, r"model\.embed_tokens"),
        *megatron_layer_rules(layer, "self_attn", model.decoder.first_attention),
        Rename(layer + r"self_attn\.q_layernorm\.(weight|bias)", ours + r"attention.query_norm.\2"),
        Rename(layer + r"self_attn\.k_layernorm\.(weight|bias)", ours + r"attention.key_norm.\2"),
        Rename(r"model\.final_layernorm\.(weight|bias)", r"decoder.final_norm.\1"),
    )


FAMILY = decoder_family(
    "persimmon",
    "Persimmon",
    config,
    rules,
    answers=False,
)
