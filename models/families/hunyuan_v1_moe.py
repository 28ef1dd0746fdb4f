"""Hunyuan-A13B (Tencent 2025): the dense Hunyuan model with mixtures of experts and a shared expert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ConfigError, MixtureOfExpertsConfig, ModelConfig, QueryKeyNorm, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, rms_eps, rotary_settings
from models.families.shared.hunyuan import HEAD_NORM_RULES, with_stretched_base
from models.families.shared.mixture_of_experts import expert_rules
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    llama_decoder,
    rms_norm,
    rotary_rules,
)
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule

_PUBLISHED = PublishedCode("tencent", "hunyuan", "HunYuan", ("modeling_hunyuan.HunYuanMoEV1ForCausalLM",))
_DEFAULTS = {
    "vocab_size": 290943,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, _PUBLISHED, defaults=_DEFAULTS)
    head_dim, bias = head_dim_of(fields), fields.flag("attention_bias", False)
    return llama_decoder(
        fields,
        _experts(fields),
        rope=rope_config(with_stretched_base(fields, {**hf, "auto_map": None}, head_dim), head_dim),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm(rms_norm(fields), after_rotation=True),
    )


def _experts(fields: Fields) -> list[MixtureOfExpertsConfig]:
    """The mixture of experts of each layer.

    Published files state several settings as a list with one value per layer. Raises ConfigError unless all layers have
    the same number of experts, one shared expert, and experts of the width `intermediate_size`.
    """
    layers, width = fields.integer("num_hidden_layers"), fields.integer("intermediate_size")
    for name, only in (("moe_intermediate_size", width), ("num_shared_expert", 1)):
        if set(_per_layer(fields, name, only, layers)) != {only}:
            raise ConfigError(f"{name!r} must be {only} in every layer")
    count, *others = set(_per_layer(fields, "num_experts", 1, layers))
    if others:
        raise ConfigError("'num_experts' must be the same in every layer")
    expert = gated_feed_forward(fields)
    return [
        MixtureOfExpertsConfig(
            expert,
            num_experts=count,
            experts_per_token=chosen,
            router=RouterConfig(normalized=True),
            shared=expert,
        )
        for chosen in _per_layer(fields, "moe_topk", 1, layers)
    ]


def _per_layer(fields: Fields, name: str, default: int, layers: int) -> list[int]:
    """The value of an integer setting for each layer, from one number or a list.

    default: value if the file lacks the setting. Raises ConfigError for a list of fewer than `layers` values.
    """
    if not isinstance(fields.raw(name), list):
        return [fields.integer(name, default)] * layers
    listed = fields.integers(name) or []
    if len(listed) < layers:
        raise ConfigError(f"{name!r} must have a value for each of {layers} layers")
    return listed[:layers]


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    theirs, ours = r"model\.layers\.(\d+)\.mlp\.", r"decoder.layers.\1.feed_forward."
    return (
        Rename(theirs + r"gate\.wg\.weight", ours + "router.weight"),
        Rename(theirs + r"shared_mlp\.(gate|up|down)_proj\.weight", ours + r"shared.\2.weight"),
        *expert_rules(model),
        *HEAD_NORM_RULES,
        *rotary_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    The rotary base in the file already includes the scaling by `alpha`.
    """
    return rotary_settings(
        of,
        model_type="hunyuan_v1_moe",
        attention_bias=has_bias(of, "attn_q"),
        intermediate_size=of.integer("expert_feed_forward_length"),
        num_experts=of.integer("expert_count"),
        moe_topk=of.integer("expert_used_count"),
        **rms_eps(of),
    )


FAMILY = decoder_family(
    "hunyuan_v1_moe",
    "HunYuanMoEV1",
    config,
    rules,
    tokens=False,
    answers=False,
    pad_token_id=0,
    gguf=GgufFamily({"hunyuan-moe": gguf_settings}),
)
