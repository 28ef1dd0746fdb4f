"""GPT (Radford et al. 2018): post-norm decoder with learned positions, without a final norm.

Its vocabulary has no end token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
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
from models.families.shared.language_model import language_model, token_rules
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
    positions = fields.integer("n_positions", 512)
    embedding = EmbeddingConfig(fields.integer("vocab_size", 40478), positions=LearnedPositions(positions))
    decoder = StackConfig(embedding, (layer,) * fields.integer("n_layer", 12))
    return language_model(fields, hidden, decoder, positions, default_tied=True)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        *token_rules(model, r"(?:transformer\.)?tokens_embed"),
        Rename(r"(?:transformer\.)?positions_embed\.weight", "decoder.embedding.positions.weight"),
        *layer_rules("residual"),
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
