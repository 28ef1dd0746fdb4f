"""GPT-2 (Radford et al. 2019): pre-norm decoder with learned positions.

One tensor holds the projections of queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.gguf import GgufFamily, Settings, layer_eps
from models.families.shared.gpt_layers import layer_rules
from models.families.shared.language_model import language_model, token_rules
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    fields.refuse_unless("add_cross_attention", False)
    hidden, heads = fields.integer("n_embd", 768), fields.integer("n_head", 12)
    head_dim = head_width(hidden, heads)
    positions = fields.integer("n_positions", fields.integer("n_ctx", 1024))
    norm = NormConfig("layer", fields.number("layer_norm_epsilon", 1e-5))
    scale = head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
    falling = fields.flag("scale_attn_by_inverse_layer_idx", False)
    # `reorder_and_upcast_attn` only affects rounding in half precision. The softmax is always float32 here.
    fields.flag("reorder_and_upcast_attn", False)

    def layer(index: int) -> LayerConfig:
        return LayerConfig(
            AttentionConfig(heads, heads, head_dim, scale / (index + 1) if falling else scale, causal=True),
            NormSlots(input=norm),
            FeedForwardConfig(
                fields.integer("n_inner", 4 * hidden), fields.activation("activation_function", "gelu_new")
            ),
            NormSlots(input=norm),
        )

    embedding = EmbeddingConfig(fields.integer("vocab_size", 50257), positions=LearnedPositions(positions))
    layers = tuple(layer(index) for index in range(fields.integer("n_layer", 12)))
    decoder = StackConfig(embedding, layers, final_norm=norm)
    return language_model(fields, hidden, decoder, positions, default_tied=True)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        *token_rules(model, r"(?:transformer\.)?wte"),
        Rename(r"(?:transformer\.)?wpe\.weight", "decoder.embedding.positions.weight"),
        *layer_rules("input"),
        Rename(r"(?:transformer\.)?ln_f\.(weight|bias)", r"decoder.final_norm.\1"),
    )


def gguf_settings(of: Metadata) -> Settings:
    return {
        "model_type": "gpt2",
        "vocab_size": of.rows("token_embd.weight"),
        "n_embd": of.integer("embedding_length"),
        "n_layer": of.integer("block_count"),
        "n_head": of.integer("attention.head_count"),
        "n_inner": of.integer("feed_forward_length"),
        "n_positions": of.rows("position_embd.weight"),
        "layer_norm_epsilon": layer_eps(of),
        "tie_word_embeddings": not of.has("output.weight"),
    }


FAMILY = decoder_family(
    "gpt2",
    "GPT2",
    config,
    rules,
    generating=("GPT2LMHeadModel",),
    prefix=r"transformer\.",
    gguf=GgufFamily({"gpt2": gguf_settings}),
)
