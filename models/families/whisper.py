"""Whisper (Radford et al. 2022, arXiv:2212.04356): speech to text, with the language and times of what was said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    ConvolutionalEmbeddingConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelHead,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.family import Family
from models.families.fields import Fields, head_width
from models.generation_defaults import GenerationDefaults
from weights.rules import Rename, Rule

_NORM = NormConfig("layer", 1e-5)
_BEFORE = NormSlots(input=_NORM)


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    fields.refuse_unless("tie_word_embeddings", True)
    # Published checkpoints say false, and the published code reads the setting and does nothing with it.
    fields.refuse_unless("scale_embedding", False)
    vocab, width = fields.integer("vocab_size", 51865), fields.integer("d_model", 384)
    heard, written = fields.integer("max_source_positions", 1500), fields.integer("max_target_positions", 448)
    return ModelConfig(
        hidden_size=width,
        vocab_size=vocab,
        head=LanguageModelHead(tied=True),
        encoder=_stack(fields, "encoder", ConvolutionalEmbeddingConfig(fields.integer("num_mel_bins", 80), heard)),
        decoder=_stack(fields, "decoder", EmbeddingConfig(vocab, positions=LearnedPositions(written))),
        max_positions=written,
        max_source_positions=heard,
    )


def _stack(fields: Fields, side: str, embedding: EmbeddingConfig | ConvolutionalEmbeddingConfig) -> StackConfig:
    """One of the two stacks; side: `encoder` or `decoder`, the prefix of its settings."""
    heads = fields.integer(f"{side}_attention_heads", 6)
    head_dim = head_width(fields.integer("d_model", 384), heads)

    def attention(causal: bool) -> AttentionConfig:
        return AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal, key_bias=False)

    decoder = side == "decoder"
    layer = LayerConfig(
        attention=attention(causal=decoder),
        attention_norms=_BEFORE,
        feed_forward=FeedForwardConfig(
            fields.integer(f"{side}_ffn_dim", 1536), fields.activation("activation_function", "gelu")
        ),
        feed_forward_norms=_BEFORE,
        cross_attention=attention(causal=False) if decoder else None,
        cross_attention_norms=_BEFORE if decoder else NormSlots(),
    )
    return StackConfig(embedding, (layer,) * fields.integer(f"{side}_layers", 4), final_norm=_NORM)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    stack, linear = r"model\.(encoder|decoder)\.", r"\.(weight|bias)"
    layer, ours = stack + r"layers\.(\d+)\.", r"\1.layers.\2."
    return (
        Rename(r"model\.encoder\.conv([12])" + linear, r"encoder.embedding.convolution_\1.\2"),
        Rename(r"model\.decoder\.embed_tokens\.weight", "decoder.embedding.tokens.weight"),
        Rename(r"proj_out\.weight", "decoder.embedding.tokens.weight"),
        Rename(stack + r"embed_positions\.weight", r"\1.embedding.positions.weight"),
        Rename(stack + r"layer_norm" + linear, r"\1.final_norm.\2"),
        *(
            Rename(layer + rf"{theirs}\.{short}_proj{linear}", ours + rf"{name}.{long}.\3")
            for theirs, name in (("self_attn", "attention"), ("encoder_attn", "cross_attention"))
            for short, long in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output"))
        ),
        Rename(layer + r"self_attn_layer_norm" + linear, ours + r"attention_norms.input.\3"),
        Rename(layer + r"encoder_attn_layer_norm" + linear, ours + r"cross_attention_norms.input.\3"),
        Rename(layer + r"fc1" + linear, ours + r"feed_forward.up.\3"),
        Rename(layer + r"fc2" + linear, ours + r"feed_forward.down.\3"),
        Rename(layer + r"final_layer_norm" + linear, ours + r"feed_forward_norms.input.\3"),
    )


FAMILY = Family(
    name="whisper",
    model_types=("whisper",),
    architectures={"WhisperForConditionalGeneration": ("transcribe",)},
    config=config,
    rules=rules,
    generation=GenerationDefaults(end_token_ids=(50257,), pad_token_id=50256, decoder_start_token_ids=(50258,)),
)
