"""Layers of `torch.nn.TransformerEncoder` and `torch.nn.TransformerDecoder`: configuration and tensor names.

These classes have no embeddings; the tensor names for embeddings are defined here.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.config import (
    AttentionConfig,
    ConfigError,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    LearnedPositions,
    NormConfig,
    NormSlots,
    SinusoidalPositions,
    StackConfig,
)
from models.families.shared.fields import Fields, head_width, short
from weights.rules import Rename, Rule, Split

_PARTS = ("query", "key", "value")


def stack(fields: Fields, vocab: int, num_layers: int, causal: bool, cross_attention: bool = False) -> StackConfig:
    """Configuration of an encoder or a decoder with its embeddings and equal layers.

    vocab: number of token embeddings. causal: whether self-attention is causal.
    cross_attention: whether the layers also attend to the output of an encoder.
    """
    hidden, heads, bias = fields.integer("hidden_size"), fields.integer("num_heads"), fields.flag("bias", True)
    head_dim = head_width(hidden, heads)
    norm = NormConfig("layer", fields.positive("norm_eps", 1e-5), bias)
    slots = NormSlots(input=norm) if choice(fields, "norm", ("pre", "post")) == "pre" else NormSlots(residual=norm)

    def attention(causal: bool) -> AttentionConfig:
        return AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal, bias, bias, bias, bias)

    layer = LayerConfig(
        attention=attention(causal),
        attention_norms=slots,
        feed_forward=FeedForwardConfig(
            fields.integer("intermediate_size"), fields.activation("activation", ""), bias=bias
        ),
        feed_forward_norms=slots,
        cross_attention=attention(causal=False) if cross_attention else None,
        cross_attention_norms=slots if cross_attention else NormSlots(),
    )
    return StackConfig(
        EmbeddingConfig(
            vocab,
            scale=float(hidden**0.5) if fields.flag("scale_embeddings", False) else 1.0,
            positions=_positions(fields),
            norm=NormConfig("layer", norm.eps) if fields.flag("embedding_norm", False) else None,
        ),
        (layer,) * num_layers,
        final_norm=norm if fields.flag("final_norm", False) else None,
    )


def _positions(fields: Fields) -> LearnedPositions | SinusoidalPositions:
    rows = fields.integer("max_positions")
    match choice(fields, "positions", ("learned", "sinusoidal", "sinusoidal_interleaved")):
        case "learned":
            return LearnedPositions(rows)
        case "sinusoidal":
            return SinusoidalPositions(rows)
        case _:
            return SinusoidalPositions(rows, "interleaved")


def choice(fields: Fields, name: str, allowed: Sequence[str]) -> str:
    """The value of a setting that must be one of `allowed`. Raises ConfigError for any other value."""
    value = fields.text(name, "")
    if value not in allowed:
        raise ConfigError(f"{name!r}: {short(value)} is not supported, only {', '.join(allowed)}")
    return value


def embedding_rules(prefix: str, *sides: str) -> tuple[Rule, ...]:
    """Rules for the embeddings of an encoder or a decoder, or of both if they share all embeddings.

    prefix: start of the tensor names in the checkpoint.
    sides: `encoder`, `decoder` or both. With both, position embeddings and norms are copied, tokens are one table.
    """

    def to_all(pattern: str, name: str) -> Rule:
        return Rule(
            pattern, tuple(f"{side}.embedding.{name}" for side in sides), (lambda found: [*found] * len(sides),)
        )

    return (
        Rename(rf"{prefix or 'token_'}embedding\.weight", f"{sides[0]}.embedding.tokens.weight"),
        to_all(rf"{prefix}position_embedding\.weight", "positions.weight"),
        to_all(rf"{prefix}embedding_norm\.(weight|bias)", r"norm.\1"),
    )


def stack_rules(prefix: str, side: str, slot: str, sublayers: Sequence[str]) -> tuple[Rule, ...]:
    """Rules for the layers and the final norm of a `TransformerEncoder` or `TransformerDecoder`.

    prefix: start of the tensor names in the checkpoint. side: `encoder` or `decoder`.
    slot: slot of `NormSlots` with the norms: `input` for pre-norm, `residual` for post-norm.
    sublayers: names of the sublayers in the model, in the order in which torch numbers their norms.
    """
    layer, ours, ending = rf"{prefix}layers\.(\d+)\.", rf"{side}.layers.\1.", r"\.(weight|bias)"
    attentions = {"self_attn": "attention", "multihead_attn": "cross_attention"}
    return (
        *(
            Split(layer + rf"{theirs}\.in_proj_{kind}", [f"{ours}{name}.{part}.{kind}" for part in _PARTS])
            for theirs, name in attentions.items()
            for kind in ("weight", "bias")
        ),
        *(
            Rename(layer + rf"{theirs}\.out_proj" + ending, ours + rf"{name}.output.\2")
            for theirs, name in attentions.items()
        ),
        Rename(layer + "linear1" + ending, ours + r"feed_forward.up.\2"),
        Rename(layer + "linear2" + ending, ours + r"feed_forward.down.\2"),
        *(
            Rename(layer + f"norm{number}" + ending, ours + rf"{name}_norms.{slot}.\2")
            for number, name in enumerate(sublayers, start=1)
        ),
        Rename(prefix + "norm" + ending, rf"{side}.final_norm.\1"),
    )
