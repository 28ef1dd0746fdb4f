"""ModernBERT decoders (Weller et al. 2025, arXiv:2507.11412, Ettin): ModernBERT with causal attention.

A dense layer and a norm precede the logits, as in the masked language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    ClassificationHead,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    HeadTransform,
    LanguageModelHead,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    PoolingHead,
    StackConfig,
)
from models.families.shared.bert_rules import linear, norm
from models.families.shared.family import Family
from models.families.shared.fields import Fields, head_width
from models.families.shared.modernbert_layers import layer_rope, layer_windows
from models.families.shared.rope import scaled_max_positions
from weights.rules import Drop, Rename, Rule, Split

_BODY, _CLASSES = "ModernBertDecoderModel", "ModernBertDecoderForSequenceClassification"
_TOKENS = "decoder.embedding.tokens.weight"


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    fields.refuse_unless("is_causal", True)
    hidden, vocab = fields.integer("hidden_size", 768), fields.integer("vocab_size", 50368)
    num_layers, heads = fields.integer("num_hidden_layers", 22), fields.integer("num_attention_heads", 12)
    head_dim, bias = head_width(hidden, heads), fields.flag("attention_bias", False)
    layer_norm = NormConfig("layer", fields.number("norm_eps", 1e-5), fields.flag("norm_bias", False))
    global_rope = layer_rope(hf, head_dim, "full_attention", "global_rope_theta", 160_000.0)
    local_rope = layer_rope(hf, head_dim, "sliding_attention", "local_rope_theta", 10_000.0)
    feed_forward = FeedForwardConfig(
        fields.integer("intermediate_size", 1152),
        fields.activation("hidden_activation", "gelu"),
        gated=True,
        bias=fields.flag("mlp_bias", False),
    )

    def layer(index: int, window: int | None) -> LayerConfig:
        attention = AttentionConfig(
            *(heads, heads, head_dim, head_dim**-0.5, True, bias, bias, bias, bias),
            rope=global_rope if window is None else local_rope,
            window=window,
        )
        before = NormSlots(input=layer_norm)
        return LayerConfig(attention, before if index else NormSlots(), feed_forward, before)

    windows = layer_windows(fields, num_layers, causal=True)
    positions = fields.integer("max_position_embeddings", 8192)
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=_head(fields, architecture, layer_norm),
        decoder=StackConfig(
            EmbeddingConfig(vocab, norm=layer_norm),
            tuple(layer(index, window) for index, window in enumerate(windows)),
            final_norm=layer_norm,
        ),
        max_positions=min(scaled_max_positions(global_rope, positions), scaled_max_positions(local_rope, positions)),
    )


def _head(fields: Fields, architecture: str, norm: NormConfig) -> HeadConfig:
    activation, bias = fields.activation("classifier_activation", "gelu"), fields.flag("classifier_bias", False)
    if architecture == _BODY:
        return PoolingHead()
    if architecture == _CLASSES:
        return ClassificationHead(
            fields.labels(),
            dense=activation,
            pool="unpadded",
            bias=bias,
            dense_bias=bias,
            norm=norm,
            pad_token_id=fields.integer("pad_token_id", 50283, least=0),
        )
    return LanguageModelHead(
        tied=fields.flag("tie_word_embeddings", True),
        bias=fields.flag("decoder_bias", True),
        transform=HeadTransform(activation, norm, bias),
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    prefix, ours = r"(?:model\.)?", r"decoder.layers.\1."
    layer = rf"{prefix}layers\.(\d+)\."
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    generates = isinstance(model.head, LanguageModelHead)
    head = "lm_head" if generates else "head"
    unused = () if generates else (Drop(r"lm_head\..*"), Drop(r"decoder\.(?:weight|bias)"))
    return (
        *unused,
        Rename(rf"{prefix}embeddings\.tok_embeddings\.weight", _TOKENS),
        *norm(rf"{prefix}embeddings\.norm", "decoder.embedding.norm"),
        *(
            linear(rf"{layer}attn\.{theirs}_proj", f"{ours}attention.{name}")
            for theirs, name in (("q", "query"), ("k", "key"), ("v", "value"))
        ),
        linear(rf"{layer}attn\.Wo", f"{ours}attention.output"),
        *norm(rf"{layer}attn_norm", f"{ours}attention_norms.input"),
        *(
            Split(rf"{layer}mlp\.Wi\.{kind}", [f"{ours}feed_forward.{part}.{kind}" for part in ("gate", "up")])
            for kind in ("weight", "bias")
        ),
        linear(rf"{layer}mlp\.Wo", f"{ours}feed_forward.down"),
        *norm(rf"{layer}mlp_norm", f"{ours}feed_forward_norms.input"),
        *norm(rf"{prefix}final_norm", "decoder.final_norm"),
        linear(rf"{head}\.dense", "head.dense"),
        *norm(rf"{head}\.norm", "head.norm"),
        linear("classifier", "head.output"),
        Rename(r"decoder\.weight", _TOKENS if tied else "head.weight"),
        Rename(r"decoder\.bias", "head.bias"),
    )


FAMILY = Family(
    name="modernbert-decoder",
    model_types=("modernbert-decoder",),
    architectures={
        "ModernBertDecoderForCausalLM": ("generate",),
        _BODY: ("embed",),
        _CLASSES: ("classify",),
    },
    config=_config,
    rules=_rules,
    body=_BODY,
)
