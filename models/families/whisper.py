"""Whisper (Radford et al. 2022, arXiv:2212.04356): speech to text with language and timestamps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    ConvolutionalEmbeddingConfig,
    EmbeddingConfig,
    LanguageModelHead,
    LearnedPositions,
    ModelConfig,
)
from models.families.shared.bart_config import bart_fields, bart_model, bart_stack
from models.families.shared.bart_rules import final_norm_rules, layer_rules
from models.families.shared.family import Family
from weights.rules import Rename, Rule

_PREFIX = r"model\."


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf, vocab_size=51865, d_model=384, layers=4, attention_heads=6, ffn_dim=1536)
    fields.refuse_unless("tie_word_embeddings", True)
    # The setting is false in published checkpoints, and the published code ignores it.
    fields.refuse_unless("scale_embedding", False)
    max_source = fields.integer("max_source_positions", 1500)
    audio = ConvolutionalEmbeddingConfig(fields.integer("num_mel_bins", 80), max_source)
    positions = LearnedPositions(fields.integer("max_target_positions", 448))
    text = EmbeddingConfig(fields.integer("vocab_size"), positions=positions)
    return bart_model(
        fields,
        LanguageModelHead(tied=True),
        bart_stack(fields, "encoder", audio, pre_norm=True, key_bias=False),
        bart_stack(fields, "decoder", text, pre_norm=True, key_bias=False),
        shared=False,
        max_source_positions=max_source,
    )


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
