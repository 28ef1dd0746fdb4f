"""LED (Beltagy et al. 2020, arXiv:2004.05150, section 7): BART with Longformer's attention in its encoder.

No token attends globally, as in `generate` of transformers without `global_attention_mask` (docs/decisions/0011).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import HeadConfig, LanguageModelHead, LearnedPositions, ModelConfig, SpanHead
from models.families.shared.bart_config import (
    NORM,
    bart_attention,
    bart_embedding,
    bart_fields,
    bart_model,
    bart_stack,
    refuse_variants,
)
from models.families.shared.bart_rules import head_rules, layer_rules, token_rules
from models.families.shared.family import Family
from models.families.shared.longformer_layers import global_rules, longformer_attentions
from weights.rules import Rename, Rule

_PREFIX = r"(?:led\.)?"


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf)
    refuse_variants(fields, pre_norm=False, embedding_norm=True, sinusoidal_positions=False)
    fields.refuse_unless("tie_word_embeddings", True)
    fields.refuse_unless("scale_embedding", False)
    max_source = fields.integer("max_encoder_position_embeddings", 16384)
    max_target = fields.integer("max_decoder_position_embeddings", 1024)
    full = bart_attention(fields, "encoder", causal=False)
    attentions = longformer_attentions(fields, full, fields.integer("encoder_layers"), None)
    source, target = (bart_embedding(fields, LearnedPositions(n), NORM) for n in (max_source, max_target))
    head: HeadConfig = LanguageModelHead(tied=True, bias=True)
    if architecture == "LEDForQuestionAnswering":
        head = SpanHead(start_token_id=fields.integer("decoder_start_token_id", 2, least=0))
    return bart_model(
        fields,
        head,
        bart_stack(fields, "encoder", source, attentions=attentions),
        bart_stack(fields, "decoder", target),
        max_source_positions=max_source,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.encoder is not None
    stack = rf"{_PREFIX}(encoder|decoder)\."
    attention = rf"{_PREFIX}encoder\.layers\.(\d+)\.self_attn\."
    windowed, ours = attention + r"longformer_self_attn", r"encoder.layers.\1.attention."
    return (
        *token_rules(_PREFIX),
        Rename(stack + r"embed_positions\.weight", r"\1.embedding.positions.weight"),
        Rename(stack + r"layernorm_embedding\.(weight|bias)", r"\1.embedding.norm.\2"),
        Rename(windowed + r"\.(query|key|value)\.(weight|bias)", ours + r"\2.\3"),
        Rename(attention + r"output\.(weight|bias)", ours + r"output.\2"),
        *global_rules(windowed, model.encoder.first_attention),
        *layer_rules(_PREFIX),
        *head_rules(),
    )


FAMILY = Family(
    name="led",
    model_types=("led",),
    architectures={
        "LEDForConditionalGeneration": ("generate",),
        "LEDModel": ("generate",),
        "LEDForQuestionAnswering": ("question_answer",),
    },
    config=config,
    rules=rules,
    zero_if_absent=frozenset({"head.bias"}),
)
