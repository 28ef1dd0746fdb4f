"""Granite 4 (IBM 2025): Granite with Mamba-2 state spaces instead of attention in most layers.

The larger models have mixtures of experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    FeedForwardConfig,
    MixtureOfExpertsConfig,
    ModelConfig,
    RouterConfig,
    StateSpaceConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, num_experts, paired_neighbours, rotary_settings
from models.families.shared.gguf_mixers import gguf_state_space_rules
from models.families.shared.granite import granite_gguf_settings
from models.families.shared.layer_types import layer_types, mixer_layer
from models.families.shared.mixture_of_experts import stacked_expert_rules
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
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule, Split

_KINDS = ("linear_attention", "full_attention")


_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    fields.refuse_unless("position_embedding_type", "rope", "nope")
    # The convolution has the activation of the feed-forwards; its kernels support SiLU only.
    fields.refuse_unless("hidden_act", "silu", "swish")
    head_dim, norm, bias = head_dim_of(fields), rms_norm(fields), fields.flag("attention_bias", False)
    rope = rope_config(fields, head_dim)
    scale, heads = fields.number("residual_multiplier", 1.0), fields.integer("num_attention_heads")
    feed_forward, layers = _feed_forward(fields), fields.integer("num_hidden_layers")
    mixer = _state_space(fields, norm.eps)
    built = [
        mixer_layer(mixer, norm, feed_forward, scale)
        if kind == "linear_attention"
        else rotary_layer(
            fields,
            head_dim=head_dim,
            num_kv_heads=fields.integer("num_key_value_heads", heads),
            rope=rope if fields.raw("position_embedding_type") == "rope" else None,
            norm=norm,
            feed_forward=feed_forward,
            qkv_bias=bias,
            output_bias=bias,
            scale=fields.number("attention_multiplier", 1.0),
            residual_scale=scale,
        )
        for kind in layer_types(fields, _KINDS, ["linear_attention"] * layers, layers)
    ]
    return rotary_decoder(
        fields,
        built,
        norm,
        scaled_max_positions(rope, fields.integer("max_position_embeddings")),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        logit_scale=1 / fields.positive("logits_scaling", 1.0),
    )


def _state_space(fields: Fields, eps: float) -> StateSpaceConfig:
    heads, groups = fields.integer("mamba_n_heads", 128), fields.integer("mamba_n_groups", 1)
    width = fields.integer("mamba_expand", 2) * fields.integer("hidden_size")
    return StateSpaceConfig(
        num_heads=heads,
        head_dim=head_dim_of_state(fields, "mamba_n_heads", width, heads),
        state_size=fields.integer("mamba_d_state", 256),
        num_groups=groups,
        kernel_size=fields.integer("mamba_d_conv", 4, least=2),
        norm_eps=eps,
        norm_groups=groups,
        convolution_bias=fields.flag("mamba_conv_bias", True),
        input_bias=fields.flag("mamba_proj_bias", False),
        output_bias=fields.flag("mamba_proj_bias", False),
        chunk_time_steps=time_step_limits(fields),
    )


def _feed_forward(fields: Fields) -> FeedForwardConfig | MixtureOfExpertsConfig:
    """The feed-forward of every layer: dense if the model has no experts, else a mixture with a shared expert."""
    shared = gated_feed_forward(fields, fields.integer("shared_intermediate_size", 1024))
    experts = fields.integer("num_local_experts", 8, least=0)
    if experts == 0:
        return shared
    return MixtureOfExpertsConfig(
        gated_feed_forward(fields, fields.integer("intermediate_size", 11008)),
        num_experts=experts,
        experts_per_token=fields.integer("num_experts_per_tok", 2),
        router=RouterConfig(normalized=True),
        shared=shared,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    mixtures = isinstance(model.decoder.layers[0].feed_forward, MixtureOfExpertsConfig)
    shared = ours + ("feed_forward.shared." if mixtures else "feed_forward.")
    return (
        *state_space_rules(layer + r"mamba\.", ours + "mixer."),
        Split(layer + r"shared_mlp\.input_linear\.weight", (shared + "gate.weight", shared + "up.weight")),
        Rename(layer + r"shared_mlp\.output_linear\.weight", shared + "down.weight"),
        Rename(layer + r"block_sparse_moe\.router\.(?:layer\.)?weight", ours + "feed_forward.router.weight"),
        *stacked_expert_rules(
            model,
            "block_sparse_moe",
            gate_up=r"(?:input_linear\.weight|experts\.gate_up_proj)",
            down=r"(?:output_linear\.weight|experts\.down_proj)",
        ),
        *rotary_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    Models of this family without state spaces are not read here: their GGUF files have the architecture `granite` or
    `granitemoe`.
    """
    mixing, experts = of.layers_with("ssm_a"), num_experts(of)
    bias = bool(of.layers_with("ssm_in.bias"))
    width = of.integer("expert_shared_feed_forward_length") if experts else of.rows("blk.0.ffn_up.weight")
    return rotary_settings(
        of,
        model_type="granitemoehybrid",
        layer_types=["linear_attention" if layer in mixing else "full_attention" for layer in range(of.layers)],
        position_embedding_type="rope" if of.optional("rope.scaling.finetuned") else "nope",
        num_local_experts=experts,
        num_experts_per_tok=of.integer("expert_used_count", 0) or 1,
        shared_intermediate_size=width,
        mamba_n_heads=of.integer("ssm.time_step_rank"),
        mamba_n_groups=of.integer("ssm.group_count"),
        mamba_d_state=of.integer("ssm.state_size"),
        mamba_d_conv=of.integer("ssm.conv_kernel"),
        mamba_expand=of.integer("ssm.inner_size") // of.integer("embedding_length"),
        mamba_proj_bias=bias,
        mamba_conv_bias=bool(of.layers_with("ssm_conv1d.bias")),
        **granite_gguf_settings(of),
    )


def _gguf_rules(model: ModelConfig) -> Sequence[Rule]:
    attends = model.decoder is not None and any(layer.attention is not None for layer in model.decoder.layers)
    return (*gguf_state_space_rules(), *(paired_neighbours(model) if attends else ()))


FAMILY = decoder_family(
    "granitemoehybrid",
    "GraniteMoeHybrid",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"granitehybrid": gguf_settings}, rules=_gguf_rules),
)
