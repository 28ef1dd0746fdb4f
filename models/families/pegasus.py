"""Pegasus (Zhang et al. 2020, arXiv:1912.08777): summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import EmbeddingConfig, LanguageModelHead, ModelConfig, SinusoidalPositions
from models.families.family import Family
from models.families.fields import Fields
from models.families.post_norm_seq2seq import embedding_scale
from models.families.pre_norm_seq2seq import pre_norm_rules, pre_norm_stack, refuse_other_norms
from models.generation_defaults import GenerationDefaults
from weights.rules import Drop, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    refuse_other_norms(fields, embedding_norm=False)
    fields.refuse_unless("static_position_embeddings", True)
    vocab, positions = fields.integer("vocab_size", 50265), fields.integer("max_position_embeddings", 1024)
    embedding = EmbeddingConfig(vocab, embedding_scale(fields), SinusoidalPositions(positions))
    return ModelConfig(
        hidden_size=fields.integer("d_model", 1024),
        vocab_size=vocab,
        head=LanguageModelHead(tied=True, bias=True),
        encoder=pre_norm_stack(fields, "encoder", embedding),
        decoder=pre_norm_stack(fields, "decoder", embedding),
        shared_embeddings=True,
        max_positions=positions,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (Drop(r"(?:model\.)?(?:encoder|decoder)\.embed_positions\.weight"), *pre_norm_rules())


FAMILY = Family(
    name="pegasus",
    model_types=("pegasus",),
    architectures={"PegasusForConditionalGeneration": ("generate",), "PegasusModel": ("generate",)},
    config=config,
    rules=rules,
    generation=GenerationDefaults(
        end_token_ids=(1,), pad_token_id=0, decoder_start_token_ids=(0,), forced_eos_token_id=1
    ),
    zero_if_absent=frozenset({"head.bias"}),
)
