"""Nemotron-H (NVIDIA 2025, arXiv:2504.03624): layers with one sublayer each, which is a state space in most layers.

In the other layers it is attention without positions, a feed-forward, or a mixture of experts (Nemotron 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    ConfigError,
    FeedForwardConfig,
    LayerConfig,
    MixtureOfExpertsConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    StateSpaceConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, decoder_settings, has_bias, prediction_layers
from models.families.shared.gguf_mixers import gguf_state_space_rules
from models.families.shared.layer_types import layer_types, mixer_layer
from models.families.shared.mixture_of_experts import corrected_router, unstack
from models.families.shared.rotary_decoder import head_dim_of, rotary_decoder
from models.families.shared.state_space_layers import state_space_rules
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule

_PATTERN = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
_OLDER_NAMES = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_dt_min": "time_step_min",
    "mamba_conv_bias": "use_conv_bias",
}
"""Older names of settings, each with its newer name. If a file has both, the value of the older name is used."""


_DEFAULTS = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    hf = {**hf, **{new: hf[old] for old, new in _OLDER_NAMES.items() if old in hf}}
    fields = Fields(hf, defaults=_DEFAULTS)
    # The published code ignores these settings, so other values are refused.
    for name, value in (("attention_bias", False), ("tie_word_embeddings", False), ("sliding_window", None)):
        fields.refuse_unless(name, value)
    fields.refuse_unless("mamba_hidden_act", "silu", "swish")
    norm = NormConfig("rms", fields.number("layer_norm_epsilon", 1e-5), bias=False)
    parts = {
        "linear_attention": mixer_layer(_state_space(fields), norm, None),
        "full_attention": LayerConfig(_attention(fields), NormSlots(norm), None, NormSlots()),
        "mlp": LayerConfig(None, NormSlots(), _feed_forward(fields, "intermediate_size", 21504), NormSlots(norm)),
    }
    kinds = _kinds(fields)
    if "moe" in kinds:
        parts["moe"] = LayerConfig(None, NormSlots(), _experts(fields), NormSlots(norm))
    max_positions = fields.integer("max_position_embeddings")
    return rotary_decoder(fields, [parts[kind] for kind in kinds], norm, max_positions)


def _kinds(fields: Fields) -> list[str]:
    """The type of each layer, from a list of types or from `hybrid_override_pattern`, one letter per layer.

    The number of layers is the length of the list or pattern; `num_hidden_layers` is not read. Raises ConfigError for
    unknown types or letters, and for an empty list or pattern.
    """
    named = fields.raw("layer_types", fields.raw("layers_block_type"))
    if named is None:
        pattern = fields.text("hybrid_override_pattern", "ME*-")
        if not pattern or not set(pattern) <= _PATTERN.keys():
            raise ConfigError(f"'hybrid_override_pattern' must consist of the letters {' '.join(_PATTERN)}")
        return [_PATTERN[letter] for letter in pattern]
    if not isinstance(named, list) or not named:
        raise ConfigError("'layers_block_type' must be a list of types of layers")
    return layer_types(fields, tuple(_PATTERN.values()), (), len(named))


def _attention(fields: Fields) -> AttentionConfig:
    heads, head_dim = fields.integer("num_attention_heads"), head_dim_of(fields, 128)
    kv_heads = fields.optional_integer("num_key_value_heads", absent=8) or heads
    return AttentionConfig(heads, kv_heads, head_dim, head_dim**-0.5, True, False, False, False, False)


def _state_space(fields: Fields) -> StateSpaceConfig:
    groups, bias = fields.integer("n_groups", 8), fields.flag("use_bias", False)
    return StateSpaceConfig(
        num_heads=fields.integer("mamba_num_heads", 128),
        head_dim=fields.integer("mamba_head_dim", 64),
        state_size=fields.integer("ssm_state_size", 128),
        num_groups=groups,
        kernel_size=fields.integer("conv_kernel", 4, least=2),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        norm_groups=groups,
        convolution_bias=fields.flag("use_conv_bias", True),
        input_bias=bias,
        output_bias=bias,
        chunk_time_steps=(fields.number("time_step_min", 0.001), math.inf),
    )


def _feed_forward(fields: Fields, width: str, default: int, bias: bool | None = None) -> FeedForwardConfig:
    """Configuration of a feed-forward without gate.

    width: name of the setting with the feed-forward's width. default: width if the file lacks this setting.
    bias: whether both matrices have biases; None for the setting `mlp_bias`.
    """
    bias = fields.flag("mlp_bias", False) if bias is None else bias
    return FeedForwardConfig(fields.integer(width, default), fields.activation("mlp_hidden_act", "relu2"), bias=bias)


def _experts(fields: Fields) -> MixtureOfExpertsConfig:
    # transformers writes the number of experts under two names.
    experts = fields.integer("n_routed_experts", fields.integer("num_local_experts", 8))
    return MixtureOfExpertsConfig(
        _feed_forward(fields, "moe_intermediate_size", 7688, bias=False),
        num_experts=experts,
        experts_per_token=fields.integer("num_experts_per_tok", 2),
        router=corrected_router(fields),
        shared=_feed_forward(fields, "moe_shared_expert_intermediate_size", 7688),
        latent_size=fields.optional_integer("moe_latent_size"),
        latent_bias=fields.flag("mlp_bias", False),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    layer, ours = r"(?:model|backbone)\.layers\.(\d+)\.", r"decoder.layers.\1."
    narrow = [
        str(index) for index, layer_config in enumerate(model.decoder.layers) if layer_config.feed_forward is not None
    ]
    mixtures = [
        layer_config.feed_forward
        for layer_config in model.decoder.layers
        if isinstance(layer_config.feed_forward, MixtureOfExpertsConfig)
    ]
    experts = range(mixtures[0].num_experts if mixtures else 0)
    feed_forward = ours + "feed_forward."
    return (
        Rename(r"(?:model|backbone)\.embeddings\.weight", "decoder.embedding.tokens.weight"),
        Rename(
            rf"(?:model|backbone)\.layers\.({'|'.join(narrow) or 'none'})\.norm\.weight",
            ours + "feed_forward_norms.input.weight",
        ),
        Rename(layer + r"norm\.weight", ours + "attention_norms.input.weight"),
        *state_space_rules(layer + r"mixer\.", ours + "mixer."),
        *(
            Rename(layer + rf"mixer\.{part[0]}_proj\.weight", f"{ours}attention.{part}.weight")
            for part in ("query", "key", "value", "output")
        ),
        Rename(layer + r"mixer\.(up|down)_proj\.(weight|bias)", feed_forward + r"\2.\3"),
        Rename(layer + r"mixer\.gate\.weight", feed_forward + "router.weight"),
        Rename(layer + r"mixer\.gate\.e_score_correction_bias", feed_forward + "router.correction"),
        Rename(layer + r"mixer\.shared_experts\.(up|down)_proj\.(weight|bias)", feed_forward + r"shared.\2.\3"),
        Rename(layer + r"mixer\.fc1_latent_proj\.(weight|bias)", feed_forward + r"to_latent.\2"),
        Rename(layer + r"mixer\.fc2_latent_proj\.(weight|bias)", feed_forward + r"from_latent.\2"),
        Rename(layer + r"mixer\.experts\.(\d+)\.(up|down)_proj\.weight", feed_forward + r"experts.\2.\3.weight"),
        *(
            Rule(
                layer + rf"mixer\.experts\.{part}_proj",
                tuple(f"{feed_forward}experts.{expert}.{part}.weight" for expert in experts),
                (unstack(len(experts), 1),),
            )
            for part in ("up", "down")
        ),
        Rename(r"(?:model|backbone)\.norm_f\.weight", "decoder.final_norm.weight"),
        Rename(r"lm_head\.weight", "head.weight"),
        # Layers that predict several tokens at once.
        Drop(r"mtp\..*"),
    )


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    The type of a layer is derived from its tensors' names.
    """
    eps = "attention.layer_norm_rms_epsilon"
    experts = {
        "n_routed_experts": of.integer("expert_count", 0) or None,
        "num_experts_per_tok": of.integer("expert_used_count", 0) or None,
        "n_group": of.integer("expert_group_count", 1) or 1,
        "topk_group": of.integer("expert_group_used_count", 1) or 1,
        "norm_topk_prob": bool(of.optional("expert_weights_norm")),
        "routed_scaling_factor": of.number("expert_weights_scale", 1.0),
        "moe_intermediate_size": of.integer("expert_feed_forward_length", 0) or None,
        "moe_shared_expert_intermediate_size": of.integer("expert_shared_feed_forward_length", 0) or None,
        "moe_latent_size": of.optional("moe_latent_size"),
    }
    dense = of.layers_with("ffn_up.weight")
    width = of.rows(f"blk.{dense[0]}.ffn_up.weight") if dense else None
    return {
        **decoder_settings(of, model_type="nemotron_h", intermediate_size=width),
        "layers_block_type": _gguf_kinds(of),
        "mamba_num_heads": of.integer("ssm.time_step_rank"),
        "mamba_head_dim": of.integer("ssm.inner_size") // max(of.integer("ssm.time_step_rank"), 1),
        "n_groups": of.integer("ssm.group_count"),
        "ssm_state_size": of.integer("ssm.state_size"),
        "conv_kernel": of.integer("ssm.conv_kernel"),
        "use_bias": has_bias(of, "ssm_in"),
        "use_conv_bias": has_bias(of, "ssm_conv1d"),
        "mlp_bias": any(has_bias(of, f"ffn_{module}") for module in ("up", "up_shexp", "latent_down")),
        "layer_norm_epsilon": of.number(eps, of.number("attention.layer_norm_epsilon", 1e-5)),
        **{name: value for name, value in experts.items() if value is not None},
    }


def _gguf_kinds(of: Metadata) -> list[str]:
    types = {"ssm_a": "linear_attention", "ffn_gate_inp.weight": "moe", "ffn_up.weight": "mlp"}
    kinds = ["full_attention"] * of.layers
    for tensor, kind in types.items():
        for layer in of.layers_with(tensor):
            kinds[layer] = kind
    return kinds


def _gguf_rules(model: ModelConfig) -> Sequence[Rule]:
    assert model.decoder is not None
    narrow = [
        str(index) for index, layer_config in enumerate(model.decoder.layers) if layer_config.feed_forward is not None
    ]
    layer, ours = r"blk\.(\d+)\.", r"decoder.layers.\1."
    return (
        prediction_layers(model),
        Rename(rf"blk\.({'|'.join(narrow) or 'none'})\.attn_norm\.weight", ours + "feed_forward_norms.input.weight"),
        Rename(layer + r"ffn_latent_down\.(weight|bias)", ours + r"feed_forward.to_latent.\2"),
        Rename(layer + r"ffn_latent_up\.(weight|bias)", ours + r"feed_forward.from_latent.\2"),
        *gguf_state_space_rules(),
    )


FAMILY = decoder_family(
    "nemotron_h",
    "NemotronH",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    prefix=r"(?:model|backbone)\.",
    gguf=GgufFamily(dict.fromkeys(("nemotron_h", "nemotron_h_moe"), gguf_settings), rules=_gguf_rules),
)
