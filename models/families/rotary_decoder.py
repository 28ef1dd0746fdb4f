"""What LLaMA and its descendants share: RMS pre-norm, rotary positions, grouped queries, gated feed-forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

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
from models.families.fields import Fields, head_width
from models.families.rope_scaling import longest_text
from weights.rules import Drop, Rename, Rule


def rotary_decoder(
    fields: Fields,
    windows: Sequence[int | None],
    num_kv_heads: int,
    max_positions: int,
    qkv_bias: bool = False,
    output_bias: bool = False,
    feed_forward_bias: bool = False,
    norm: NormConfig | None = None,
    slots: Sequence[Literal["input", "output"]] = ("input",),
    query_key_norms: Literal["head", "all"] | None = None,
    default_head_dim: int | None = None,
    default_rope_share: float | None = None,
    feed_forward: FeedForwardConfig | None = None,
    default_tied: bool = False,
) -> ModelConfig:
    """The model of a `config.json`.

    windows: the sliding window of each layer, None for full attention. norm: of every place, an RMS norm unless given.
    slots: where each sublayer has one. query_key_norms: whether queries and keys have one, of each head or of all.
    default_head_dim: where the file does not say; None to share the hidden size evenly. default_rope_share: see
    `Fields.rope`. feed_forward: gated with `intermediate_size` and `hidden_act` unless given.
    """
    hidden, heads = fields.integer("hidden_size", 4096), fields.integer("num_attention_heads", 32)
    head_dim = fields.optional_integer("head_dim") or default_head_dim or head_width(hidden, heads)
    rope = fields.rope(head_dim, default_share=default_rope_share)
    norm = norm or NormConfig("rms", fields.number("rms_norm_eps", 1e-6), bias=False)
    norms = NormSlots(**dict.fromkeys(slots, norm))
    feed_forward = feed_forward or FeedForwardConfig(
        fields.integer("intermediate_size"), fields.activation("hidden_act", "silu"), gated=True, bias=feed_forward_bias
    )

    def layer(window: int | None) -> LayerConfig:
        attention = AttentionConfig(
            num_heads=heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            causal=True,
            query_bias=qkv_bias,
            key_bias=qkv_bias,
            value_bias=qkv_bias,
            output_bias=output_bias,
            rope=rope,
            query_key_norm=None if query_key_norms is None else QueryKeyNorm(norm, query_key_norms),
            window=window,
        )
        return LayerConfig(attention, norms, feed_forward, norms)

    vocab = fields.integer("vocab_size")
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=LanguageModelHead(tied=fields.flag("tie_word_embeddings", default_tied)),
        decoder=StackConfig(EmbeddingConfig(vocab), layers=tuple(layer(window) for window in windows), final_norm=norm),
        max_positions=longest_text(rope, max_positions),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    """The tensors of LLaMA's checkpoints and of those that took over its names.

    One name has two meanings: `post_attention_layernorm` stands behind attention where a family has norms there
    (Gemma 2, OLMo 2), else before the feed-forward.
    """
    assert model.decoder is not None
    behind = model.decoder.layers[0].attention_norms.output is not None
    tokens = "decoder.embedding.tokens.weight"
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(r"model\.embed_tokens\.weight", tokens),
        Rename(layer + r"input_layernorm\.(weight|bias)", ours + r"attention_norms.input.\2"),
        Rename(layer + r"self_attn\.q_proj\.(weight|bias)", ours + r"attention.query.\2"),
        Rename(layer + r"self_attn\.k_proj\.(weight|bias)", ours + r"attention.key.\2"),
        Rename(layer + r"self_attn\.v_proj\.(weight|bias)", ours + r"attention.value.\2"),
        Rename(layer + r"self_attn\.o_proj\.(weight|bias)", ours + r"attention.output.\2"),
        Rename(layer + r"self_attn\.q_norm\.weight", ours + "attention.query_norm.weight"),
        Rename(layer + r"self_attn\.k_norm\.weight", ours + "attention.key_norm.weight"),
        Rename(
            layer + r"post_attention_layernorm\.(weight|bias)",
            ours + ("attention_norms.output" if behind else "feed_forward_norms.input") + r".\2",
        ),
        Rename(layer + r"pre_feedforward_layernorm\.weight", ours + "feed_forward_norms.input.weight"),
        Rename(layer + r"post_feedforward_layernorm\.weight", ours + "feed_forward_norms.output.weight"),
        Rename(layer + r"mlp\.(gate|up|down)_proj\.(weight|bias)", ours + r"feed_forward.\2.\3"),
        Rename(r"model\.norm\.(weight|bias)", r"decoder.final_norm.\1"),
        Rename(r"lm_head\.weight", tokens if tied else "head.weight"),
        Drop(layer + r"self_attn\.rotary_emb\.inv_freq"),
    )
