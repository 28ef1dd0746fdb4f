"""NVIDIA's embedding models and rerankers (Babakhin et al. 2025, arXiv:2511.07025): bidirectional LLaMA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from models.config import ClassificationHead, HeadConfig, ModelConfig, PoolingHead
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.published_code import PublishedCode
from models.families.shared.rotary_decoder import gated_feed_forward, headless_rules, llama_decoder
from weights.rules import Rename, Rule

_PUBLISHED = PublishedCode("nvidia", "", "LlamaBidirectional", module="llama_bidirectional_model")
_POOLS: dict[str, Literal["first", "last", "mean"]] = {"avg": "mean", "cls": "first", "last": "last"}
_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    Fields(hf, _PUBLISHED).refuse_unless("is_causal", False)
    settings = {name: value for name, value in hf.items() if name != "auto_map"}
    fields = Fields({**settings, "is_causal": False}, defaults=_DEFAULTS)
    bias = fields.flag("attention_bias", False)
    feed_forward = gated_feed_forward(fields, bias=fields.flag("mlp_bias", False))
    model = llama_decoder(fields, feed_forward, qkv_bias=bias, output_bias=bias)
    return replace(model, head=_head(fields, architecture))


def _head(fields: Fields, architecture: str) -> HeadConfig:
    fields.refuse_unless("pooling", *_POOLS)
    if architecture.endswith("Model"):
        return PoolingHead()
    # The published code divides the logits by this number.
    fields.refuse_unless("temperature", 1.0)
    return ClassificationHead(fields.labels(), dense=None, pool=_POOLS[fields.text("pooling", "avg")], bias=False)


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (Rename(r"score\.weight", "head.output.weight"), *headless_rules(model, hf, architecture))


FAMILY = Family(
    name="llama_bidirec",
    model_types=("llama_bidirec",),
    architectures={
        "LlamaBidirectionalModel": ("embed",),
        "LlamaBidirectionalForSequenceClassification": ("classify",),
    },
    config=_config,
    rules=_rules,
)
