"""XGLM (Lin et al. 2022, arXiv:2112.10668): multilingual pre-norm decoder with sinusoidal positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FairseqSinusoidalPositions, FeedForwardConfig, ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fairseq_layers import fairseq_decoder, fairseq_layer_rules
from models.families.shared.fields import Fields
from models.families.shared.language_model import language_model, token_rules
from weights.rules import Constant, Rename, Rule

_FIRST_POSITION = 2


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    fields.refuse_unless("add_cross_attention", False)
    # The published code sets the position vector with the index `pad_token_id` to zero.
    fields.refuse_unless("pad_token_id", *range(_FIRST_POSITION))
    hidden, heads = fields.integer("d_model", 1024), fields.integer("attention_heads", 16)
    feed_forward = FeedForwardConfig(fields.integer("ffn_dim", 4096), fields.activation("activation_function", "gelu"))
    layers, vocab = fields.integer("num_layers", 24), fields.integer("vocab_size", 256008)
    rows = fields.integer("max_position_embeddings", 2048)
    positions = FairseqSinusoidalPositions(rows, _FIRST_POSITION)
    decoder = fairseq_decoder(fields, hidden, heads, feed_forward, layers, vocab, positions)
    return language_model(fields, hidden, decoder, rows, default_tied=True)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    decoder = r"(?:model\.)?"
    return (
        *token_rules(model, decoder + "embed_tokens"),
        *fairseq_layer_rules(decoder),
        Rename(decoder + r"layer_norm\.(weight|bias)", r"decoder.final_norm.\1"),
        # Files of transformers 4 contain the computed positions.
        Constant(decoder + r"embed_positions\.weights", "decoder.embedding.positions"),
    )


FAMILY = decoder_family(
    "xglm",
    "XGLM",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
)
