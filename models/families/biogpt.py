"""BioGPT (Luo et al. 2022, arXiv:2210.10341): pre-norm decoder with learned positions that start at 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, LearnedPositions, ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fairseq_layers import fairseq_decoder, fairseq_layer_rules
from models.families.shared.fields import Fields
from models.families.shared.language_model import language_model, token_rules
from weights.rules import Rename, Rule, Slice


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    hidden, heads = fields.integer("hidden_size", 1024), fields.integer("num_attention_heads", 16)
    feed_forward = FeedForwardConfig(fields.integer("intermediate_size", 4096), fields.activation("hidden_act", "gelu"))
    layers, vocab = fields.integer("num_hidden_layers", 24), fields.integer("vocab_size", 42384)
    positions = fields.integer("max_position_embeddings", 1024)
    decoder = fairseq_decoder(fields, hidden, heads, feed_forward, layers, vocab, LearnedPositions(positions))
    return language_model(fields, hidden, decoder, positions, default_tied=True)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    decoder = r"(?:biogpt\.)?"
    return (
        *token_rules(model, decoder + "embed_tokens", "output_projection"),
        Slice(decoder + r"embed_positions\.weight", "decoder.embedding.positions.weight", start=2),
        *fairseq_layer_rules(decoder),
        Rename(decoder + r"layer_norm\.(weight|bias)", r"decoder.final_norm.\1"),
    )


FAMILY = decoder_family(
    "biogpt",
    "BioGpt",
    config,
    rules,
    answers=False,
    pad_token_id=1,
)
