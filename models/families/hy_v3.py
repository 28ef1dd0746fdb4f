"""Hy3 (Tencent 2026): LLaMA with normed queries and keys, and mixtures of experts with the router of DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, QueryKeyNorm, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, prediction_layers, rms_eps, rotary_settings
from models.families.shared.mixture_of_experts import rotary_expert_rules, typed_feed_forwards
from models.families.shared.prediction_head import layer_after_the_last
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    llama_decoder,
    rms_norm,
)
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule

_DEFAULTS = {
    "vocab_size": 120832,
    "hidden_size": 4096,
    "intermediate_size": 13312,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1536,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "router_scaling_factor": 2.826,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 11158840.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    bias, own_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    width = fields.integer("moe_intermediate_size")
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields, width),
        # transformers 5 writes the number of experts under the name that Mixtral has for it.
        num_experts=fields.integer("num_local_experts", fields.integer("num_experts", 192)),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(
            normalized=True,
            score="sigmoid",
            correction=True,
            epsilon=1e-20,
            scale=fields.positive("router_scaling_factor"),
        ),
        shared=gated_feed_forward(fields, width * fields.integer("num_shared_experts"), bias=own_bias),
    )
    dense = gated_feed_forward(fields, bias=own_bias)
    return llama_decoder(
        fields,
        typed_feed_forwards(fields, dense, experts, dense_layers=1),
        num_kv_heads=fields.integer("num_key_value_heads"),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm(rms_norm(fields)),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    theirs, ours = r"model\.layers\.(\d+)\.mlp\.", r"decoder.layers.\1.feed_forward."
    return (
        # The additional layer after the decoder layers only drafts tokens.
        Drop(rf"model\.layers\.{len(model.decoder.layers)}\..*"),
        # Published files have the first names, the modules of transformers the second.
        Rename(theirs + r"(?:router\.gate|gate)\.weight", ours + "router.weight"),
        Rename(theirs + r"(?:expert_bias|e_score_correction_bias)", ours + "router.correction"),
        Rename(theirs + r"shared_mlp\.(gate|up|down)_proj\.(weight|bias)", ours + r"shared.\2.\3"),
        *rotary_expert_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    sparse, width = of.layers_with("ffn_gate_inp.weight"), of.integer("expert_feed_forward_length")
    if not of.optional("expert_weights_norm"):
        raise of.error("expert_weights_norm", "is not set, which is not supported")
    return rotary_settings(
        of,
        model_type="hy_v3",
        attention_bias=has_bias(of, "attn_q"),
        mlp_bias=has_bias(of, "ffn_up_shexp"),
        mlp_layer_types=["sparse" if layer in sparse else "dense" for layer in range(of.layers)],
        num_experts=of.integer("expert_count"),
        num_experts_per_tok=of.integer("expert_used_count"),
        num_shared_experts=of.integer("expert_shared_feed_forward_length", width) // width,
        moe_intermediate_size=width,
        router_scaling_factor=of.number("expert_weights_scale", 1.0),
        **rms_eps(of),
    )


FAMILY = decoder_family(
    "hy_v3",
    "HYV3",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"hy_v3": gguf_settings}, rules=lambda model: (prediction_layers(model),)),
    prediction_head=layer_after_the_last(rules, "final_layernorm"),
)
