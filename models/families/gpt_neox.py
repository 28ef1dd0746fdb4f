"""GPT-NeoX (Black et al. 2022, arXiv:2204.06745) and Pythia: parallel attention and feed-forward.

A part of each head rotates. One tensor holds queries, keys and values, head by head.
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
    StackConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.rope import rope_config, scaled_max_positions
from weights.rules import Drop, Rename, Rule, Split


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    # Before transformers 5, this family had its own names for these two settings.
    older = {"rope_theta": hf.get("rotary_emb_base"), "partial_rotary_factor": hf.get("rotary_pct")}
    fields = Fields({**hf, **{name: value for name, value in older.items() if value is not None}})
    hidden, heads = fields.integer("hidden_size", 6144), fields.integer("num_attention_heads", 64)
    head_dim = head_width(hidden, heads)
    bias = fields.flag("attention_bias", True)
    rope = rope_config(fields, head_dim, default_share=0.25)
    norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-5))
    layer = LayerConfig(
        attention=AttentionConfig(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            causal=True,
            query_bias=bias,
            key_bias=bias,
            value_bias=bias,
            output_bias=bias,
            rope=rope,
        ),
        attention_norms=NormSlots(input=norm),
        feed_forward=FeedForwardConfig(
            fields.integer("intermediate_size", 24576), fields.activation("hidden_act", "gelu")
        ),
        feed_forward_norms=NormSlots(input=norm),
        parallel=fields.flag("use_parallel_residual", True),
    )
    vocab = fields.integer("vocab_size", 50432)
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=LanguageModelHead(tied=fields.flag("tie_word_embeddings", False)),
        decoder=StackConfig(
            EmbeddingConfig(vocab), (layer,) * fields.integer("num_hidden_layers", 44), final_norm=norm
        ),
        max_positions=scaled_max_positions(rope, fields.integer("max_position_embeddings", 2048)),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None and isinstance(model.head, LanguageModelHead)
    heads, tokens = model.decoder.first_attention.num_heads, "decoder.embedding.tokens.weight"
    layer, ours = r"gpt_neox\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(r"gpt_neox\.embed_in\.weight", tokens),
        Rename(layer + r"input_layernorm\.(weight|bias)", ours + r"attention_norms.input.\2"),
        *(
            Split(
                layer + rf"attention\.query_key_value\.{part}",
                [f"{ours}attention.{name}.{part}" for name in ("query", "key", "value")],
                groups=heads,
            )
            for part in ("weight", "bias")
        ),
        Drop(layer + r"attention\.(?:bias|masked_bias|rotary_emb\.inv_freq)"),
        Rename(layer + r"attention\.dense\.(weight|bias)", ours + r"attention.output.\2"),
        Rename(layer + r"post_attention_layernorm\.(weight|bias)", ours + r"feed_forward_norms.input.\2"),
        Rename(layer + r"mlp\.dense_h_to_4h\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.dense_4h_to_h\.(weight|bias)", ours + r"feed_forward.down.\2"),
        Rename(r"gpt_neox\.final_layer_norm\.(weight|bias)", r"decoder.final_norm.\1"),
        Rename(r"embed_out\.weight", tokens if model.head.tied else "head.weight"),
    )


FAMILY = decoder_family(
    "gpt_neox",
    "GPTNeoX",
    config,
    rules,
    prefix=r"gpt_neox\.",
)
