"""EuroBERT (Boizard et al. 2025, arXiv:2503.05500): LLaMA with bidirectional attention."""

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
from models.families.shared.eurobert_layers import DEFAULTS, eurobert_encoder
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, rms_eps, rotary_settings
from models.families.shared.published_code import PublishedCode
from models.families.shared.rename_rules import renamed
from models.families.shared.rotary_decoder import rotary_rules
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule

_PUBLISHED_CODE = PublishedCode("EuroBERT", "eurobert", "EuroBert")


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    Fields(hf, _PUBLISHED_CODE).refuse_unless("is_causal", False)
    settings = {name: value for name, value in hf.items() if name != "auto_map"}
    fields = Fields({**settings, "is_causal": False}, defaults=DEFAULTS)
    model = eurobert_encoder(fields)
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
