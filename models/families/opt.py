"""OPT (Zhang et al. 2022, arXiv:2205.01068): pre-norm or post-norm decoder with learned positions that start at 2.

OPT-350m has token embeddings narrower than its hidden states, and projects the last hidden states to that width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

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
from models.families.shared.fairseq_layers import fairseq_layer_rules
from models.families.shared.fields import Fields, head_width
from models.families.shared.language_model import language_model, token_rules
from weights.rules import Drop, Rename, Rule, Slice

_NORM = NormConfig("layer", 1e-5)


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    hidden, heads = fields.integer("hidden_size", 768), fields.integer("num_attention_heads", 12)
    width = fields.integer("word_embed_proj_dim", hidden)
    narrow = None if width == hidden else width
    fields.refuse_unless("layer_norm_elementwise_affine", True)
    head_dim, bias = head_width(hidden, heads), fields.flag("enable_bias", True)
    before = fields.flag("do_layer_norm_before", True)
    norms = NormSlots(input=_NORM) if before else NormSlots(residual=_NORM)
    layer = LayerConfig(
        AttentionConfig(heads, heads, head_dim, head_dim**-0.5, True, bias, bias, bias, bias),
        norms,
        FeedForwardConfig(fields.integer("ffn_dim", 3072), fields.activation("activation_function", "relu"), bias=bias),
        norms,
    )
    positions = fields.integer("max_position_embeddings", 2048)
    # Checkpoints fine-tuned before transformers 4.20.1 have no final norm.
    final = before and not fields.flag("_remove_final_layer_norm", False)
    decoder = StackConfig(
        EmbeddingConfig(fields.integer("vocab_size", 50272), positions=LearnedPositions(positions), token_width=narrow),
        (layer,) * fields.integer("num_hidden_layers", 12),
        final_norm=_NORM if final else None,
        output_width=narrow,
    )
    return language_model(fields, hidden, decoder, positions, default_tied=True)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    slot: Literal["input", "residual"] = "input"
    if model.decoder.layers[0].attention_norms.input is None:
        slot = "residual"
    decoder = r"(?:model\.)?decoder\."
    return (
        *token_rules(model, decoder + "embed_tokens"),
        Rename(decoder + r"project_in\.weight", "decoder.embedding.tokens.projection.weight"),
        Rename(decoder + r"project_out\.weight", "decoder.output_projection.weight"),
        Slice(decoder + r"embed_positions\.weight", "decoder.embedding.positions.weight", start=2),
        *fairseq_layer_rules(decoder, slot),
        Rename(decoder + r"final_layer_norm\.(weight|bias)", r"decoder.final_norm.\1"),
        # A version number in the files of the first releases.
        Drop(decoder + r"version"),
    )


FAMILY = decoder_family(
    "opt",
    "OPT",
    config,
    rules,
    tokens=False,
    pad_token_id=1,
)
