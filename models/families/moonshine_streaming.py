"""Streaming Moonshine (Useful Sensors 2026): an encoder with narrow windows, and Moonshine's decoder.

The encoder has no positions. Learned positions are added to its output before the decoder reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    ConfigError,
    EmbeddingConfig,
    FeedForwardConfig,
    FramedWaveformEmbeddingConfig,
    LanguageModelHead,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.config.samples import SAMPLE_RATE
from models.config.sparse_attention import BandedAttentionConfig
from models.families.shared.family import Family
from models.families.shared.fields import Fields, head_width
from models.families.shared.moonshine_layers import LINEAR, PREFIX, decoder_rules, longest_source
from models.families.shared.rope import rope_config
from weights.rules import Rename, Rule

_SIZES: Mapping[str, Any] = {
    "hidden_size": 320,
    "intermediate_size": 1280,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "max_position_embeddings": 4096,
    "attention_bias": False,
}
_DEFAULTS: Mapping[str, Any] = {**_SIZES, "vocab_size": 32768, "hidden_act": "silu", "rope_theta": 10000.0}
_ENCODER_DEFAULTS: Mapping[str, Any] = {
    **_SIZES,
    "hidden_act": "gelu",
    "frame_ms": 5.0,
}
_WINDOWS = [[16, 4], [16, 4], [16, 0], [16, 0], [16, 4], [16, 4]]
_PARTIAL_ROTARY_FACTOR = 0.8
_NORM = NormConfig("layer", 1e-5, bias=False)
_ENCODER_NORM = NormConfig("layer_from_one", 1e-5)


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    inner = fields.raw("encoder_config") or {}
    if not isinstance(inner, dict):
        raise ConfigError("'encoder_config' must be an object")
    encoder = Fields(inner, defaults=_ENCODER_DEFAULTS)
    hidden_size, source_size = fields.integer("hidden_size"), encoder.integer("hidden_size")
    positions, vocab_size = fields.integer("max_position_embeddings"), fields.integer("vocab_size")
    embedding = _embedding(encoder)
    is_projected = source_size != hidden_size
    return ModelConfig(
        hidden_size,
        vocab_size,
        LanguageModelHead(tied=fields.flag("tie_word_embeddings", False)),
        encoder=StackConfig(
            embedding,
            tuple(_encoder_layers(encoder)),
            final_norm=_ENCODER_NORM,
            output_width=hidden_size if is_projected else None,
            final_positions=LearnedPositions(positions),
        ),
        decoder=StackConfig(
            EmbeddingConfig(vocab_size),
            (_decoder_layer(fields),) * fields.integer("num_hidden_layers"),
            final_norm=_NORM,
        ),
        max_positions=positions,
        max_source_positions=min(longest_source(embedding), positions),
        source_size=source_size if is_projected else None,
    )


def _embedding(encoder: Fields) -> FramedWaveformEmbeddingConfig:
    encoder.refuse_unless("sample_rate", SAMPLE_RATE)
    frame_samples = round(SAMPLE_RATE * encoder.positive("frame_ms") / 1000)
    return FramedWaveformEmbeddingConfig(frame_samples, encoder.integer("hidden_size"))


def _encoder_layers(fields: Fields) -> list[LayerConfig]:
    count = fields.integer("num_hidden_layers")
    windows = fields.raw("sliding_windows") or _WINDOWS
    if not isinstance(windows, list | tuple) or len(windows) != count:
        raise ConfigError(f"'sliding_windows' must have {count} entries, one for each layer")
    norms = NormSlots(input=_ENCODER_NORM)
    feed_forward = FeedForwardConfig(fields.integer("intermediate_size"), fields.activation("hidden_act"))
    plain, bias = _attention(fields, causal=False), fields.flag("attention_bias")
    found = []
    for window in windows:
        sides = Fields({"sliding_windows": window}).integers("sliding_windows") or []
        if len(sides) != 2 or max(sides) < 2 or sides[0] < 1:
            raise ConfigError("'sliding_windows' must have the widths before and after a position, for example [16, 4]")
        settings = {**vars(plain), "window": max(sides[1], 1), "back_window": sides[0], "output_bias": bias}
        found.append(LayerConfig(BandedAttentionConfig(**settings), norms, feed_forward, norms))
    return found


def _decoder_layer(fields: Fields) -> LayerConfig:
    norms = NormSlots(input=_NORM)
    return LayerConfig(
        _attention(fields, causal=True),
        norms,
        FeedForwardConfig(fields.integer("intermediate_size"), fields.activation("hidden_act"), gated=True),
        norms,
        _attention(fields, causal=False),
        norms,
    )


def _attention(fields: Fields, *, causal: bool) -> AttentionConfig:
    """Full attention. Only causal attention has rotary positions, on a part of each head."""
    heads, bias = fields.integer("num_attention_heads"), fields.flag("attention_bias")
    fields.refuse_unless("num_key_value_heads", heads)
    head_dim = fields.optional_integer("head_dim") or head_width(fields.integer("hidden_size"), heads)
    rope = None
    if causal:
        rope = rope_config(fields, head_dim, default_share=_PARTIAL_ROTARY_FACTOR, pairing="interleaved")
    return AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal, bias, bias, bias, False, rope)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    encoder, layer, ours = PREFIX + r"encoder\.", PREFIX + r"encoder\.layers\.(\d+)\.", r"encoder.layers.\1."
    embedder, embedding = encoder + r"embedder\.", "encoder.embedding."
    return (
        Rename(embedder + r"comp\.log_k", embedding + "log_scale"),
        Rename(embedder + r"linear\.weight", embedding + "frames.weight"),
        *(Rename(embedder + rf"conv{index + 1}{LINEAR}", rf"{embedding}convolutions.{index}.\1") for index in range(2)),
        Rename(encoder + r"final_norm\.gamma", "encoder.final_norm.weight"),
        *(
            Rename(layer + rf"self_attn\.{theirs}_proj{LINEAR}", ours + rf"attention.{name}.\2")
            for theirs, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
        ),
        Rename(layer + r"input_layernorm\.gamma", ours + "attention_norms.input.weight"),
        Rename(layer + r"post_attention_layernorm\.gamma", ours + "feed_forward_norms.input.weight"),
        Rename(layer + r"mlp\.fc1" + LINEAR, ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.fc2" + LINEAR, ours + r"feed_forward.down.\2"),
        Rename(PREFIX + r"decoder\.pos_emb\.weight", "encoder.final_positions.weight"),
        Rename(PREFIX + r"decoder\.proj\.weight", "encoder.output_projection.weight"),
        *decoder_rules(model),
    )


FAMILY = Family(
    name="moonshine_streaming",
    model_types=("moonshine_streaming",),
    architectures={"MoonshineStreamingForConditionalGeneration": ("transcribe",)},
    config=config,
    rules=rules,
)
