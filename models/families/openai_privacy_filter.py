"""Privacy Filter (OpenAI 2026): GPT-OSS as an encoder that labels personal data token by token.

Every layer has a sliding window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import (
    AttentionConfig,
    FeedForwardConfig,
    LanguageModelHead,
    LayerConfig,
    MixtureOfExpertsConfig,
    ModelConfig,
    NormSlots,
    PoolingHead,
    RouterConfig,
    TokenClassificationHead,
)
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.rename_rules import renamed
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import head_dim_of, rms_norm, rotary_decoder, rotary_rules
from models.families.shared.transposed_experts import transposed_expert_rules
from weights.rules import Rename, Rule

_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_DEFAULTS = {
    "vocab_size": 200064,
    "hidden_size": 640,
    "intermediate_size": 640,
    "num_hidden_layers": 8,
    "num_attention_heads": 14,
    "max_position_embeddings": 131072,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "rms_norm_eps": 1e-05,
    "rope_theta": 150000.0,
    "rope_parameters": _YARN,
}
_LABELS = 33
"""Number of token classes of the published model: 1 for no personal data, and 4 for each of 8 kinds of data.

The 4 classes are the first, inner and last token of a span, and the only token of a span."""


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    # The activation of the experts is `x * sigmoid(1.702 * x)`, as in the published code.
    fields.refuse_unless("swiglu_alpha", 1.702)
    head_dim, norm = head_dim_of(fields, fields.raw("head_dim", 64)), rms_norm(fields)
    heads, bias = fields.integer("num_attention_heads"), fields.flag("attention_bias", True)
    rope = rope_config(fields, head_dim, pairing="interleaved")
    attention = AttentionConfig(
        num_heads=heads,
        # Null means one head of keys and values per query head; absent means two heads.
        num_kv_heads=fields.optional_integer("num_key_value_heads", absent=2) or heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        causal=False,
        query_bias=bias,
        key_bias=bias,
        value_bias=bias,
        output_bias=bias,
        rope=rope,
        # The setting counts the tokens on each side, without the token itself.
        window=fields.integer("sliding_window") + 1,
        sinks=True,
    )
    experts = MixtureOfExpertsConfig(
        FeedForwardConfig(
            fields.integer("intermediate_size"),
            "gelu_quick",
            gated=True,
            limit=fields.positive("swiglu_limit"),
            up_offset=1.0,
        ),
        num_experts=fields.integer("num_local_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(normalized=True, bias=True),
    )
    norms = NormSlots(input=norm)
    layers = (LayerConfig(attention, norms, experts, norms),) * fields.integer("num_hidden_layers")
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    model = rotary_decoder(fields, layers, norm, max_positions)
    marks = architecture.endswith("ForTokenClassification")
    return replace(model, head=TokenClassificationHead(fields.labels(_LABELS)) if marks else PoolingHead())


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"encoder.layers.\1."
    body = (
        Rename(layer + r"self_attn\.sinks", ours + "attention.sinks"),
        Rename(layer + r"mlp\.router\.(weight|bias)", ours + r"feed_forward.router.\2"),
        *transposed_expert_rules(model, "mlp", interleaved=False),
        *rotary_rules(replace(model, head=LanguageModelHead(tied=True)), hf, architecture),
    )
    return (
        Rename(r"score\.(weight|bias)", r"head.output.\1"),
        *renamed(body, r"model\.", r"(?:model\.)?"),
    )


FAMILY = Family(
    name="openai_privacy_filter",
    model_types=("openai_privacy_filter",),
    architectures={
        "OpenAIPrivacyFilterForTokenClassification": ("token_classify",),
        "OpenAIPrivacyFilterModel": ("embed",),
    },
    config=_config,
    rules=_rules,
)
