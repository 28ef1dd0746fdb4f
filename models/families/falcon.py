"""Falcon (Almazrouei et al. 2023, arXiv:2311.16867): parallel attention and feed-forward, few key and value heads.

One tensor holds the projections of queries, keys and values, group by group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    KeyAlibiConfig,
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
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config, scaled_max_positions
from weights.rules import Rename, Rule, Split

_CODE = PublishedCode("tiiuae", "falcon", "Falcon")


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, published_code=_CODE)
    hidden, heads = fields.integer("hidden_size", 4544), fields.integer("num_attention_heads", 71)
    head_dim, bias = head_width(hidden, heads), fields.flag("bias", False)
    newer, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    if newer:
        fields.refuse_unless("parallel_attn", True)
        kv_heads = fields.integer("num_kv_heads", heads)
    else:
        fields.refuse_unless("num_ln_in_parallel_attn", 1)
        kv_heads = 1 if fields.flag("multi_query", True) else heads
    fields.refuse_unless("num_ln_in_parallel_attn", 1, 2)
    own_norm = not parallel or (newer and fields.integer("num_ln_in_parallel_attn", 2) == 2)
    norm = NormConfig("layer", fields.number("layer_norm_epsilon", 1e-5))
    rope = None if fields.flag("alibi", False) else rope_config(fields, head_dim)
    layer = LayerConfig(
        attention=AttentionConfig(heads, kv_heads, head_dim, head_dim**-0.5, True, bias, bias, bias, bias, rope),
        attention_norms=NormSlots(input=norm),
        feed_forward=FeedForwardConfig(
            fields.integer("ffn_hidden_size", 4 * hidden), fields.activation("activation", "gelu"), bias=bias
        ),
        feed_forward_norms=NormSlots(input=norm if own_norm else None),
        parallel=parallel,
    )
    lines = None if rope is not None else KeyAlibiConfig(bloom_slopes(heads), head_dim**-0.5)
    vocab, positions = fields.integer("vocab_size", 65024), fields.integer("max_position_embeddings", 2048)
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=LanguageModelHead(tied=fields.flag("tie_word_embeddings", True)),
        decoder=StackConfig(
            EmbeddingConfig(vocab),
            (layer,) * fields.integer("num_hidden_layers", 32),
            final_norm=norm,
            score_bias=lines,
        ),
        max_positions=positions if rope is None else scaled_max_positions(rope, positions),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None and isinstance(model.head, LanguageModelHead)
    attention, tokens = model.decoder.first_attention, "decoder.embedding.tokens.weight"
    shared, head_dim = attention.num_heads // attention.num_kv_heads, attention.head_dim
    layer, ours = r"transformer\.h\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(r"transformer\.word_embeddings\.weight", tokens),
        Rename(layer + r"(?:input_layernorm|ln_attn)\.(weight|bias)", ours + r"attention_norms.input.\2"),
        *(
            Split(
                layer + rf"self_attention\.query_key_value\.{part}",
                [f"{ours}attention.{name}.{part}" for name in ("query", "key", "value")],
                sizes=(shared * head_dim, head_dim, head_dim),
                groups=attention.num_kv_heads,
            )
            for part in ("weight", "bias")
        ),
        Rename(layer + r"self_attention\.dense\.(weight|bias)", ours + r"attention.output.\2"),
        Rename(layer + r"(?:post_attention_layernorm|ln_mlp)\.(weight|bias)", ours + r"feed_forward_norms.input.\2"),
        Rename(layer + r"mlp\.dense_h_to_4h\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.dense_4h_to_h\.(weight|bias)", ours + r"feed_forward.down.\2"),
        Rename(r"transformer\.ln_f\.(weight|bias)", r"decoder.final_norm.\1"),
        Rename(r"lm_head\.weight", tokens if model.head.tied else "head.weight"),
    )


FAMILY = decoder_family(
    "falcon",
    "Falcon",
    config,
    rules,
    prefix=r"transformer\.",
)
