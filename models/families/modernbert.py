"""ModernBERT (Warner et al. 2024, arXiv:2412.13663): pre-norm, rotary positions, gated feed-forward.

Every third layer has full attention, with a larger rotary base; the other layers have a window. The first layer has no
norm before its attention, because a norm follows the embeddings.
ModernVBERT (Teiletche et al. 2025, arXiv:2510.01149) is ModernBERT in a checkpoint that also has a vision part. It is
served without the vision part, which changes nothing for requests without a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from models.config import (
    AttentionConfig,
    ClassificationHead,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    LayerConfig,
    MaskedLanguageModelHead,
    ModelConfig,
    NormConfig,
    NormSlots,
    PoolingHead,
    StackConfig,
)
from models.families.shared.bert_config import architectures, encoder_head
from models.families.shared.bert_rules import linear, norm
from models.families.shared.family import Family
from models.families.shared.fields import Fields, head_width
from models.families.shared.gguf import GgufFamily, Settings, fused_gate_rules, has_bias, layer_eps
from models.families.shared.modernbert_layers import layer_rope, layer_windows
from models.families.shared.rename_rules import renamed
from models.families.shared.rope import scaled_max_positions
from models.families.shared.text_part import text_settings
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule, Split

_PREFIX = r"(?:model\.)?"
_PICTURES = "modernvbert"
_OUTSIDE = ("auto_map", "classifier_pooling", "id2label", "num_labels")
"""Settings at the top level of ModernVBERT's `config.json` that apply to the model in `text_config`."""
_TOKENS = "encoder.embedding.tokens.weight"


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    untied = hf.get("model_type") == _PICTURES and not Fields(hf).flag("tie_word_embeddings", False)
    if hf.get("model_type") == _PICTURES:
        hf = {**text_settings(hf, _OUTSIDE), "tie_word_embeddings": not untied}
    fields = Fields(hf)
    hidden, vocab = fields.integer("hidden_size", 768), fields.integer("vocab_size", 50368)
    num_layers, heads = fields.integer("num_hidden_layers", 22), fields.integer("num_attention_heads", 12)
    head_dim = head_width(hidden, heads)
    layer_norm = NormConfig("layer", fields.number("norm_eps", 1e-5), fields.flag("norm_bias", False))
    wide = layer_rope(hf, head_dim, "full_attention", "global_rope_theta", 160_000.0)
    near = layer_rope(hf, head_dim, "sliding_attention", "local_rope_theta", 10_000.0)
    bias = fields.flag("attention_bias", False)

    def layer(index: int, window: int | None) -> LayerConfig:
        attention = AttentionConfig(
            *(heads, heads, head_dim, head_dim**-0.5, False, bias, bias, bias, bias),
            rope=wide if window is None else near,
            window=window,
        )
        feed_forward = FeedForwardConfig(
            fields.integer("intermediate_size", 1152),
            fields.activation("hidden_activation", "gelu"),
            gated=True,
            bias=fields.flag("mlp_bias", False),
        )
        before = NormSlots(input=layer_norm)
        return LayerConfig(attention, before if index else NormSlots(), feed_forward, before)

    windows = layer_windows(fields, num_layers)
    layers = tuple(layer(index, window) for index, window in enumerate(windows))
    positions = fields.integer("max_position_embeddings", 8192)
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=_head(fields, architecture, layer_norm, table_width=hidden if untied else None),
        encoder=StackConfig(EmbeddingConfig(vocab, norm=layer_norm), layers, final_norm=layer_norm),
        max_positions=min(scaled_max_positions(wide, positions), scaled_max_positions(near, positions)),
    )


def _head(fields: Fields, architecture: str, norm: NormConfig, table_width: int | None) -> HeadConfig:
    """Configuration of the head of an architecture.

    table_width: width of the logits' own table, None for logits tied to the token embeddings.
    Raises ConfigError for an unsupported `classifier_pooling`.
    """
    activation, bias = fields.activation("classifier_activation", "gelu"), fields.flag("classifier_bias", False)
    if architecture.endswith("ForSequenceClassification"):
        fields.refuse_unless("classifier_pooling", "cls", "mean")
        pool: Literal["first", "mean"] = "mean" if fields.text("classifier_pooling", "cls") == "mean" else "first"
        return ClassificationHead(fields.labels(), dense=activation, pool=pool, dense_bias=bias, norm=norm)
    logits_bias = fields.flag("decoder_bias", True)
    masked = MaskedLanguageModelHead(activation, norm, dense_bias=bias, bias=logits_bias, table_width=table_width)
    token_dense = {"dense": activation, "dense_bias": bias, "norm": norm}
    return encoder_head(fields, architecture, masked, activation, token_dense=token_dense)


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = rf"{_PREFIX}layers\.(\d+)\.", r"encoder.layers.\1."
    parts = tuple(f"{ours}attention.{part}." for part in ("query", "key", "value"))
    body = (
        Rename(rf"{_PREFIX}embeddings\.tok_embeddings\.weight", _TOKENS),
        *norm(rf"{_PREFIX}embeddings\.norm", "encoder.embedding.norm"),
        *(Split(rf"{layer}attn\.Wqkv\.{kind}", [part + kind for part in parts]) for kind in ("weight", "bias")),
        linear(rf"{layer}attn\.Wo", f"{ours}attention.output"),
        *norm(rf"{layer}attn_norm", f"{ours}attention_norms.input"),
        *(
            Split(rf"{layer}mlp\.Wi\.{kind}", [f"{ours}feed_forward.{part}.{kind}" for part in ("gate", "up")])
            for kind in ("weight", "bias")
        ),
        linear(rf"{layer}mlp\.Wo", f"{ours}feed_forward.down"),
        *norm(rf"{layer}mlp_norm", f"{ours}feed_forward_norms.input"),
        *norm(rf"{_PREFIX}final_norm", "encoder.final_norm"),
    )
    if hf.get("model_type") == _PICTURES:
        vision = Drop(rf"{_PREFIX}(?:vision_model|connector)\..*")
        body = (vision, *renamed(body, _PREFIX, rf"{_PREFIX}text_model\."))
    if isinstance(model.head, PoolingHead):
        return (*body, Drop(r"(?:projection_head|lm_head)\..*")) if hf.get("model_type") == _PICTURES else body
    untied = isinstance(model.head, MaskedLanguageModelHead) and model.head.table_width is not None
    return (
        *body,
        linear(r"(?:projection_)?head\.dense", "head.dense"),
        *norm(r"(?:projection_)?head\.norm", "head.norm"),
        linear("classifier", "head.output"),
        Rename(r"(?:decoder|lm_head)\.weight", "head.weight" if untied else _TOKENS),
        Rename(r"(?:decoder|lm_head)\.bias", "head.bias"),
    )


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    If the file does not state which layers have a window, every third layer has full attention.
    Raises GgufError for a file with a classification head.
    """
    every = of.integer("attention.sliding_window_pattern", 3)
    eps = "attention.layer_norm_rms_epsilon"
    if of.has("cls.weight") or of.has("cls.output.weight"):
        raise of.error("classifier.output_labels", "stands for a head, which is not supported in GGUF files")
    return {
        "model_type": "modernbert",
        "architectures": ["ModernBertModel"],
        "vocab_size": of.rows("token_embd.weight"),
        "hidden_size": of.integer("embedding_length"),
        "intermediate_size": of.integer("feed_forward_length"),
        "num_hidden_layers": of.layers,
        "num_attention_heads": of.integer("attention.head_count"),
        "max_position_embeddings": of.integer("context_length"),
        "local_attention": of.integer("attention.sliding_window"),
        "global_attn_every_n_layers": every,
        "hidden_activation": of.optional("hidden_activation") or "gelu",
        "norm_eps": of.number(eps, 0.0) or layer_eps(of),
        "norm_bias": of.has("output_norm.bias"),
        "attention_bias": has_bias(of, "attn_qkv"),
        "mlp_bias": has_bias(of, "ffn_up"),
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": of.number("rope.freq_base", 160000.0)},
            "sliding_attention": {"rope_type": "default", "rope_theta": of.number("rope.freq_base_swa", 10000.0)},
        },
    }


_PICTURE_ARCHITECTURES = {
    name: tasks for name, tasks in architectures("ModernVBert").items() if not name.endswith("QuestionAnswering")
}
FAMILY = Family(
    name="modernbert",
    model_types=("modernbert", _PICTURES),
    architectures=architectures("ModernBert") | _PICTURE_ARCHITECTURES,
    config=_config,
    rules=_rules,
    gguf=GgufFamily({"modern-bert": gguf_settings}, rules=fused_gate_rules),
)
