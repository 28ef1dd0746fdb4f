"""GPT (Radford et al. 2018): post-norm decoder with learned positions, without final norm and end token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelHead,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, activation, head_width
from models.families.shared.gpt_layers import layer_rules
from weights.rules import Drop, Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    fields.refuse_unless("afn", "gelu", "relu", "silu", "swish")
    # `gelu` means its tanh approximation in this family.
    name = fields.text("afn", "gelu")
    function = activation("gelu_new" if name == "gelu" else name, "afn")
    hidden, heads = fields.integer("n_embd", 768), fields.integer("n_head", 12)
    head_dim = head_width(hidden, heads)
    norms = NormSlots(residual=NormConfig("layer", fields.number("layer_norm_epsilon", 1e-5)))
    layer = LayerConfig(
        AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal=True),
        norms,
        FeedForwardConfig(4 * hidden, function),
        norms,
    )
    vocab, positions = fields.integer("vocab_size", 40478), fields.integer("n_positions", 512)
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=LanguageModelHead(tied=fields.flag("tie_word_embeddings", True)),
        decoder=StackConfig(
            EmbeddingConfig(vocab, positions=LearnedPositions(positions)), (layer,) * fields.integer("n_layer", 12)
        ),
        max_positions=positions,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    tokens = "decoder.embedding.tokens.weight"
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    return (
        Rename(r"(?:transformer\.)?tokens_embed\.weight", tokens),
        Rename(r"(?:transformer\.)?positions_embed\.weight", "decoder.embedding.positions.weight"),
        *layer_rules("residual"),
        Rename(r"lm_head\.weight", tokens if tied else "head.weight"),
        Drop(r"(?:transformer\.)?position_ids"),
    )


FAMILY = decoder_family(
    "openai-gpt",
    "OpenAIGPT",
    config,
    rules,
    generating=("OpenAIGPTLMHeadModel",),
    answers=False,
    tokens=False,
    prefix=r"transformer\.",
)
