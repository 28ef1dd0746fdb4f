"""Bamba (IBM, Princeton, CMU and UIUC 2024): Mamba-2 state space layers, and a few attention layers.

Rotary positions apply to half of each attention head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig, StateSpaceConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.layer_types import mixer_layer
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rms_norm,
    rotary_decoder,
    rotary_layer,
    rotary_rules,
)
from models.families.shared.state_space_layers import head_dim_of_state, state_space_rules, time_step_limits
from weights.rules import Rename, Rule

_DEFAULTS = {
    "vocab_size": 128000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 262144,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    # The convolution uses the same activation as the feed-forwards, and its kernels support SiLU only.
    fields.refuse_unless("hidden_act", "silu", "swish")
    head_dim, norm, bias = head_dim_of(fields), rms_norm(fields), fields.flag("attention_bias", False)
    rope = rope_config(fields, head_dim, default_share=0.5)
    feed_forward = gated_feed_forward(fields, bias=fields.flag("mlp_bias", False))
    # Null means one head of keys and values per query head; absent means eight heads.
    heads = fields.optional_integer("num_key_value_heads", absent=8) or fields.integer("num_attention_heads")
    attention = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=heads,
        rope=rope,
        norm=norm,
        feed_forward=feed_forward,
        qkv_bias=bias,
        output_bias=bias,
    )
    state_space = mixer_layer(_state_space(fields, norm.eps), norm, feed_forward)
    with_attention = fields.integers("attn_layer_indices") or []
    layers = [
        attention if index in with_attention else state_space for index in range(fields.integer("num_hidden_layers"))
    ]
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    return rotary_decoder(fields, layers, norm, max_positions)


def _state_space(fields: Fields, eps: float) -> StateSpaceConfig:
    heads, groups = fields.integer("mamba_n_heads"), fields.integer("mamba_n_groups")
    width, bias = fields.integer("mamba_expand") * fields.integer("hidden_size"), fields.flag("mamba_proj_bias", False)
    return StateSpaceConfig(
        num_heads=heads,
        head_dim=head_dim_of_state(fields, "mamba_n_heads", width, heads),
        state_size=fields.integer("mamba_d_state"),
        num_groups=groups,
        kernel_size=fields.integer("mamba_d_conv", least=2),
        norm_eps=eps,
        norm_groups=groups,
        convolution_bias=fields.flag("mamba_conv_bias", True),
        input_bias=bias,
        output_bias=bias,
        chunk_time_steps=time_step_limits(fields),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        *state_space_rules(layer + r"mamba\.", ours + "mixer."),
        Rename(layer + r"pre_ff_layernorm\.weight", ours + "feed_forward_norms.input.weight"),
        Rename(layer + r"feed_forward\.(gate|up|down)_proj\.(weight|bias)", ours + r"feed_forward.\2.\3"),
        Rename(r"model\.final_layernorm\.weight", "decoder.final_norm.weight"),
        *rotary_rules(model, hf, architecture),
    )


FAMILY = decoder_family(
    "bamba",
    "Bamba",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
)
