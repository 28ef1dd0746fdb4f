"""mBART and mBART-50 (Liu et al. 2020, arXiv:2001.08210; Tang et al. 2020, arXiv:2008.00401): many languages.

A token names the language of a text: behind the source in mBART, before it in mBART-50 (`server.text.languages`).
"""

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
from models.families.post_norm_seq2seq import embedding_scale
from models.families.pre_norm_seq2seq import pre_norm_rules, pre_norm_stack, refuse_other_norms
from models.generation_defaults import GenerationDefaults
from weights.rules import Rename, Rule, Slice


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    refuse_other_norms(fields, embedding_norm=True)
    fields.refuse_unless("static_position_embeddings", False)
    vocab, positions = fields.integer("vocab_size", 50265), fields.integer("max_position_embeddings", 1024)
    embedding = EmbeddingConfig(
        vocab, embedding_scale(fields), LearnedPositions(positions), norm=NormConfig("layer", 1e-5)
    )
    head: HeadConfig = LanguageModelHead(tied=True, bias=True)
    if architecture == "MBartForSequenceClassification":
        # A text ends with its end token and then its language, with which the decoder starts to read it.
        end = fields.integer("eos_token_id", 2, least=0)
        head = ClassificationHead(fields.labels(), dense="tanh", pool="end", start_token_id=None, end_token_id=end)
    if architecture == "MBartForQuestionAnswering":
        head = SpanHead(start_token_id=None)
    return ModelConfig(
        hidden_size=fields.integer("d_model", 1024),
        vocab_size=vocab,
        head=head,
        encoder=pre_norm_stack(fields, "encoder", embedding),
        decoder=pre_norm_stack(fields, "decoder", embedding),
        shared_embeddings=True,
        max_positions=positions,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    stack = r"(?:model\.)?(encoder|decoder)\."
    return (
        Slice(stack + r"embed_positions\.weight", r"\1.embedding.positions.weight", start=2),
        Rename(stack + r"layernorm_embedding\.(weight|bias)", r"\1.embedding.norm.\2"),
        Rename(r"classification_head\.dense\.(weight|bias)", r"head.dense.\1"),
        Rename(r"classification_head\.out_proj\.(weight|bias)", r"head.output.\1"),
        *pre_norm_rules(),
    )


FAMILY = Family(
    name="mbart",
    model_types=("mbart",),
    architectures={
        "MBartForConditionalGeneration": ("generate", "translate"),
        "MBartModel": ("generate", "translate"),
        "MBartForSequenceClassification": ("classify",),
        "MBartForQuestionAnswering": ("question_answer",),
    },
    config=config,
    rules=rules,
    # What the decoder starts from is a language, or in mBART-50 the end token; the checkpoint says which.
    generation=GenerationDefaults(bos_token_id=0, end_token_ids=(2,), pad_token_id=1, forced_eos_token_id=2),
    zero_if_absent=frozenset({"head.bias"}),
)
