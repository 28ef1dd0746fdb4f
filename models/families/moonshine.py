"""Moonshine (Jeffries et al. 2024, arXiv:2410.15608): speech to text for recordings of up to 30 s, without padding.

The encoder reads audio samples, not a spectrogram. In both stacks rotary positions apply to a part of each head. The
decoder's feed-forward is gated.
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
    NormedWaveformEmbeddingConfig,
    NormSlots,
    RopeConfig,
    StackConfig,
)
from models.families.shared.family import Family
from models.families.shared.fields import Fields, head_width
from models.families.shared.moonshine_layers import LINEAR, PREFIX, decoder_rules, longest_source
from models.families.shared.rope import rope_config
from weights.rules import Rename, Rule

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32768,
    "hidden_size": 288,
    "intermediate_size": 1152,
    "encoder_num_hidden_layers": 6,
    "decoder_num_hidden_layers": 6,
    "encoder_num_attention_heads": 8,
    "decoder_num_attention_heads": 8,
    "encoder_hidden_act": "gelu",
    "decoder_hidden_act": "silu",
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "attention_bias": False,
}
_PARTIAL_ROTARY_FACTOR = 0.9
_NORM = NormConfig("layer", 1e-5, bias=False)
_KERNELS, _STRIDES = (127, 7, 3), (64, 3, 2)


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    fields.refuse_unless("tie_word_embeddings", True)
    hidden_size, heads = fields.integer("hidden_size"), fields.integer("decoder_num_attention_heads")
    # In the published code, both stacks have equally many heads, and each query head has its own key and value head.
    fields.refuse_unless("encoder_num_attention_heads", heads)
    for side in ("encoder", "decoder"):
        fields.refuse_unless(f"{side}_num_key_value_heads", heads)
    rope = rope_config(
        fields, head_width(hidden_size, heads), default_share=_PARTIAL_ROTARY_FACTOR, pairing="interleaved"
    )
    embedding = NormedWaveformEmbeddingConfig((hidden_size, 2 * hidden_size, hidden_size), _KERNELS, _STRIDES)
    encoder, decoder = (_layer(fields, side, rope) for side in ("encoder", "decoder"))
    vocab_size = fields.integer("vocab_size")
    return ModelConfig(
        hidden_size,
        vocab_size,
        LanguageModelHead(tied=True),
        encoder=StackConfig(embedding, (encoder,) * fields.integer("encoder_num_hidden_layers"), final_norm=_NORM),
        decoder=StackConfig(
            EmbeddingConfig(vocab_size), (decoder,) * fields.integer("decoder_num_hidden_layers"), final_norm=_NORM
        ),
        max_positions=fields.integer("max_position_embeddings"),
        max_source_positions=longest_source(embedding),
    )


def _layer(fields: Fields, side: str, rope: RopeConfig) -> LayerConfig:
    is_decoder, norms = side == "decoder", NormSlots(input=_NORM)
    return LayerConfig(
        _attention(fields, rope, causal=is_decoder),
        norms,
        FeedForwardConfig(
            fields.integer("intermediate_size"), fields.activation(f"{side}_hidden_act"), gated=is_decoder
        ),
        norms,
        _attention(fields, None, causal=False) if is_decoder else None,
        norms if is_decoder else NormSlots(),
    )


def _attention(fields: Fields, rope: RopeConfig | None, *, causal: bool) -> AttentionConfig:
    heads, bias = fields.integer("decoder_num_attention_heads"), fields.flag("attention_bias")
    head_dim = head_width(fields.integer("hidden_size"), heads)
    return AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal, bias, bias, bias, False, rope)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    encoder, layer, ours = PREFIX + r"encoder\.", PREFIX + r"encoder\.layers\.(\d+)\.", r"encoder.layers.\1."
    convolutions = "encoder.embedding.convolutions."
    return (
        *(
            Rename(encoder + rf"conv{index + 1}{LINEAR}", rf"{convolutions}{index}.\1")
            for index in range(len(_KERNELS))
        ),
        Rename(encoder + r"groupnorm" + LINEAR, r"encoder.embedding.recording_norm.\1"),
        Rename(encoder + r"layer_norm\.weight", "encoder.final_norm.weight"),
        *(
            Rename(layer + rf"self_attn\.{theirs}_proj{LINEAR}", ours + rf"attention.{name}.\2")
            for theirs, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
        ),
        Rename(layer + r"input_layernorm\.weight", ours + "attention_norms.input.weight"),
        Rename(layer + r"post_attention_layernorm\.weight", ours + "feed_forward_norms.input.weight"),
        Rename(layer + r"mlp\.fc1" + LINEAR, ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.fc2" + LINEAR, ours + r"feed_forward.down.\2"),
        *decoder_rules(model),
    )


FAMILY = Family(
    name="moonshine",
    model_types=("moonshine",),
    architectures={"MoonshineForConditionalGeneration": ("transcribe",)},
    config=config,
    rules=rules,
)
