"""T5 and its descendants as families: one shape of settings and names, each with sizes and logits of its own.

Not a family itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from models.config import LanguageModelHead, ModelConfig, PoolingHead
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.t5_layers import TOKENS, t5_model, t5_rules
from weights.rules import Rule

T5_SIZES: Mapping[str, Any] = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "feed_forward_proj": "relu",
}
"""Where the settings say nothing, in version 1.0."""
MT5_SIZES: Mapping[str, Any] = {
    "vocab_size": 250112,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}
"""The same in the descendants for many languages."""


def t5_family(
    name: str,
    stem: str,
    sizes: Mapping[str, Any],
    head: Callable[[Fields], LanguageModelHead],
    *,
    bias_per_layer: bool = False,
    older_names: Sequence[str] = (),
) -> Family:
    """The family with its logits, and as an encoder alone.

    name: also its `model_type`. stem: what its class names begin with. sizes: defaults. head: its logits, by the
    settings. bias_per_layer: see `t5_model`. older_names: of the class with logits.
    """
    worded, encoder = f"{stem}ForConditionalGeneration", f"{stem}EncoderModel"

    def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
        fields = Fields(hf, defaults=sizes)
        return t5_model(fields, PoolingHead() if architecture == encoder else head(fields), bias_per_layer)

    def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
        return t5_rules(model)

    return Family(
        name=name,
        model_types=(name,),
        architectures={**dict.fromkeys((worded, *older_names), ("generate", "translate")), encoder: ("embed",)},
        config=config,
        rules=rules,
        # transformers 5 saves a version 1.1 whose logits were never untied without its `lm_head`.
        tied_if_absent={"head.weight": TOKENS},
        refused_dtypes={"float16": "T5's feed-forward sums exceed float16; use bfloat16 or float32"},
    )


def scaled_head(fields: Fields) -> LanguageModelHead:
    """Version 1.0 ties the logits to the embeddings and scales them; 1.1 does neither.

    transformers 5 writes the scaling as `scale_decoder_outputs`; before, `tie_word_embeddings` told the versions apart.
    """
    tied = fields.flag("tie_word_embeddings", True)
    scaled = fields.flag("scale_decoder_outputs", tied)
    return LanguageModelHead(tied=tied and scaled, scale=fields.integer("d_model") ** -0.5 if scaled else 1.0)
