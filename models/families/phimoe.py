"""Phi-3.5-MoE (Abdin et al. 2024, arXiv:2404.14219): layer norms, and two experts per token chosen by SparseMixer.

Texts are limited to `original_max_position_embeddings`, the length from which rotary positions would be scaled. Beyond
it, the published code and transformers use different frequencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ConfigError, MixtureOfExpertsConfig, ModelConfig, NormConfig, RopeConfig, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, rope_type
from models.families.shared.gguf import GgufFamily, Settings, has_bias, rotary_settings, sliding_window
from models.families.shared.mixture_of_experts import mixtral_rules
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, llama_decoder
from weights.gguf.metadata import Metadata
from weights.gguf.rope import longrope

_CODE = PublishedCode("microsoft", "phimoe", "PhiMoE")

_PUBLISHED_MSCALE = 1.243163121016122
_DEFAULTS = {
    "vocab_size": 32064,
    "hidden_size": 4096,
    "intermediate_size": 6400,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, published_code=_CODE, defaults=_DEFAULTS)
    rope, max_positions = _rope(fields, head_dim_of(fields))
    if fields.integer("num_experts_per_tok") != 2:
        raise ConfigError("'num_experts_per_tok' must be 2: the sparse mixer chooses two experts")
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields),
        num_experts=fields.integer("num_local_experts"),
        experts_per_token=2,
        router=RouterConfig(
            normalized=False, score="sparse_mixer", tolerance=fields.number("router_jitter_noise", 0.01)
        ),
    )
    bias = fields.flag("attention_bias", False)
    return llama_decoder(
        fields,
        experts,
        rope=rope,
        norm=NormConfig("layer", fields.number("rms_norm_eps")),
        max_positions=max_positions,
        window=fields.optional_integer("sliding_window"),
        qkv_bias=bias,
        output_bias=bias,
        logit_bias=fields.flag("lm_head_bias", False),
    )


def _rope(fields: Fields, head_dim: int) -> tuple[RopeConfig, int]:
    """Configuration of the rotary positions, and the longest text in tokens.

    Raises ConfigError for another scaling type than `default` or `longrope`.
    """
    max_positions = fields.integer("max_position_embeddings")
    where = "rope_scaling" if fields.raw("rope_scaling") else "rope_parameters"
    settings = fields.raw(where)
    kind = rope_type(where, settings)
    if kind == "default":
        return rope_config(fields, head_dim), max_positions
    if kind != "longrope":
        raise ConfigError(f"{where!r}: type {kind!r} is not supported for phimoe, only default and longrope")
    inner = Fields(settings)
    original = inner.integer("original_max_position_embeddings")
    # The published code and transformers multiply cosines and sines by `short_mscale`.
    scaling = {**settings, "attention_factor": inner.positive("short_mscale"), "long_factor": inner.raw("short_factor")}
    unscaled = {"rope_theta": fields.raw("rope_theta"), "max_position_embeddings": original, "rope_scaling": scaling}
    return rope_config(Fields(unscaled), head_dim), min(original, max_positions)


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    The file lacks the factors of cosines and sines (`short_mscale`, `long_mscale`), which are the same in all published
    models.
    """
    original = of.integer("rope.scaling.original_context_length", of.integer("context_length"))
    scaling = longrope(of, original)
    if scaling is not None:
        scaling = {**scaling, "short_mscale": _PUBLISHED_MSCALE, "long_mscale": _PUBLISHED_MSCALE}
        del scaling["attention_factor"]
    settings = rotary_settings(
        of,
        model_type="phimoe",
        rms_norm_eps=of.number("attention.layer_norm_rms_epsilon"),
        sliding_window=sliding_window(of),
        num_local_experts=of.integer("expert_count"),
        num_experts_per_tok=of.integer("expert_used_count"),
        attention_bias=has_bias(of, "attn_q"),
        lm_head_bias=of.has("output.bias"),
    )
    return {**settings, **({"rope_scaling": scaling} if scaling else {})}


FAMILY = decoder_family(
    "phimoe",
    "Phimoe",
    config,
    mixtral_rules,
    generating=("PhimoeForCausalLM", "PhiMoEForCausalLM"),
    tokens=False,
    answers=False,
    gguf=GgufFamily({"phimoe": gguf_settings}),
)
