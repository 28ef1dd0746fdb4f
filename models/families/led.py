"""LED (Beltagy et al. 2020, arXiv:2004.05150, section 7): BART with Longformer's attention in its encoder.

No token is global, as in the reference's `generate` where nobody names any (`docs/decisions`, page 11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
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
from models.families.longformer_layers import global_rules, with_windows
from models.families.post_norm_seq2seq import layer_rules, refuse_later_variants, seq2seq_stack
from models.generation_defaults import GenerationDefaults
from weights.rules import Rename, Rule

_TOKENS = "encoder.embedding.tokens.weight"


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    refuse_later_variants(fields)
    fields.refuse_unless("tie_word_embeddings", True)
    fields.refuse_unless("normalize_embedding", True)
    fields.refuse_unless("static_position_embeddings", False)
    fields.refuse_unless("scale_embedding", False)
    vocab = fields.integer("vocab_size", 50265)
    source_positions = fields.integer("max_encoder_position_embeddings", 16384)
    positions = fields.integer("max_decoder_position_embeddings", 1024)

    def embedding(num_positions: int) -> EmbeddingConfig:
        return EmbeddingConfig(vocab, positions=LearnedPositions(num_positions), norm=NormConfig("layer", 1e-5))

    head: HeadConfig = LanguageModelHead(tied=True, bias=True)
    if architecture == "LEDForQuestionAnswering":
        head = SpanHead(start_token_id=fields.integer("decoder_start_token_id", 2, least=0))
    return ModelConfig(
        hidden_size=fields.integer("d_model", 1024),
        vocab_size=vocab,
        head=head,
        encoder=with_windows(seq2seq_stack(fields, "encoder", embedding(source_positions)), hf, None),
        decoder=seq2seq_stack(fields, "decoder", embedding(positions)),
        shared_embeddings=True,
        max_positions=positions,
        max_source_positions=source_positions,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.encoder is not None
    stack = r"(?:led\.)?(encoder|decoder)\."
    attention = r"(?:led\.)?encoder\.layers\.(\d+)\.self_attn\."
    windowed, ours = attention + r"longformer_self_attn", r"encoder.layers.\1.attention."
    return (
        Rename(r"(?:led\.)?shared\.weight", _TOKENS),
        Rename(stack + r"embed_tokens\.weight", _TOKENS),
        Rename(r"lm_head\.weight", _TOKENS),
        Rename(stack + r"embed_positions\.weight", r"\1.embedding.positions.weight"),
        Rename(stack + r"layernorm_embedding\.(weight|bias)", r"\1.embedding.norm.\2"),
        Rename(windowed + r"\.(query|key|value)\.(weight|bias)", ours + r"\2.\3"),
        Rename(attention + r"output\.(weight|bias)", ours + r"output.\2"),
        *global_rules(windowed, model.encoder.layers[0].attention),
        *layer_rules(r"(?:led\.)?"),
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
    generation=GenerationDefaults(bos_token_id=0, end_token_ids=(2,), pad_token_id=1, decoder_start_token_ids=(2,)),
    zero_if_absent=frozenset({"head.bias"}),
)
