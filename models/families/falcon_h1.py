"""Falcon-H1 (Zuo et al. 2025, arXiv:2507.22448): attention and a state space in parallel in every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    ConfigError,
    FeedForwardConfig,
    LayerConfig,
    ModelConfig,
    NormSlots,
    StateSpaceConfig,
    StateSpaceMultipliers,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, rms_eps, rotary_settings
from models.families.shared.gguf_mixers import gguf_state_space_rules
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import head_dim_of, rms_norm, rotary_decoder, rotary_rules
from models.families.shared.state_space_layers import head_dim_of_state, state_space_rules, time_step_limits
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule

_DEFAULTS = {
    "vocab_size": 128000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    # The convolution has the activation of the feed-forwards; its kernels support SiLU only.
    fields.refuse_unless("hidden_act", "silu", "swish")
    norm, mlp = rms_norm(fields), _multipliers(fields, "mlp_multipliers", 2)
    attention = _attention(fields)
    assert attention.rope is not None
    layer = LayerConfig(
        attention=attention,
        mixer=_state_space(fields, norm.eps),
        attention_norms=NormSlots(input=norm),
        feed_forward=FeedForwardConfig(
            fields.integer("intermediate_size"),
            "silu",
            gated=True,
            bias=fields.flag("mlp_bias", False),
            gate_scale=mlp[0],
        ),
        feed_forward_norms=NormSlots(input=norm, scale=mlp[1]),
    )
    return rotary_decoder(
        fields,
        [layer] * fields.integer("num_hidden_layers"),
        norm,
        scaled_max_positions(attention.rope, fields.integer("max_position_embeddings")),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        logit_scale=fields.number("lm_head_multiplier", 1.0),
    )


def _attention(fields: Fields) -> AttentionConfig:
    heads, head_dim = fields.integer("num_attention_heads"), head_dim_of(fields)
    bias, entry = fields.flag("attention_bias", False), fields.number("attention_in_multiplier", 1.0)
    if bias:
        fields.refuse_unless("attention_in_multiplier", 1, 1.0)
    # Queries, keys and values are linear in their input. Their factor is therefore a factor of scores and results.
    return AttentionConfig(
        num_heads=heads,
        # Null means one head of keys and values per query head; absent means eight heads.
        num_kv_heads=fields.optional_integer("num_key_value_heads", absent=8) or heads,
        head_dim=head_dim,
        scale=head_dim**-0.5 * entry**2 * fields.number("key_multiplier", 1.0),
        causal=True,
        query_bias=bias,
        key_bias=bias,
        value_bias=bias,
        output_bias=bias,
        rope=rope_config(fields, head_dim),
        output_scale=entry * fields.number("attention_out_multiplier", 1.0),
    )


def _state_space(fields: Fields, eps: float) -> StateSpaceConfig:
    heads, groups = fields.integer("mamba_n_heads", 128), fields.integer("mamba_n_groups", 1)
    expanded = fields.integer("mamba_expand", 2) * fields.integer("hidden_size")
    width = fields.optional_integer("mamba_d_ssm", absent=1024) or expanded
    gate, values, keys, queries, time_step = _multipliers(fields, "ssm_multipliers", 5)
    return StateSpaceConfig(
        num_heads=heads,
        head_dim=head_dim_of_state(fields, "mamba_d_ssm", width, heads),
        state_size=fields.integer("mamba_d_state", 256),
        num_groups=groups,
        kernel_size=fields.integer("mamba_d_conv", 4, least=2),
        norm_eps=eps if fields.flag("mamba_rms_norm", False) else None,
        norm_groups=groups,
        gate="after" if fields.flag("mamba_norm_before_gate", True) else "before",
        convolution_bias=fields.flag("mamba_conv_bias", True),
        input_bias=fields.flag("mamba_proj_bias", False),
        output_bias=fields.flag("projectors_bias", False),
        chunk_time_steps=time_step_limits(fields),
        multipliers=StateSpaceMultipliers(
            input=fields.number("ssm_in_multiplier", 1.0),
            gate=gate,
            values=values,
            keys=keys,
            queries=queries,
            time_step=time_step,
            output=fields.number("ssm_out_multiplier", 1.0),
        ),
    )


def _multipliers(fields: Fields, name: str, count: int) -> list[float]:
    """The scaling factors in the setting `name`, all 1 if the file lacks it.

    Raises ConfigError unless the setting is a list of `count` numbers.
    """
    value = fields.raw(name)
    value = [1.0] * count if value is None else value
    good = isinstance(value, list) and all(
        isinstance(factor, int | float) and not isinstance(factor, bool) for factor in value
    )
    if not good or len(value) != count:
        raise ConfigError(f"{name!r} must be a list of {count} numbers")
    return [float(factor) for factor in value]


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        *state_space_rules(layer + r"mamba\.", ours + "mixer."),
        Drop(layer + r"mamba\.mup_vector"),
        Rename(layer + r"pre_ff_layernorm\.weight", ours + "feed_forward_norms.input.weight"),
        Rename(layer + r"feed_forward\.(gate|up|down)_proj\.(weight|bias)", ours + r"feed_forward.\2.\3"),
        Rename(r"model\.final_layernorm\.weight", "decoder.final_norm.weight"),
        *rotary_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    The scaling factors in a checkpoint's settings are left out, because the converter to GGUF multiplies the matrices
    by them.
    """
    return rotary_settings(
        of,
        model_type="falcon_h1",
        attention_bias=has_bias(of, "attn_q"),
        mlp_bias=has_bias(of, "ffn_up"),
        mamba_d_ssm=of.integer("ssm.inner_size"),
        mamba_n_heads=of.integer("ssm.time_step_rank"),
        mamba_n_groups=of.integer("ssm.group_count"),
        mamba_d_state=of.integer("ssm.state_size"),
        mamba_d_conv=of.integer("ssm.conv_kernel"),
        mamba_rms_norm=bool(of.layers_with("ssm_norm.weight")),
        mamba_norm_before_gate=False,
        mamba_conv_bias=has_bias(of, "ssm_conv1d"),
        mamba_proj_bias=has_bias(of, "ssm_in"),
        projectors_bias=has_bias(of, "ssm_out"),
        **rms_eps(of),
    )


def _gguf_rules(model: ModelConfig) -> Sequence[Rule]:
    # The converter leaves out the end of this name.
    norm = Rename(r"blk\.(\d+)\.ffn_norm", r"decoder.layers.\1.feed_forward_norms.input.weight")
    return (norm, *gguf_state_space_rules())


FAMILY = decoder_family(
    "falcon_h1",
    "FalconH1",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"falcon-h1": gguf_settings}, rules=_gguf_rules),
)
