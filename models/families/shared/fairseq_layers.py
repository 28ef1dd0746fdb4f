"""Configuration and rules of the layers of decoders that were trained with fairseq: OPT, XGLM, BioGPT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FairseqSinusoidalPositions,
    FeedForwardConfig,
    LayerConfig,
    LearnedPositions,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.fields import Fields, head_width
from weights.rules import Rename, Rule

_NORM = NormConfig("layer", 1e-5)
"""Norm of all layers. Its epsilon is fixed, because the published code ignores `layer_norm_eps`."""


def fairseq_decoder(
    fields: Fields,
    hidden_size: int,
    num_heads: int,
    feed_forward: FeedForwardConfig,
    num_layers: int,
    vocab_size: int,
    positions: LearnedPositions | FairseqSinusoidalPositions,
) -> StackConfig:
    """Configuration of a pre-norm decoder with equal layers.

    Token embeddings are multiplied by the square root of `hidden_size` unless the setting `scale_embedding` is false.
    """
    head_dim, norms = head_width(hidden_size, num_heads), NormSlots(input=_NORM)
    attention = AttentionConfig(num_heads, num_heads, head_dim, head_dim**-0.5, causal=True)
    scale = hidden_size**0.5 if fields.flag("scale_embedding", True) else 1.0
    return StackConfig(
        EmbeddingConfig(vocab_size, scale, positions),
        (LayerConfig(attention, norms, feed_forward, norms),) * num_layers,
        final_norm=_NORM,
    )


def fairseq_layer_rules(decoder: str, norms: Literal["input", "residual"] = "input") -> Sequence[Rule]:
    """Rules for the layer tensors of a decoder with the names of fairseq.

    decoder: regular expression for the prefix of the decoder's tensor names. It must not contain groups.
    norms: slot of `NormSlots` with the norms: `input` for pre-norm, `residual` for post-norm.
    """
    layer, ours = decoder + r"layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(layer + r"self_attn_layer_norm\.(weight|bias)", ours + rf"attention_norms.{norms}.\2"),
        Rename(layer + r"self_attn\.q_proj\.(weight|bias)", ours + r"attention.query.\2"),
        Rename(layer + r"self_attn\.k_proj\.(weight|bias)", ours + r"attention.key.\2"),
        Rename(layer + r"self_attn\.v_proj\.(weight|bias)", ours + r"attention.value.\2"),
        Rename(layer + r"self_attn\.out_proj\.(weight|bias)", ours + r"attention.output.\2"),
        Rename(layer + r"final_layer_norm\.(weight|bias)", ours + rf"feed_forward_norms.{norms}.\2"),
        Rename(layer + r"fc1\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"fc2\.(weight|bias)", ours + r"feed_forward.down.\2"),
    )
