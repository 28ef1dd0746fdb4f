"""BigBird-Pegasus (Zaheer et al. 2020, arXiv:2007.14062, section 4): summaries of long texts.

Layers with norms before, learned positions numbered from 0, and block sparse attention in the encoder. What checkpoints
call `layernorm_embedding` is the norm after the last layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import (
    ClassificationHead,
    EmbeddingConfig,
    HeadConfig,
    LanguageModelHead,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    SpanHead,
    StackConfig,
)
from models.families.block_sparse import with_blocks, without_biases
from models.families.family import Family
from models.families.fields import Fields
from models.families.post_norm_seq2seq import embedding_scale
from models.families.pre_norm_seq2seq import pre_norm_rules, pre_norm_stack
from models.generation_defaults import GenerationDefaults
from weights.rules import Rename, Rule

_DEFAULTS = {
    "activation_function": "gelu_new",
    "encoder_layers": 16,
    "decoder_layers": 16,
    "scale_embedding": True,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields({**_DEFAULTS, **hf})
    fields.refuse_unless("tie_word_embeddings", True)
    vocab, positions = fields.integer("vocab_size", 96103), fields.integer("max_position_embeddings", 4096)
    embedding = EmbeddingConfig(vocab, embedding_scale(fields), LearnedPositions(positions))
    head: HeadConfig = LanguageModelHead(tied=True, bias=True)
    start = fields.integer("decoder_start_token_id", 2, least=0)
    if architecture == "BigBirdPegasusForQuestionAnswering":
        head = SpanHead(start_token_id=start)
    if architecture == "BigBirdPegasusForSequenceClassification":
        end = fields.integer("eos_token_id", 1, least=0)
        head = ClassificationHead(fields.labels(), dense="tanh", pool="end", start_token_id=start, end_token_id=end)
    encoder, decoder = (_stack(fields, side, embedding) for side in ("encoder", "decoder"))
    return ModelConfig(
        hidden_size=fields.integer("d_model", 1024),
        vocab_size=vocab,
        head=head,
        encoder=with_blocks(encoder, fields),
        decoder=decoder,
        shared_embeddings=True,
        max_positions=positions,
    )


def _stack(fields: Fields, side: str, embedding: EmbeddingConfig) -> StackConfig:
    stack = pre_norm_stack(fields, side, embedding)
    return stack if fields.flag("use_bias", False) else replace(stack, layers=tuple(map(_unbiased, stack.layers)))


def _unbiased(layer: LayerConfig) -> LayerConfig:
    crossing = layer.cross_attention
    return replace(
        layer,
        attention=without_biases(layer.attention, output=False),
        cross_attention=None if crossing is None else without_biases(crossing, output=False),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    stack = r"(?:model\.)?(encoder|decoder)\."
    attention, ours = r"(?:model\.)?encoder\.layers\.(\d+)\.self_attn\.", r"encoder.layers.\1.attention."
    return (
        Rename(stack + r"embed_positions\.weight", r"\1.embedding.positions.weight"),
        Rename(stack + r"layernorm_embedding\.(weight|bias)", r"\1.final_norm.\2"),
        Rename(attention + r"self\.(query|key|value)\.(weight|bias)", ours + r"\2.\3"),
        Rename(attention + r"output\.(weight|bias)", ours + r"output.\2"),
        Rename(r"classification_head\.dense\.(weight|bias)", r"head.dense.\1"),
        Rename(r"classification_head\.out_proj\.(weight|bias)", r"head.output.\1"),
        *pre_norm_rules(),
    )


FAMILY = Family(
    name="bigbird_pegasus",
    model_types=("bigbird_pegasus",),
    architectures={
        "BigBirdPegasusForConditionalGeneration": ("generate",),
        "BigBirdPegasusModel": ("generate",),
        "BigBirdPegasusForSequenceClassification": ("classify",),
        "BigBirdPegasusForQuestionAnswering": ("question_answer",),
    },
    config=config,
    rules=rules,
    generation=GenerationDefaults(bos_token_id=2, end_token_ids=(1,), pad_token_id=0, decoder_start_token_ids=(2,)),
    zero_if_absent=frozenset({"head.bias"}),
)
