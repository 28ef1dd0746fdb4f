"""Phi 1, 1.5 and 2 (Gunasekar et al. 2023, arXiv:2306.11644; Li et al. 2023, arXiv:2309.05463).

Attention and feed-forward run in parallel after one norm. All linear layers have biases. Rotary positions apply to a
part of each head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, ModelConfig, NormConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.gguf import GgufFamily, Settings, layer_eps, partly_rotary_settings
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import llama_decoder, rotary_rules
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule

_CODE = PublishedCode("microsoft", "phi", "Phi")

_DEFAULTS = {
    "vocab_size": 51200,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, published_code=_CODE, defaults=_DEFAULTS)
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
        query_key_norm=QueryKeyNorm(norm) if fields.flag("qk_layernorm", False) else None,
        parallel=True,
        logit_bias=True,
    )


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


def gguf_settings(of: Metadata) -> Settings:
    return partly_rotary_settings(of, model_type="phi", layer_norm_eps=layer_eps(of))


FAMILY = decoder_family(
    "phi",
    "Phi",
    config,
    rules,
    answers=False,
    gguf=GgufFamily({"phi2": gguf_settings}),
)
