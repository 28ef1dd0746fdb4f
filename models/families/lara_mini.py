"""Lara Mini (Translated 2026): layers with a gated delta rule, with windowed attention, or with full attention.

Layers with full attention have no positions. Every layer has a mixture of experts with a shared expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import GatedDeltaConfig, MixtureOfExpertsConfig, ModelConfig, QueryKeyNorm, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gated_delta_decoder import (
    LAYER,
    OURS,
    delta_mixer,
    delta_rules,
    gated_delta_config,
    separate_input_rules,
)
from models.families.shared.layer_types import layer_types, mixer_layer
from models.families.shared.mixture_of_experts import expert_rules
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rms_norm,
    rotary_decoder,
    rotary_layer,
    rotary_rules,
)
from weights.rules import Rename, Rule, Split

_KINDS = ("linear_attention", "sliding_attention", "full_attention")
_PATTERN = ("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention")
_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 512,
    "linear_num_key_heads": 8,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 16,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    # The convolution has the activation of the feed-forwards; its kernels support SiLU only.
    fields.refuse_unless("hidden_act", "silu", "swish")
    head_dim, norm, bias = head_dim_of(fields), rms_norm(fields), fields.flag("attention_bias", False)
    rope, window = rope_config(fields, head_dim), fields.integer("sliding_window")
    count = fields.integer("num_hidden_layers")
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields, fields.integer("moe_intermediate_size")),
        num_experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(normalized=fields.flag("norm_topk_prob", True)),
        shared=gated_feed_forward(fields, fields.integer("shared_expert_intermediate_size")),
    )
    mixer = mixer_layer(gated_delta_config(fields, norm.eps), norm, experts)
    default = [_PATTERN[index % len(_PATTERN)] for index in range(count)]
    layers = [
        mixer
        if kind == "linear_attention"
        else rotary_layer(
            fields,
            head_dim=head_dim,
            num_kv_heads=fields.integer("num_key_value_heads"),
            rope=rope if kind == "sliding_attention" else None,
            norm=norm,
            feed_forward=experts,
            window=window if kind == "sliding_attention" else None,
            qkv_bias=bias,
            output_bias=bias,
            query_key_norm=QueryKeyNorm(norm),
        )
        for kind in layer_types(fields, _KINDS, default, count)
    ]
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    return rotary_decoder(fields, layers, norm, max_positions, default_tied=True)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    theirs, ours = LAYER + r"linear_attn\.", OURS + "mixer."
    return (
        *expert_rules(model),
        # Published files have one matrix, and transformers splits it.
        _fused_inputs(delta_mixer(model)),
        Rename(theirs + r"out_norm\.weight", ours + "norm.weight"),
        *separate_input_rules(model),
        *delta_rules(),
        *rotary_rules(model, hf, architecture),
    )


def _fused_inputs(mixer: GatedDeltaConfig) -> Rule:
    heads, keys, values = mixer.num_value_heads, mixer.key_width, mixer.value_width
    parts = ("query", "key", "value", "gate", "beta", "decay")
    names = [f"{OURS}mixer.{part}.weight" for part in parts]
    return Split(LAYER + r"linear_attn\.in_proj\.weight", names, sizes=(keys, keys, values, values, heads, heads))


FAMILY = decoder_family(
    "lara_mini",
    "LaraMini",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
)
