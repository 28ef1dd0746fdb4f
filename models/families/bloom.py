"""BLOOM (BigScience 2022, arXiv:2211.05100): pre-norm decoder with ALiBi. A norm follows the embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AlibiConfig,
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.alibi import bloom_slopes
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.gguf import GgufFamily, Settings, layer_eps
from models.families.shared.language_model import language_model, token_rules
from models.families.shared.megatron_layers import megatron_layer_rules
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule

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
    decoder = StackConfig(
        EmbeddingConfig(fields.integer("vocab_size", 250880), norm=norm),
        (layer,) * fields.integer("n_layer", 2),
        final_norm=norm,
        score_bias=AlibiConfig(bloom_slopes(heads)),
    )
    return language_model(fields, hidden, decoder, fields.optional_integer("seq_length"), default_tied=True)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    body = r"(?:transformer\.)?"
    return (
        *token_rules(model, body + "word_embeddings"),
        Rename(body + r"word_embeddings_layernorm\.(weight|bias)", r"decoder.embedding.norm.\1"),
        *megatron_layer_rules(body + r"h\.(\d+)\.", "self_attention", model.decoder.first_attention),
        Rename(body + r"ln_f\.(weight|bias)", r"decoder.final_norm.\1"),
    )


def gguf_settings(of: Metadata) -> Settings:
    return {
        "model_type": "bloom",
        "vocab_size": of.rows("token_embd.weight"),
        "hidden_size": of.integer("embedding_length"),
        "n_layer": of.layers,
        "n_head": of.integer("attention.head_count"),
        "seq_length": of.integer("context_length"),
        "layer_norm_epsilon": layer_eps(of),
        "tie_word_embeddings": not of.has("output.weight"),
    }


FAMILY = decoder_family(
    "bloom",
    "Bloom",
    config,
    rules,
    prefix=r"transformer\.",
    gguf=GgufFamily({"bloom": gguf_settings}),
)
