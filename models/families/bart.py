"""BART (Lewis et al. 2019, arXiv:1910.13461): summaries, denoising, and classification by its decoder's last state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    ClassificationHead,
    EmbeddingConfig,
    HeadConfig,
    LanguageModelHead,
    LearnedPositions,
    ModelConfig,
    NormConfig,
    SpanHead,
)
from models.families.family import Family
from models.families.fields import Fields
from models.families.post_norm_seq2seq import embedding_scale, layer_rules, refuse_later_variants, seq2seq_stack
from models.generation_defaults import GenerationDefaults
from weights.rules import Rename, Rule, Slice

_TOKENS = "encoder.embedding.tokens.weight"


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    refuse_later_variants(fields)
    fields.refuse_unless("tie_word_embeddings", True)
    fields.refuse_unless("normalize_embedding", True)
    fields.refuse_unless("static_position_embeddings", False)
    vocab, positions = fields.integer("vocab_size", 50265), fields.integer("max_position_embeddings", 1024)
    embedding = EmbeddingConfig(
        vocab, embedding_scale(fields), LearnedPositions(positions), norm=NormConfig("layer", 1e-5)
    )
    head: HeadConfig = LanguageModelHead(tied=True, bias=True)
    start = fields.integer("decoder_start_token_id", 2, least=0)
    if architecture == "BartForQuestionAnswering":
        head = SpanHead(start_token_id=start)
    if architecture == "BartForSequenceClassification":
        head = ClassificationHead(fields.labels(default=3), dense="tanh", pool="last", start_token_id=start)
    return ModelConfig(
        hidden_size=fields.integer("d_model", 1024),
        vocab_size=vocab,
        head=head,
        encoder=seq2seq_stack(fields, "encoder", embedding),
        decoder=seq2seq_stack(fields, "decoder", embedding),
        shared_embeddings=True,
        max_positions=positions,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    stack = r"(?:model\.)?(encoder|decoder)\."
    return (
        Rename(r"(?:model\.)?shared\.weight", _TOKENS),
        Rename(stack + r"embed_tokens\.weight", _TOKENS),
        Rename(r"lm_head\.weight", _TOKENS),
        Slice(stack + r"embed_positions\.weight", r"\1.embedding.positions.weight", start=2),
        Rename(stack + r"layernorm_embedding\.(weight|bias)", r"\1.embedding.norm.\2"),
        Rename(r"classification_head\.dense\.(weight|bias)", r"head.dense.\1"),
        Rename(r"classification_head\.out_proj\.(weight|bias)", r"head.output.\1"),
        *layer_rules(),
    )


FAMILY = Family(
    name="bart",
    model_types=("bart",),
    architectures={
        "BartForConditionalGeneration": ("generate",),
        "BartModel": ("generate",),
        "BartForSequenceClassification": ("classify",),
        "BartForQuestionAnswering": ("question_answer",),
    },
    config=config,
    rules=rules,
    generation=GenerationDefaults(
        bos_token_id=0, end_token_ids=(2,), pad_token_id=1, decoder_start_token_ids=(2,), forced_eos_token_id=2
    ),
    zero_if_absent=frozenset({"head.bias"}),
)
