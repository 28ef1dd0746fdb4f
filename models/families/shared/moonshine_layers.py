"""Common parts of Moonshine and streaming Moonshine: rules for the decoder, and the longest recording."""

from __future__ import annotations

from models.config import LanguageModelHead, ModelConfig, SamplesEmbeddingConfig
from weights.rules import Rename, Rule, Split

PREFIX = r"model\."
LINEAR = r"\.(weight|bias)"
_LONGEST_SAMPLES = 30 * 16_000
"""Longest recording in samples: 30 s, as in training. `config.json` has no setting for it."""
_NORMS = (
    ("input_layernorm", "attention_norms"),
    ("post_attention_layernorm", "cross_attention_norms"),
    ("final_layernorm", "feed_forward_norms"),
)


def longest_source(embedding: SamplesEmbeddingConfig) -> int:
    """Number of hidden states that the encoder computes for the longest recording, rounded up."""
    return -(-_LONGEST_SAMPLES // embedding.samples_per_token)


def decoder_rules(model: ModelConfig) -> tuple[Rule, ...]:
    """Rules for the decoder and the output head.

    The first matrix of a feed-forward, `fc1`, has the rows of the up matrix, then those of the gate matrix.
    """
    decoder, layer, ours = PREFIX + r"decoder\.", PREFIX + r"decoder\.layers\.(\d+)\.", r"decoder.layers.\1."
    tokens = "decoder.embedding.tokens.weight"
    assert isinstance(model.head, LanguageModelHead)
    return (
        Rename(decoder + r"embed_tokens\.weight", tokens),
        Rename(r"proj_out\.weight", tokens if model.head.tied else "head.weight"),
        Rename(decoder + r"norm\.weight", "decoder.final_norm.weight"),
        *(
            Rename(layer + rf"{theirs}\.{short}_proj{LINEAR}", ours + rf"{name}.{long}.\2")
            for theirs, name in (("self_attn", "attention"), ("encoder_attn", "cross_attention"))
            for short, long in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
        ),
        *(Rename(layer + rf"{theirs}\.weight", ours + rf"{name}.input.weight") for theirs, name in _NORMS),
        Split(layer + r"mlp\.fc1" + LINEAR, [ours + rf"feed_forward.{name}.\2" for name in ("up", "gate")]),
        Rename(layer + r"mlp\.fc2" + LINEAR, ours + r"feed_forward.down.\2"),
    )
