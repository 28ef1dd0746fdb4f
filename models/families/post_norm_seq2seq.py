"""What BART and Marian share: an encoder and a decoder that norm each sum, over one token table or two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.fields import Fields, head_width
from weights.rules import Drop, Rename, Rule

_NORM = NormConfig("layer", 1e-5)
_LATER_VARIANTS = ("normalize_before", "add_final_layer_norm", "add_bias_logits")
"""Switches of other descendants of BART; published BART and Marian checkpoints say false to all."""


def seq2seq_stack(fields: Fields, side: str, embedding: EmbeddingConfig) -> StackConfig:
    """One of the two stacks; side: `encoder` or `decoder`, the prefix of its settings."""
    hidden = fields.integer("d_model", 1024)
    heads = fields.integer(f"{side}_attention_heads", 16)
    head_dim = head_width(hidden, heads)
    after = NormSlots(residual=_NORM)

    def attention(causal: bool) -> AttentionConfig:
        return AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal)

    decoder = side == "decoder"
    layer = LayerConfig(
        attention=attention(causal=decoder),
        attention_norms=after,
        feed_forward=FeedForwardConfig(
            fields.integer(f"{side}_ffn_dim", 4096), fields.activation("activation_function", "gelu")
        ),
        feed_forward_norms=after,
        cross_attention=attention(causal=False) if decoder else None,
        cross_attention_norms=after if decoder else NormSlots(),
    )
    return StackConfig(embedding, (layer,) * fields.integer(f"{side}_layers", 12))


def refuse_later_variants(fields: Fields) -> None:
    """Raises ConfigError for settings that move or add norms and biases."""
    for name in _LATER_VARIANTS:
        fields.refuse_unless(name, False)


def embedding_scale(fields: Fields) -> float:
    """What token embeddings are multiplied by."""
    return float(fields.integer("d_model", 1024) ** 0.5) if fields.flag("scale_embedding", False) else 1.0


def layer_rules(prefix: str = r"(?:model\.)?") -> Sequence[Rule]:
    """The layers of both stacks, the bias of the logits, and what carries nothing. prefix: of their names."""
    layer, ours = prefix + r"(encoder|decoder)\.layers\.(\d+)\.", r"\1.layers.\2."
    linear = r"\.(weight|bias)"
    return (
        *(
            Rename(layer + rf"{theirs}\.{short}_proj{linear}", ours + rf"{name}.{long}.\3")
            for theirs, name in (("self_attn", "attention"), ("encoder_attn", "cross_attention"))
            for short, long in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output"))
        ),
        Rename(layer + r"self_attn_layer_norm" + linear, ours + r"attention_norms.residual.\3"),
        Rename(layer + r"encoder_attn_layer_norm" + linear, ours + r"cross_attention_norms.residual.\3"),
        Rename(layer + r"fc1" + linear, ours + r"feed_forward.up.\3"),
        Rename(layer + r"fc2" + linear, ours + r"feed_forward.down.\3"),
        Rename(layer + r"final_layer_norm" + linear, ours + r"feed_forward_norms.residual.\3"),
        Rule("final_logits_bias", ("head.bias",), (_flatten,)),
        Rename(r"qa_outputs" + linear, r"head.output.\1"),
        Drop(r"(?:model\.)?(?:encoder|decoder)\.version"),
    )


def _flatten(tensors: Sequence[Any]) -> Sequence[Any]:
    """[1, vocab] to [vocab]."""
    return [tensor.flatten() for tensor in tensors]
