"""Phi 1, 1.5 and 2 (Gunasekar et al. 2023, arXiv:2306.11644; Li et al. 2023, arXiv:2309.05463).

Parallel attention and feed-forward after one norm, biases everywhere, and heads that rotate in part.
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
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config, scaled_max_positions
from weights.rules import Drop, Rename, Rule

_CODE = PublishedCode("microsoft", "phi", "Phi")


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, published_code=_CODE)
    hidden, heads = fields.integer("hidden_size", 2048), fields.integer("num_attention_heads", 32)
    head_dim = head_width(hidden, heads)
    rope = rope_config(fields, head_dim, default_share=0.5)
    norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-5))
    layer = LayerConfig(
        attention=AttentionConfig(
            num_heads=heads,
            num_kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            scale=head_dim**-0.5,
            causal=True,
            rope=rope,
            query_key_norm=QueryKeyNorm(norm) if fields.flag("qk_layernorm", False) else None,
        ),
        attention_norms=NormSlots(input=norm),
        feed_forward=FeedForwardConfig(
            fields.integer("intermediate_size", 8192), fields.activation("hidden_act", "gelu_new")
        ),
        feed_forward_norms=NormSlots(),
        parallel=True,
    )
    vocab = fields.integer("vocab_size", 51200)
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=LanguageModelHead(tied=fields.flag("tie_word_embeddings", False), bias=True),
        decoder=StackConfig(
            EmbeddingConfig(vocab), (layer,) * fields.integer("num_hidden_layers", 24), final_norm=norm
        ),
        max_positions=scaled_max_positions(rope, fields.integer("max_position_embeddings", 2048)),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    tokens = "decoder.embedding.tokens.weight"
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(r"model\.embed_tokens\.weight", tokens),
        Rename(layer + r"input_layernorm\.(weight|bias)", ours + r"attention_norms.input.\2"),
        Rename(layer + r"self_attn\.q_proj\.(weight|bias)", ours + r"attention.query.\2"),
        Rename(layer + r"self_attn\.k_proj\.(weight|bias)", ours + r"attention.key.\2"),
        Rename(layer + r"self_attn\.v_proj\.(weight|bias)", ours + r"attention.value.\2"),
        Rename(layer + r"self_attn\.dense\.(weight|bias)", ours + r"attention.output.\2"),
        Rename(layer + r"self_attn\.q_layernorm\.(weight|bias)", ours + r"attention.query_norm.\2"),
        Rename(layer + r"self_attn\.k_layernorm\.(weight|bias)", ours + r"attention.key_norm.\2"),
        Rename(layer + r"mlp\.fc1\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.fc2\.(weight|bias)", ours + r"feed_forward.down.\2"),
        Rename(r"model\.final_layernorm\.(weight|bias)", r"decoder.final_norm.\1"),
        Rename(r"lm_head\.weight", tokens if tied else "head.weight"),
        Rename(r"lm_head\.bias", "head.bias"),
        Drop(layer + r"self_attn\.rotary_emb\.inv_freq"),
    )


FAMILY = decoder_family(
    "phi",
    "Phi",
    config,
    rules,
    answers=False,
)
