"""Whisper (Radford et al. 2022, arXiv:2212.04356): speech to text, with the language and times of what was said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from models.config import (
    ConvolutionalEmbeddingConfig,
    EmbeddingConfig,
    LanguageModelHead,
    LearnedPositions,
    ModelConfig,
)
from models.families.shared.bart_fields import bart_fields, bart_model, bart_stack
from models.families.shared.bart_rules import final_norm_rules, layer_rules
from models.families.shared.family import Family
from weights.rules import Rename, Rule

_PREFIX = r"model\."
_stack = partial(bart_stack, before=True, key_bias=False)


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf, vocab_size=51865, d_model=384, layers=4, attention_heads=6, ffn_dim=1536)
    fields.refuse_unless("tie_word_embeddings", True)
    # Published checkpoints say false, and the published code reads the setting and does nothing with it.
    fields.refuse_unless("scale_embedding", False)
    heard, written = fields.integer("max_source_positions", 1500), fields.integer("max_target_positions", 448)
    model = bart_model(
        fields,
        LanguageModelHead(tied=True),
        _stack(fields, "encoder", ConvolutionalEmbeddingConfig(fields.integer("num_mel_bins", 80), heard)),
        _stack(fields, "decoder", EmbeddingConfig(fields.integer("vocab_size"), positions=LearnedPositions(written))),
        shared=False,
    )
    return replace(model, max_source_positions=heard)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    linear, tokens = r"\.(weight|bias)", "decoder.embedding.tokens.weight"
    return (
        Rename(rf"{_PREFIX}encoder\.conv([12]){linear}", r"encoder.embedding.convolution_\1.\2"),
        Rename(rf"{_PREFIX}decoder\.embed_tokens\.weight", tokens),
        Rename(r"proj_out\.weight", tokens),
        Rename(rf"{_PREFIX}(encoder|decoder)\.embed_positions\.weight", r"\1.embedding.positions.weight"),
        *final_norm_rules(_PREFIX),
        *layer_rules(_PREFIX, norms="input"),
    )


FAMILY = Family(
    name="whisper",
    model_types=("whisper",),
    architectures={"WhisperForConditionalGeneration": ("transcribe",)},
    config=config,
    rules=rules,
)
