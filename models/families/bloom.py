"""BLOOM (BigScience 2022, arXiv:2211.05100): pre-norm decoder with ALiBi and a norm after the embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AlibiConfig,
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelHead,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.alibi import bloom_slopes
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from weights.rules import Rename, Rule, Split

_OTHER_NAMES = {"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields({**hf, **{ours: hf[other] for other, ours in _OTHER_NAMES.items() if hf.get(other) is not None}})
    fields.refuse_unless("apply_residual_connection_post_layernorm", False)
    hidden, heads = fields.integer("hidden_size", 64), fields.integer("n_head", 8)
    head_dim = head_width(hidden, heads)
    norm = NormConfig("layer", fields.number("layer_norm_epsilon", 1e-5))
    layer = LayerConfig(
        AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal=True),
        NormSlots(input=norm),
        FeedForwardConfig(4 * hidden, "gelu_tanh"),
        NormSlots(input=norm),
    )
    vocab = fields.integer("vocab_size", 250880)
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=LanguageModelHead(tied=fields.flag("tie_word_embeddings", True)),
        decoder=StackConfig(
            EmbeddingConfig(vocab, norm=norm),
            (layer,) * fields.integer("n_layer", 2),
            final_norm=norm,
            score_bias=AlibiConfig(bloom_slopes(heads)),
        ),
        max_positions=fields.optional_integer("seq_length"),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None and isinstance(model.head, LanguageModelHead)
    heads, tokens = model.decoder.first_attention.num_heads, "decoder.embedding.tokens.weight"
    body, ours = r"(?:transformer\.)?", r"decoder.layers.\1."
    layer = body + r"h\.(\d+)\."
    return (
        Rename(body + r"word_embeddings\.weight", tokens),
        Rename(body + r"word_embeddings_layernorm\.(weight|bias)", r"decoder.embedding.norm.\1"),
        Rename(layer + r"input_layernorm\.(weight|bias)", ours + r"attention_norms.input.\2"),
        *(
            Split(
                layer + rf"self_attention\.query_key_value\.{part}",
                [f"{ours}attention.{name}.{part}" for name in ("query", "key", "value")],
                groups=heads,
            )
            for part in ("weight", "bias")
        ),
        Rename(layer + r"self_attention\.dense\.(weight|bias)", ours + r"attention.output.\2"),
        Rename(layer + r"post_attention_layernorm\.(weight|bias)", ours + r"feed_forward_norms.input.\2"),
        Rename(layer + r"mlp\.dense_h_to_4h\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.dense_4h_to_h\.(weight|bias)", ours + r"feed_forward.down.\2"),
        Rename(body + r"ln_f\.(weight|bias)", r"decoder.final_norm.\1"),
        Rename(r"lm_head\.weight", tokens if model.head.tied else "head.weight"),
    )


FAMILY = decoder_family(
    "bloom",
    "Bloom",
    config,
    rules,
    prefix=r"transformer\.",
)
