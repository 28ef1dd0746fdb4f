"""Rules for the tensor names of BART and related encoder-decoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from models.config import ModelConfig
from weights.rules import Drop, Rename, Rule, Slice

TOKENS = "encoder.embedding.tokens.weight"
PREFIX = r"(?:model\.)?"
"""Regular expression for the prefix of all tensor names outside the head. Checkpoints without a head have no prefix."""
_LINEAR = r"\.(weight|bias)"


def layer_rules(prefix: str = PREFIX, norms: Literal["input", "residual"] = "residual") -> tuple[Rule, ...]:
    """Rules for the layers of encoder and decoder.

    prefix: regular expression for the prefix of tensor names.
    norms: slot of `NormSlots` with the norms: `input` for pre-norm, `residual` for post-norm.
    """
    layer, ours = prefix + r"(encoder|decoder)\.layers\.(\d+)\.", r"\1.layers.\2."
    return (
        *(
            Rename(layer + rf"{theirs}\.{short}_proj{_LINEAR}", ours + rf"{name}.{long}.\3")
            for theirs, name in (("self_attn", "attention"), ("encoder_attn", "cross_attention"))
            for short, long in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output"))
        ),
        Rename(layer + r"self_attn_layer_norm" + _LINEAR, ours + rf"attention_norms.{norms}.\3"),
        Rename(layer + r"encoder_attn_layer_norm" + _LINEAR, ours + rf"cross_attention_norms.{norms}.\3"),
        Rename(layer + r"fc1" + _LINEAR, ours + r"feed_forward.up.\3"),
        Rename(layer + r"fc2" + _LINEAR, ours + r"feed_forward.down.\3"),
        Rename(layer + r"final_layer_norm" + _LINEAR, ours + rf"feed_forward_norms.{norms}.\3"),
    )


def final_norm_rules(prefix: str = PREFIX) -> tuple[Rule, ...]:
    """Rules for the norms after the last layer of encoder and decoder."""
    return (Rename(prefix + r"(encoder|decoder)\.layer_norm" + _LINEAR, r"\1.final_norm.\2"),)


def token_rules(prefix: str = PREFIX) -> tuple[Rule, ...]:
    """Rules for the table of token embeddings, which encoder, decoder and logits share."""
    return (
        Rename(rf"{prefix}shared\.weight", TOKENS),
        Rename(rf"{prefix}(?:encoder|decoder)\.embed_tokens\.weight", TOKENS),
        Rename(r"lm_head\.weight", TOKENS),
    )


def head_rules() -> tuple[Rule, ...]:
    """Rules for the bias of the logits, the classification head and the question answering head.

    Unused version numbers are dropped.
    """
    return (
        Rule("final_logits_bias", ("head.bias",), (_flatten,)),
        Rename(r"classification_head\.dense" + _LINEAR, r"head.dense.\1"),
        Rename(r"(?:classification_head\.out_proj|qa_outputs)" + _LINEAR, r"head.output.\1"),
        Drop(rf"{PREFIX}(?:encoder|decoder)\.version"),
    )


def post_norm_rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    """Rules for all tensors of a checkpoint like BART: post-norm, with learned positions that start at row 2."""
    stack = rf"{PREFIX}(encoder|decoder)\."
    return (
        *token_rules(),
        Slice(stack + r"embed_positions\.weight", r"\1.embedding.positions.weight", start=2),
        Rename(stack + r"layernorm_embedding\.(weight|bias)", r"\1.embedding.norm.\2"),
        *layer_rules(),
        *head_rules(),
    )


def pre_norm_rules() -> tuple[Rule, ...]:
    """Rules for all tensors of a pre-norm checkpoint except positions."""
    return (*token_rules(), *final_norm_rules(), *layer_rules(norms="input"), *head_rules())


def _flatten(tensors: Sequence[Any]) -> Sequence[Any]:
    """Reshape the bias of the logits from [1, vocab] to [vocab]."""
    return [tensor.flatten() for tensor in tensors]
