"""GPT-OSS (OpenAI 2025, arXiv:2508.10925): a decoder with attention sinks and mixtures of experts.

The gate and up values of experts are clipped.
Every other layer has a sliding window. Published checkpoints store the experts in MXFP4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    FeedForwardConfig,
    LayerConfig,
    MixtureOfExpertsConfig,
    ModelConfig,
    NormSlots,
    RouterConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import (
    INPUT_NORM_AFTER_ATTENTION,
    GgufFamily,
    Settings,
    has_bias,
    rms_eps,
    rotary_settings,
    sliding_window,
)
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import head_dim_of, rms_norm, rotary_decoder, rotary_rules
from models.families.shared.transposed_experts import transposed_expert_rules
from models.families.shared.windows import windows_by_type
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule

_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    defaults = {
        "vocab_size": 201088,
        "hidden_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "rms_norm_eps": 1e-05,
        "rope_theta": 150000.0,
        "rope_parameters": _YARN,
    }
    fields = Fields(hf, defaults=defaults)
    # The activation of the experts is `x * sigmoid(1.702 * x)`, as in the published code.
    fields.refuse_unless("swiglu_alpha", 1.702)
    fields.refuse_unless("hidden_act", "silu", "swish")
    head_dim, norm, bias = head_dim_of(fields, 64), rms_norm(fields), fields.flag("attention_bias", True)
    rope = rope_config(fields, head_dim)
    experts = MixtureOfExpertsConfig(
        FeedForwardConfig(
            fields.integer("intermediate_size", 2880),
            "gelu_quick",
            gated=True,
            limit=fields.positive("swiglu_limit", 7.0),
            up_offset=1.0,
        ),
        num_experts=fields.integer("num_local_experts", 128),
        experts_per_token=fields.integer("num_experts_per_tok", 4),
        router=RouterConfig(normalized=True, bias=True),
    )
    heads = fields.integer("num_attention_heads")
    width = fields.optional_integer("sliding_window", absent=128)
    layers = [
        LayerConfig(
            AttentionConfig(
                num_heads=heads,
                num_kv_heads=fields.integer("num_key_value_heads", 8),
                head_dim=head_dim,
                scale=head_dim**-0.5,
                causal=True,
                query_bias=bias,
                key_bias=bias,
                value_bias=bias,
                output_bias=bias,
                rope=rope,
                window=window,
                sinks=True,
            ),
            NormSlots(input=norm),
            experts,
            NormSlots(input=norm),
        )
        for window in windows_by_type(fields, width, lambda index: index % 2 == 1)
    ]
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 131072))
    return rotary_decoder(fields, layers, norm, max_positions)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(layer + r"self_attn\.sinks", ours + "attention.sinks"),
        Rename(layer + r"mlp\.router\.(weight|bias)", ours + r"feed_forward.router.\2"),
        *transposed_expert_rules(model, "mlp", interleaved=True),
        *rotary_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    window = sliding_window(of)
    settings = rotary_settings(
        of,
        model_type="gpt_oss",
        attention_bias=has_bias(of, "attn_q"),
        num_local_experts=of.integer("expert_count"),
        num_experts_per_tok=of.integer("expert_used_count"),
        intermediate_size=of.integer("expert_feed_forward_length"),
        sliding_window=window,
        **({} if window else {"layer_types": ["full_attention"] * of.layers}),
        **rms_eps(of),
    )
    # The published models do not round the limits of YaRN's interpolation, which the file does not state.
    scaling = {"truncate": False, **settings.pop("rope_scaling", {"rope_type": "default"})}
    return {**settings, "rope_parameters": {"rope_theta": settings.pop("rope_theta"), **scaling}}


FAMILY = decoder_family(
    "gpt_oss",
    "GptOss",
    config,
    rules,
    answers=False,
    gguf=GgufFamily({"gpt-oss": gguf_settings}, norms=INPUT_NORM_AFTER_ATTENTION),
)
