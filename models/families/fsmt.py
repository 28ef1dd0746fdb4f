"""FSMT (Ng et al. 2019, arXiv:1907.06616): fairseq's translators of WMT19, with a vocabulary for each language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ConfigError, FairseqSinusoidalPositions, LanguageModelHead, ModelConfig
from models.families.shared.bart_config import bart_embedding, bart_fields, bart_model, bart_stack, refuse_variants
from models.families.shared.bart_rules import PREFIX, TOKENS, layer_rules
from models.families.shared.family import Family
from weights.rules import Constant, Drop, Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    vocabularies = {"src_vocab_size": 42024, "tgt_vocab_size": 42024}
    fields = bart_fields(hf, activation_function="relu", scale_embedding=True, **vocabularies)
    refuse_variants(fields, pre_norm=False, embedding_norm=False, sinusoidal_positions=True)
    source, target = (fields.integer(name) for name in vocabularies)
    tied = fields.flag("tie_word_embeddings", False)
    if tied and source != target:
        raise ConfigError(f"'tie_word_embeddings': vocabularies of {source} and {target} tokens cannot be one table")
    # fairseq numbers positions from the id after the padding token.
    first = fields.integer("pad_token_id", 1, least=0) + 1
    positions = FairseqSinusoidalPositions(fields.integer("max_position_embeddings"), first)
    return bart_model(
        fields,
        LanguageModelHead(tied=tied),
        bart_stack(fields, "encoder", bart_embedding(fields, positions, vocab_size=source)),
        bart_stack(fields, "decoder", bart_embedding(fields, positions, vocab_size=target)),
        shared=tied,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    is_tied = model.shared_embeddings
    decoder = TOKENS if is_tied else "decoder.embedding.tokens.weight"
    return (
        Rename(rf"{PREFIX}encoder\.embed_tokens\.weight", TOKENS),
        Rename(rf"{PREFIX}decoder\.embed_tokens\.weight", decoder),
        Rename(rf"{PREFIX}decoder\.output_projection\.weight", TOKENS if is_tied else "head.weight"),
        Constant(rf"{PREFIX}(encoder|decoder)\.embed_positions\.weight", r"\1.embedding.positions"),
        Drop(rf"{PREFIX}(?:encoder|decoder)\.version"),
        *layer_rules(),
    )


FAMILY = Family(
    name="fsmt",
    model_types=("fsmt",),
    architectures={
        "FSMTForConditionalGeneration": ("generate", "translate"),
        "FSMTModel": ("generate", "translate"),
    },
    config=config,
    rules=rules,
)
