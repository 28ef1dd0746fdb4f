"""Families of T5 and its successors, which differ in sizes and in the language model head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from models.config import LanguageModelHead, ModelConfig, PoolingHead
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily
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
"""Defaults of settings in T5 version 1.0."""
MT5_SIZES: Mapping[str, Any] = {
    "vocab_size": 250112,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}
"""Defaults of settings in mT5 and UMT5."""


def t5_family(
    name: str,
    stem: str,
    sizes: Mapping[str, Any],
    head: Callable[[Fields], LanguageModelHead],
    *,
    model: Callable[[Fields, LanguageModelHead | PoolingHead], ModelConfig] = t5_model,
    rules: Callable[[ModelConfig], Sequence[Rule]] = t5_rules,
    older_names: Sequence[str] = (),
    gguf: GgufFamily | None = None,
) -> Family:
    """A family with two architectures: the encoder-decoder with a language model head, and the encoder alone.

    name: name of the family and its `model_type`.
    stem: start of its class names in transformers.
    sizes: defaults of settings.
    head: builds the configuration of the language model head from the settings.
    model: builds the model configuration from the settings and the head's configuration.
    rules: returns the tensor rules for a model configuration.
    older_names: older names of the class with the language model head.
    gguf: how GGUF files of the family are read, None if they are not supported.
    """
    generating, encoder = f"{stem}ForConditionalGeneration", f"{stem}EncoderModel"

    def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
        fields = Fields(hf, defaults=sizes)
        return model(fields, PoolingHead() if architecture == encoder else head(fields))

    def family_rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
        return rules(model)

    return Family(
        name=name,
        model_types=(name,),
        architectures={**dict.fromkeys((generating, *older_names), ("generate", "translate")), encoder: ("embed",)},
        config=config,
        rules=family_rules,
        # transformers 5 writes no `lm_head` for a version 1.1 model whose logits are still tied.
        tied_if_absent={"head.weight": TOKENS},
        refused_dtypes={"float16": "T5's feed-forward sums exceed float16; use bfloat16 or float32"},
        gguf=gguf,
    )


def scaled_head(fields: Fields) -> LanguageModelHead:
    """The language model head of T5. Version 1.0 ties its logits to the embeddings and scales them.

    Version 1.1 neither ties nor scales them. transformers 5 states the version as `scale_decoder_outputs`; older files
    state it as `tie_word_embeddings`.
    """
    tied = fields.flag("tie_word_embeddings", True)
    scaled = fields.flag("scale_decoder_outputs", tied)
    return LanguageModelHead(tied=tied and scaled, scale=fields.integer("d_model") ** -0.5 if scaled else 1.0)
