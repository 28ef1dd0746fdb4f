"""Nemotron and Minitron (Parmar et al. 2024, arXiv:2402.16819): LLaMA with layer norms.

The feed-forward has a squared ReLU and no gate. Rotary positions apply to half of each head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, ModelConfig, NormConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, layer_eps, partly_rotary_settings
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import head_dim_of, llama_decoder, rotary_rules
from weights.gguf.metadata import Metadata
from weights.rules import Rule

_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 32,
    "num_attention_heads": 48,
    "max_position_embeddings": 4096,
    "hidden_act": "relu2",
    "norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    bias, width = fields.flag("attention_bias", False), fields.integer("intermediate_size")
    return llama_decoder(
        fields,
        FeedForwardConfig(width, fields.activation("hidden_act"), bias=fields.flag("mlp_bias", False)),
        rope=rope_config(fields, head_dim_of(fields), default_share=0.5),
        norm=NormConfig("layer", fields.number("norm_eps")),
        qkv_bias=bias,
        output_bias=bias,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        _from_one(layer + r"input_layernorm\.weight", ours + "attention_norms.input.weight"),
        _from_one(layer + r"post_attention_layernorm\.weight", ours + "feed_forward_norms.input.weight"),
        _from_one(r"model\.norm\.weight", "decoder.final_norm.weight"),
        *rotary_rules(model, hf, architecture),
    )


def _from_one(pattern: str, name: str) -> Rule:
    """Rule for the weight of a norm that multiplies by 1 plus the stored weight.

    The sum is computed in float32 and rounded to the model's dtype once, as in the published code.
    """
    return Rule(pattern, (name,), (_plus_one,))


def _plus_one(tensors: Sequence[Any]) -> Sequence[Any]:
    return [tensor.clone().float().add_(1) for tensor in tensors]


def gguf_settings(of: Metadata) -> Settings:
    return partly_rotary_settings(
        of,
        model_type="nemotron",
        attention_bias=has_bias(of, "attn_q"),
        mlp_bias=has_bias(of, "ffn_up"),
        norm_eps=layer_eps(of),
    )


FAMILY = decoder_family(
    "nemotron",
    "Nemotron",
    config,
    rules,
    gguf=GgufFamily({"nemotron": gguf_settings}),
)
