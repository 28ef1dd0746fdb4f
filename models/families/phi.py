"""Phi 1, 1.5 and 2 (Gunasekar et al. 2023, arXiv:2306.11644; Li et al. 2023, arXiv:2309.05463).

Parallel attention and feed-forward after one norm, biases everywhere, and heads that rotate in part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, ModelConfig, NormConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import rotary_decoder, rotary_layer, rotary_rules
from weights.rules import Rename, Rule

_CODE = PublishedCode("microsoft", "phi", "Phi")


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    defaults = {"vocab_size": 51200, "hidden_size": 2048, "num_attention_heads": 32}
    fields = Fields(hf, published_code=_CODE, defaults=defaults)
    fields.refuse_unless("is_causal", True)
    heads = fields.integer("num_attention_heads")
    head_dim = head_width(fields.integer("hidden_size"), heads)
    norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-5))
    rope = rope_config(fields, head_dim, default_share=0.5)
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        rope=rope,
        norm=norm,
        feed_forward=FeedForwardConfig(
            fields.integer("intermediate_size", 8192), fields.activation("hidden_act", "gelu_new")
        ),
        qkv_bias=True,
        output_bias=True,
        query_key_norm=QueryKeyNorm(norm) if fields.flag("qk_layernorm", False) else None,
        parallel=True,
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 24)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 2048))
    return rotary_decoder(fields, layers, norm, max_positions, logit_bias=True)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(layer + r"self_attn\.dense\.(weight|bias)", ours + r"attention.output.\2"),
        Rename(layer + r"self_attn\.q_layernorm\.(weight|bias)", ours + r"attention.query_norm.\2"),
        Rename(layer + r"self_attn\.k_layernorm\.(weight|bias)", ours + r"attention.key_norm.\2"),
        Rename(layer + r"mlp\.fc1\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.fc2\.(weight|bias)", ours + r"feed_forward.down.\2"),
        Rename(r"model\.final_layernorm\.(weight|bias)", r"decoder.final_norm.\1"),
        *rotary_rules(model, hf, architecture),
    )


FAMILY = decoder_family(
    "phi",
    "Phi",
    config,
    rules,
    answers=False,
)
