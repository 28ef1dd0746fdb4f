"""Persimmon (Adept 2023): pre-norm decoder with normed queries and keys, and squared ReLU in the feed-forward.

Half of each head rotates. One tensor holds queries, keys and values, head by head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelHead,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    QueryKeyNorm,
    StackConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.rope import rope_config, scaled_max_positions
from weights.rules import Rename, Rule, Split


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    hidden, heads = fields.integer("hidden_size", 4096), fields.integer("num_attention_heads", 64)
    head_dim, norm = head_width(hidden, heads), NormConfig("layer", fields.number("layer_norm_eps", 1e-5))
    rope = rope_config(fields, head_dim, default_share=0.5)
    layer = LayerConfig(
        AttentionConfig(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            causal=True,
            rope=rope,
            query_key_norm=QueryKeyNorm(norm) if fields.flag("qk_layernorm", True) else None,
        ),
        NormSlots(input=norm),
        FeedForwardConfig(fields.integer("intermediate_size", 16384), fields.activation("hidden_act", "relu2")),
        NormSlots(input=norm),
    )
    vocab = fields.integer("vocab_size", 262144)
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=LanguageModelHead(tied=fields.flag("tie_word_embeddings", False)),
        decoder=StackConfig(
            EmbeddingConfig(vocab), (layer,) * fields.integer("num_hidden_layers", 36), final_norm=norm
        ),
        max_positions=scaled_max_positions(rope, fields.integer("max_position_embeddings", 16384)),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None and isinstance(model.head, LanguageModelHead)
    heads, tokens = model.decoder.layers[0].attention.num_heads, "decoder.embedding.tokens.weight"
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(r"model\.embed_tokens\.weight", tokens),
        Rename(layer + r"input_layernorm\.(weight|bias)", ours + r"attention_norms.input.\2"),
        *(
            Split(
                layer + rf"self_attn\.query_key_value\.{part}",
                [f"{ours}attention.{name}.{part}" for name in ("query", "key", "value")],
                groups=heads,
            )
            for part in ("weight", "bias")
        ),
        Rename(layer + r"self_attn\.dense\.(weight|bias)", ours + r"attention.output.\2"),
        Rename(layer + r"self_attn\.q_layernorm\.(weight|bias)", ours + r"attention.query_norm.\2"),
        Rename(layer + r"self_attn\.k_layernorm\.(weight|bias)", ours + r"attention.key_norm.\2"),
        Rename(layer + r"post_attention_layernorm\.(weight|bias)", ours + r"feed_forward_norms.input.\2"),
        Rename(layer + r"mlp\.dense_h_to_4h\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.dense_4h_to_h\.(weight|bias)", ours + r"feed_forward.down.\2"),
        Rename(r"model\.final_layernorm\.(weight|bias)", r"decoder.final_norm.\1"),
        Rename(r"lm_head\.weight", tokens if model.head.tied else "head.weight"),
    )


FAMILY = decoder_family(
    "persimmon",
    "Persimmon",
    config,
    rules,
    answers=False,
)
