"""UltraBERT (Korea University 2026): EuroBERT with a window and another rotary base in two of three layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from models.config import (
    ClassificationHead,
    ConfigError,
    HeadConfig,
    HeadTransform,
    LanguageModelHead,
    ModelConfig,
    PoolingHead,
    SpanHead,
    TokenClassificationHead,
)
from models.families.shared.bert_config import architectures
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.rename_rules import renamed
from models.families.shared.rope import rope_config, with_rope_of
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    llama_decoder,
    rotary_rules,
)
from models.families.shared.windows import typed_windows
from weights.rules import Drop, Rename, Rule

_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 32768,
    "prediction_head_size": 768,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
}
_THETAS = {"full_attention": 2560000.0, "sliding_attention": 10000.0}


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    settings = {**_by_type(hf), "is_causal": False}
    Fields(hf).refuse_unless("is_causal", False)
    fields = Fields({**settings, "rope_parameters": None}, defaults=_DEFAULTS)
    head_dim, bias = head_dim_of(fields), fields.flag("attention_bias", False)
    ropes = {
        kind: rope_config(Fields(with_rope_of(settings, kind, theta), defaults=_DEFAULTS), head_dim)
        for kind, theta in _THETAS.items()
    }
    windows = _windows(fields)
    model = llama_decoder(
        fields,
        gated_feed_forward(fields, bias=fields.flag("mlp_bias", False)),
        windows=windows,
        ropes=[ropes["full_attention" if window is None else "sliding_attention"] for window in windows],
        rope=ropes["full_attention"],
        qkv_bias=bias,
        output_bias=bias,
    )
    return replace(model, head=_head(fields, architecture))


def _by_type(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in the form that transformers writes: windows and rotary bases by layer type.

    Published files list a window and a rotary base for each layer. Raises ConfigError if two layers with windows differ
    in width, or two layers of one type in their base.
    """
    settings, windows = dict(hf), hf.get("attention_windows")
    if windows is not None:
        widths = set(windows) - {None, 0} if isinstance(windows, list) else set()
        if len(widths) > 1 or not isinstance(windows, list):
            raise ConfigError("'attention_windows' must be a list with one width, and 0 or null for full attention")
        if widths:
            settings["sliding_window"] = widths.pop()
        kinds = ["sliding_attention" if window else "full_attention" for window in windows]
        settings["layer_types"] = hf.get("layer_types") or kinds
    bases = settings.pop("rope_theta", None)
    if bases is not None and hf.get("rope_parameters") is None:
        kinds = _kinds(Fields(settings, defaults=_DEFAULTS))
        by_type = dict(zip(kinds, bases, strict=False)) if isinstance(bases, list) and isinstance(kinds, list) else {}
        if not by_type or [by_type.get(kind) for kind in kinds] != bases:
            raise ConfigError("'rope_theta' must be a list with one base for each type of layer")
        settings["rope_parameters"] = {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in by_type.items()
        }
    return settings


def _kinds(fields: Fields) -> Any:
    layers, kinds = fields.integer("num_hidden_layers"), fields.raw("layer_types")
    if kinds is not None:
        return kinds
    return ["sliding_attention" if (index + 1) % 3 else "full_attention" for index in range(layers)]


def _windows(fields: Fields) -> list[int | None]:
    return typed_windows(_kinds(fields), fields.integer("num_hidden_layers"), fields.integer("sliding_window", 128))


def _head(fields: Fields, architecture: str) -> HeadConfig:
    match architecture.partition("For")[2]:
        case "":
            return PoolingHead()
        case "MaskedLM":
            transform = HeadTransform("gelu_tanh", None, width=fields.integer("prediction_head_size"))
            return LanguageModelHead(tied=fields.flag("tie_word_embeddings", False), transform=transform)
        case "TokenClassification":
            return TokenClassificationHead(fields.labels())
        case "QuestionAnswering":
            return SpanHead()
    pools: dict[str, Literal["first", "mean"]] = {"cls": "first", "mean": "mean"}
    fields.refuse_unless("classifier_pooling", *pools)
    return ClassificationHead(fields.labels(), dense=None, pool=pools[fields.text("classifier_pooling", "cls")])


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    body = rotary_rules(replace(model, head=LanguageModelHead(tied=True)), hf, architecture)
    heads: tuple[Rule, ...] = (Drop(r"(?:head|cls)\..*"),)
    if isinstance(model.head, LanguageModelHead):
        heads = (
            Rename(r"head\.linear1\.weight", "head.dense.weight"),
            Rename(r"head\.linear2\.weight", "head.second.weight"),
            Rename(r"(?:head\.decoder|cls)\.weight", "encoder.embedding.tokens.weight" if tied else "head.weight"),
        )
    return (
        *heads,
        Rename(r"(?:classifier|qa_outputs)\.(weight|bias)", r"head.output.\1"),
        *renamed(body, r"model\.", r"(?:model\.|ultrabert\.)?"),
    )


FAMILY = Family(
    name="ultrabert",
    model_types=("ultrabert",),
    architectures=architectures("Ultrabert"),
    config=_config,
    rules=_rules,
)
