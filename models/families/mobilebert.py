"""MobileBERT (Sun et al. 2020, arXiv:2004.02984): a deep BERT whose layers are narrower than its hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    BottleneckAttentionConfig,
    BottleneckLayerConfig,
    ClassificationHead,
    ConfigError,
    LearnedPositions,
    MaskedLanguageModelHead,
    ModelConfig,
    NeighbourEmbeddingConfig,
    NormConfig,
    NormSlots,
)
from models.families.shared.bert_config import (
    architectures,
    bert_feed_forward,
    bert_model,
    bert_norm,
    encoder_attention,
    encoder_fields,
    encoder_head,
)
from models.families.shared.bert_rules import bert_head_rules, embedding_rules, linear, norm
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from weights.rules import Drop, Rule, Transpose

_PREFIX = r"(?:mobilebert\.)?"
_DEFAULTS = {
    "hidden_size": 512,
    "num_hidden_layers": 24,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "hidden_act": "relu",
}
_NORM = NormConfig("affine", 1e-12)


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = encoder_fields(hf, **_DEFAULTS)
    fields.refuse_unless("trigram_input", True)
    fields.refuse_unless("use_bottleneck", True)
    fields.refuse_unless("normalization_type", "no_norm")
    hidden, width = fields.integer("hidden_size"), fields.integer("embedding_size", 128)
    if width >= hidden:
        raise ConfigError(f"'embedding_size': {width} must be less than the hidden size {hidden}")
    embedding = NeighbourEmbeddingConfig(
        fields.integer("vocab_size"),
        positions=LearnedPositions(fields.integer("max_position_embeddings")),
        num_token_types=fields.integer("type_vocab_size"),
        norm=_NORM,
        token_width=width,
    )
    masked = MaskedLanguageModelHead(fields.activation("hidden_act"), bert_norm(fields), further_width=hidden - width)
    head = encoder_head(fields, architecture, masked, "tanh")
    if isinstance(head, ClassificationHead) and not fields.flag("classifier_activation", True):
        head = ClassificationHead(fields.labels(), dense=None)
    return bert_model(fields, head, embedding, (_layer(fields),) * fields.integer("num_hidden_layers"))


def _layer(fields: Fields) -> BottleneckLayerConfig:
    width = fields.integer("intra_bottleneck_size", 128)
    fields.refuse_unless("true_hidden_size", width)
    norms = NormSlots(residual=_NORM)
    attention: AttentionConfig = encoder_attention(width, fields.integer("num_attention_heads"))
    if not fields.flag("use_bottleneck_attention", False):
        fields.refuse_unless("key_query_shared_bottleneck", True)
        settings = {**vars(attention), "key_value_width": fields.integer("hidden_size")}
        attention = BottleneckAttentionConfig(**settings, norm=_NORM)
    return BottleneckLayerConfig(
        attention,
        norms,
        bert_feed_forward(fields),
        norms,
        width=width,
        norm=_NORM,
        feed_forwards=fields.integer("num_feedforward_networks", 4),
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours, words = rf"{_PREFIX}encoder\.layer\.(\d+)\.", r"encoder.layers.\1.", r"cls\.predictions"
    stacked = layer + r"ffn\.(\d+)\."
    body = (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        linear(rf"{_PREFIX}embeddings\.embedding_transformation", "encoder.embedding.neighbours"),
        *(
            linear(layer + rf"attention\.self\.{part}", ours + f"attention.{part}")
            for part in ("query", "key", "value")
        ),
        linear(layer + r"attention\.output\.dense", ours + "attention.output"),
        *norm(layer + r"attention\.output\.LayerNorm", ours + "attention_norms.residual"),
        linear(layer + r"bottleneck\.input\.dense", ours + "down"),
        *norm(layer + r"bottleneck\.input\.LayerNorm", ours + "down_norm"),
        *_shared_bottleneck(model, layer + r"bottleneck\.attention\.", ours + "attention.bottleneck"),
        linear(stacked + r"intermediate\.dense", ours + r"stacked.\2.up"),
        linear(stacked + r"output\.dense", ours + r"stacked.\2.down"),
        *norm(stacked + r"output\.LayerNorm", ours + r"stacked_norms.\2.residual"),
        linear(layer + r"intermediate\.dense", ours + "feed_forward.up"),
        linear(layer + r"output\.dense", ours + "feed_forward.down"),
        *norm(layer + r"output\.LayerNorm", ours + "feed_forward_norms.residual"),
        linear(layer + r"output\.bottleneck\.dense", ours + "up"),
        *norm(layer + r"output\.bottleneck\.LayerNorm", ours + "up_norm"),
    )
    match model.head:
        case MaskedLanguageModelHead():
            further = (Transpose(rf"{words}\.dense\.weight", "head.further"),)
            return (*body, *further, *bert_head_rules(model.head, _PREFIX))
        case ClassificationHead(dense=None):
            return (*body, linear("classifier", "head.output"), Drop(rf"{_PREFIX}pooler\..*"))
        case _:
            return (*body, *bert_head_rules(model.head, _PREFIX))


def _shared_bottleneck(model: ModelConfig, theirs: str, ours: str) -> Sequence[Rule]:
    """Rules for the projection to the narrow width that queries and keys share.

    theirs, ours: prefixes of its names in the checkpoint and in the model. Its tensors are dropped if queries and keys
    use the layer's main projection instead.
    """
    assert model.encoder is not None
    if not isinstance(model.encoder.first_attention, BottleneckAttentionConfig):
        return (Drop(theirs + ".*"),)
    return (linear(theirs + "dense", ours), *norm(theirs + "LayerNorm", f"{ours}_norm"))


FAMILY = Family(
    name="mobilebert",
    model_types=("mobilebert",),
    architectures=architectures("MobileBert") | {"MobileBertForPreTraining": ("embed", "fill_mask")},
    config=_config,
    rules=_rules,
)
