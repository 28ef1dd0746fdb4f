"""GTE (Zhang et al. 2024, arXiv:2407.19669: mGTE) and Snowflake Arctic Embed M 2: BERT with rotary positions.

Its feed-forward is gated. The first checkpoints come with Alibaba's code (`new-impl`); Snowflake's have a copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    ConfigError,
    EmbeddingConfig,
    FeedForwardConfig,
    MaskedLanguageModelHead,
    ModelConfig,
    NormConfig,
    StackConfig,
)
from models.families.shared.bert_config import architectures, encoder_head, post_norm_layer
from models.families.shared.bert_rules import bert_head_rules, embedding_rules, linear, masked_rules, norm
from models.families.shared.family import Family
from models.families.shared.fields import Fields, head_width, short
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config, scaled_max_positions
from weights.rules import Drop, Rule, Split

_PREFIX = r"(?:new\.|gte\.)?"
_PUBLISHED_CODE = {
    "new": PublishedCode("Alibaba-NLP", "", "New"),
    "gte": PublishedCode("Snowflake", "hf_alibaba_nlp_gte", "Gte"),
}
_DEFAULTS = {
    "vocab_size": 250048,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 8192,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-12,
}
_CONVERTED_THETA = 160000.0
"""Default rotary base in files for transformers. The default of the published code is 10,000."""


def _settings(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with `ntk` scaling of rotary positions replaced by an equivalent base and linear factor.

    `ntk` multiplies the base by the factor, and divides all frequencies by the factor to the power of `2 / head_dim`.
    Raises ConfigError for a factor below 1, and for the setting `mixed_b`.
    Source: https://kexue.fm/archives/9706, equation 6, which the published code cites.
    """
    scaling = hf.get("rope_scaling")
    Fields({**hf, "rope_scaling": None}, _PUBLISHED_CODE.get(str(hf.get("model_type"))))
    settings = {name: value for name, value in hf.items() if name != "auto_map"}
    theta = settings.get("rope_theta") or (10000.0 if _is_published(hf) else None)
    if not isinstance(scaling, dict) or scaling.get("type", scaling.get("rope_type")) != "ntk":
        return settings if theta is None else {**settings, "rope_theta": theta}
    inner, fields = Fields({**scaling, "type": None}), Fields({**_DEFAULTS, "rope_theta": theta, **_sizes(hf)})
    inner.refuse_unless("mixed_b", None)
    factor = inner.positive("factor")
    if factor < 1:
        raise ConfigError(f"'rope_scaling': a factor below 1 is not supported, got {short(factor)}")
    head_dim = head_width(fields.integer("hidden_size"), fields.integer("num_attention_heads"))
    return {
        **settings,
        "rope_theta": fields.positive("rope_theta", _CONVERTED_THETA) * factor,
        "rope_scaling": {"rope_type": "linear", "factor": factor ** (2 / head_dim)},
    }


def _is_published(hf: Mapping[str, Any]) -> bool:
    """Whether a `config.json` was written for the published code, not for transformers."""
    return bool(hf.get("auto_map")) or hf.get("model_type") == "new"


def _sizes(hf: Mapping[str, Any]) -> dict[str, Any]:
    return {name: hf[name] for name in ("hidden_size", "num_attention_heads") if hf.get(name) is not None}


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(_settings(hf), defaults=_DEFAULTS)
    fields.refuse_unless("position_embedding_type", "rope")
    fields.refuse_unless("layer_norm_type", "layer_norm")
    fields.refuse_unless("logn_attention_scale", False)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim, layer_norm = head_width(hidden, heads), NormConfig("layer", fields.number("layer_norm_eps"))
    rope, activation = rope_config(fields, head_dim, _CONVERTED_THETA), fields.activation("hidden_act")
    layer = post_norm_layer(
        AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal=False, rope=rope),
        FeedForwardConfig(fields.integer("intermediate_size"), activation, gated=True, inner_bias=False),
        layer_norm,
    )
    masked = MaskedLanguageModelHead(activation if _is_published(hf) else "gelu", layer_norm)
    types = fields.integer("type_vocab_size", least=0)
    embedding = EmbeddingConfig(fields.integer("vocab_size"), num_token_types=types, norm=layer_norm)
    return ModelConfig(
        hidden,
        embedding.vocab_size,
        encoder_head(fields, architecture, masked, dense="tanh"),
        encoder=StackConfig(embedding, (layer,) * fields.integer("num_hidden_layers")),
        max_positions=scaled_max_positions(rope, fields.integer("max_position_embeddings")),
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = rf"{_PREFIX}(?:encoder\.layer|layers)\.(\d+)\.", r"encoder.layers.\1."
    attention, inner = rf"{layer}(?:attention|self_attn)\.", f"{ours}feed_forward."
    parts = {"q": "query", "k": "key", "v": "value", "o": "output"}
    body = (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        *(linear(rf"{attention}{short}_proj", f"{ours}attention.{long}") for short, long in parts.items()),
        *(
            Split(rf"{attention}qkv_proj\.{kind}", [f"{ours}attention.{parts[short]}.{kind}" for short in "qkv"])
            for kind in ("weight", "bias")
        ),
        *norm(rf"{layer}(?:attn_ln|post_attention_layernorm)", f"{ours}attention_norms.residual"),
        Split(rf"{layer}mlp\.up_gate_proj\.weight", [f"{inner}up.weight", f"{inner}gate.weight"]),
        *(linear(rf"{layer}mlp\.{part}_proj", f"{inner}{part}") for part in ("up", "gate", "down")),
        *norm(rf"{layer}(?:mlp_ln|post_mlp_layernorm)", f"{ours}feed_forward_norms.residual"),
    )
    if isinstance(model.head, MaskedLanguageModelHead):
        words = masked_rules(r"lm_head\.dense", r"lm_head\.(?:layer_)?norm", "lm_head")
        return (*body, *words, Drop(rf"{_PREFIX}pooler\..*"))
    return (*body, *bert_head_rules(model.head, _PREFIX), Drop(r"(?:lm_head|classifier)\..*"))


_NEW = architectures("New")
_GTE = {name: tasks for name, tasks in architectures("Gte").items() if "Question" not in name}
FAMILY = Family(
    name="gte",
    model_types=("gte", "new"),
    architectures=_GTE | _NEW,
    config=_config,
    rules=_rules,
)
