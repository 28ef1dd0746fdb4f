"""EuroBERT (Boizard et al. 2025, arXiv:2503.05500): LLaMA as an encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from models.config import (
    ClassificationHead,
    HeadConfig,
    LanguageModelHead,
    ModelConfig,
    PoolingHead,
    TokenClassificationHead,
)
from models.families.shared.bert_config import architectures
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, rms_eps, rotary_settings
from models.families.shared.published_code import PublishedCode
from models.families.shared.rename_rules import renamed
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rms_norm,
    rotary_decoder,
    rotary_layer,
    rotary_rules,
)
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule

_PUBLISHED_CODE = PublishedCode("EuroBERT", "eurobert", "EuroBert")
_DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    Fields(hf, _PUBLISHED_CODE).refuse_unless("is_causal", False)
    settings = {name: value for name, value in hf.items() if name != "auto_map"}
    fields = Fields({**settings, "is_causal": False}, defaults=_DEFAULTS)
    head_dim, norm, bias = head_dim_of(fields), rms_norm(fields), fields.flag("attention_bias", False)
    rope, inner = rope_config(fields, head_dim), fields.integer("intermediate_size")
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads")),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(fields, inner, bias=fields.flag("mlp_bias", False)),
        qkv_bias=bias,
        output_bias=bias,
    )
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    model = rotary_decoder(
        fields,
        (layer,) * fields.integer("num_hidden_layers"),
        norm,
        max_positions,
        logit_bias=fields.flag("mlp_bias", False),
    )
    return replace(model, head=_head(fields, architecture, model.head))


def _head(fields: Fields, architecture: str, masked: HeadConfig) -> HeadConfig:
    match architecture.partition("For")[2]:
        case "":
            return PoolingHead()
        case "MaskedLM":
            return masked
        case "TokenClassification":
            return TokenClassificationHead(fields.labels())
    # The first checkpoints have the setting `clf_pooling`.
    name = "clf_pooling" if fields.raw("classifier_pooling") is None else "classifier_pooling"
    pools: dict[str, Literal["first", "mean", "late"]] = {"bos": "first", "mean": "mean", "late": "late"}
    fields.refuse_unless(name, *pools)
    return ClassificationHead(fields.labels(), dense="gelu", pool=pools[fields.text(name, "late")])


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    if isinstance(model.head, LanguageModelHead):
        return rotary_rules(model, hf, architecture)
    body = rotary_rules(replace(model, head=LanguageModelHead(tied=True)), hf, architecture)
    return (
        Rename(r"dense\.(weight|bias)", r"head.dense.\1"),
        Rename(r"classifier\.(weight|bias)", r"head.output.\1"),
        Drop(r"lm_head\..*"),
        *renamed(body, r"model\.", r"(?:model\.)?"),
    )


def gguf_settings(of: Metadata) -> Settings:
    more = {
        "architectures": ["EuroBertModel"],
        "attention_bias": has_bias(of, "attn_q"),
        "mlp_bias": has_bias(of, "ffn_up"),
    }
    settings = rotary_settings(of, model_type="eurobert", **more, **rms_eps(of))
    return {**settings, "architectures": ["EuroBertModel"]}


_TASKS = architectures("EuroBert")
FAMILY = Family(
    name="eurobert",
    model_types=("eurobert",),
    architectures={name: tasks for name, tasks in _TASKS.items() if "Question" not in name},
    config=_config,
    rules=_rules,
    gguf=GgufFamily({"eurobert": gguf_settings}),
)
