"""M2M100 and NLLB-200 (Fan et al. 2020, arXiv:2010.11125; NLLB Team 2022, arXiv:2207.04672): many-to-many translation.

The answer's first token is forced to be its language (`server.text.languages`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import EmbeddingConfig, FairseqSinusoidalPositions, LanguageModelHead, ModelConfig
from models.families.family import Family
from models.families.fields import Fields
from models.families.post_norm_seq2seq import embedding_scale
from models.families.pre_norm_seq2seq import pre_norm_rules, pre_norm_stack, refuse_other_norms
from models.generation_defaults import GenerationDefaults
from weights.rules import Drop, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields({"scale_embedding": True, "activation_function": "relu", **hf})
    refuse_other_norms(fields, embedding_norm=False)
    vocab, longest = fields.integer("vocab_size", 128112), fields.integer("max_position_embeddings", 1024)
    # fairseq numbers positions from behind its padding token.
    first = fields.integer("pad_token_id", 1, least=0) + 1
    positions = FairseqSinusoidalPositions(longest, first)
    embedding = EmbeddingConfig(vocab, embedding_scale(fields), positions)
    return ModelConfig(
        hidden_size=fields.integer("d_model", 1024),
        vocab_size=vocab,
        head=LanguageModelHead(tied=True),
        encoder=pre_norm_stack(fields, "encoder", embedding),
        decoder=pre_norm_stack(fields, "decoder", embedding),
        shared_embeddings=True,
        max_positions=longest,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (Drop(r"(?:model\.)?(?:encoder|decoder)\.embed_positions\.weights?"), *pre_norm_rules())


FAMILY = Family(
    name="m2m_100",
    model_types=("m2m_100",),
    architectures={
        "M2M100ForConditionalGeneration": ("generate", "translate"),
        "M2M100Model": ("generate", "translate"),
    },
    config=config,
    rules=rules,
    generation=GenerationDefaults(bos_token_id=0, end_token_ids=(2,), pad_token_id=1, decoder_start_token_ids=(2,)),
)
