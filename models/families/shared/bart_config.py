"""Configurations of BART and related encoder-decoders: their stacks, embeddings and heads.

BART and Marian are post-norm. mBART, M2M100, Pegasus, Blenderbot and Whisper are pre-norm, with a norm after the last
layer. Sources: Lewis et al. 2019, arXiv:1910.13461; for the layers, Vaswani et al. 2017, arXiv:1706.03762.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    ClassificationHead,
    ConvolutionalEmbeddingConfig,
    EmbeddingConfig,
    FairseqSinusoidalPositions,
    FeedForwardConfig,
    HeadConfig,
    LanguageModelHead,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    NormConfig,
    NormSlots,
    SinusoidalPositions,
    SpanHead,
    StackConfig,
)
from models.families.shared.fields import Fields, head_width

NORM = NormConfig("layer", 1e-5)
_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 50265,
    "d_model": 1024,
    "activation_function": "gelu",
    "scale_embedding": False,
    "max_position_embeddings": 1024,
}
_STACK_DEFAULTS: Mapping[str, Any] = {"layers": 12, "attention_heads": 16, "ffn_dim": 4096}


def bart_fields(hf: Mapping[str, Any], **defaults: Any) -> Fields:
    """Typed access to the settings of a `config.json`.

    defaults: the family's defaults, where they differ from those of BART. `layers`, `attention_heads` and `ffn_dim`
        are defaults for the encoder and the decoder.
    """
    sizes = {name: defaults.pop(name, default) for name, default in _STACK_DEFAULTS.items()}
    both = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()}
    return Fields(hf, defaults={**_DEFAULTS, **both, **defaults})


def refuse_variants(
    fields: Fields, *, pre_norm: bool, embedding_norm: bool, sinusoidal_positions: bool | None = None
) -> None:
    """Raise ConfigError for a setting of old checkpoints with another value than this family supports.

    pre_norm: whether sublayers have input norms, and a norm follows the last layer.
    embedding_norm: whether a norm follows the embeddings.
    sinusoidal_positions: whether positions are sinusoidal. None: `static_position_embeddings` is not checked.
    """
    fields.refuse_unless("normalize_before", pre_norm)
    fields.refuse_unless("add_final_layer_norm", pre_norm)
    fields.refuse_unless("add_bias_logits", False)
    fields.refuse_unless("normalize_embedding", embedding_norm)
    if sinusoidal_positions is not None:
        fields.refuse_unless("static_position_embeddings", sinusoidal_positions)


def bart_embedding(
    fields: Fields,
    positions: LearnedPositions | SinusoidalPositions | FairseqSinusoidalPositions,
    norm: NormConfig | None = None,
    vocab_size: int | None = None,
) -> EmbeddingConfig:
    """Configuration of token embeddings with positions.

    Token embeddings are multiplied by the square root of `d_model` if `scale_embedding` is true.

    norm: norm after the sum of both, None for no norm.
    vocab_size: None for the value in the file.
    """
    scale = float(fields.integer("d_model") ** 0.5) if fields.flag("scale_embedding") else 1.0
    return EmbeddingConfig(vocab_size or fields.integer("vocab_size"), scale, positions, norm=norm)


def bart_attention(
    fields: Fields, side: str, *, causal: bool, key_bias: bool = True, bias: bool = True
) -> AttentionConfig:
    """Full attention of one stack.

    side: `encoder` or `decoder`, the prefix of the settings.
    bias: whether the projections of queries, keys, values and outputs have biases.
    key_bias: whether the projection of keys has a bias too, if `bias` is true.
    """
    heads = fields.integer(f"{side}_attention_heads")
    head_dim = head_width(fields.integer("d_model"), heads)
    return AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal, bias, bias and key_bias, bias, bias)


def bart_stack(
    fields: Fields,
    side: str,
    embedding: EmbeddingConfig | ConvolutionalEmbeddingConfig,
    *,
    pre_norm: bool = False,
    key_bias: bool = True,
    bias: bool = True,
    attentions: Sequence[AttentionConfig] | None = None,
) -> StackConfig:
    """Configuration of the encoder or the decoder. Decoder layers have cross-attention.

    side: `encoder` or `decoder`, the prefix of its settings.
    pre_norm: sublayers have input norms, and a norm follows the last layer. If false, norms follow the residual sums.
    bias: whether the projections of attention have biases. key_bias: whether the key projection has one, if `bias`.
    attentions: self-attention of each layer, None for full attention.
    """
    norms = NormSlots(input=NORM) if pre_norm else NormSlots(residual=NORM)
    decoder = side == "decoder"
    if attentions is None:
        full = bart_attention(fields, side, causal=decoder, key_bias=key_bias, bias=bias)
        attentions = (full,) * fields.integer(f"{side}_layers")
    cross = bart_attention(fields, side, causal=False, key_bias=key_bias, bias=bias) if decoder else None
    layers = (
        LayerConfig(
            attention=attention,
            attention_norms=norms,
            feed_forward=FeedForwardConfig(fields.integer(f"{side}_ffn_dim"), fields.activation("activation_function")),
            feed_forward_norms=norms,
            cross_attention=cross,
            cross_attention_norms=norms if decoder else NormSlots(),
        )
        for attention in attentions
    )
    return StackConfig(embedding, tuple(layers), final_norm=NORM if pre_norm else None)


def both_stacks(
    fields: Fields, embedding: EmbeddingConfig, *, pre_norm: bool = False
) -> tuple[StackConfig, StackConfig]:
    """Configurations of an encoder and a decoder, both with the embeddings `embedding`."""
    encoder, decoder = (bart_stack(fields, side, embedding, pre_norm=pre_norm) for side in ("encoder", "decoder"))
    return encoder, decoder


def bart_head(
    fields: Fields,
    architecture: str,
    start_token_id: int | None,
    *,
    default_labels: int = 2,
    default_end_token_id: int | None = None,
) -> HeadConfig:
    """Configuration of the head of an architecture. For classification and question answering, the text is the input
    of both the encoder and the decoder.

    start_token_id: for classification and question answering: id of the token that precedes the text in the decoder's
        input; None for the text's last token.
    default_labels: number of labels if the file has none.
    default_end_token_id: default of `eos_token_id`; classification reads the decoder's hidden state at the last token
        with this id. None: it reads the hidden state at the last token of the text.
    """
    match architecture.partition("For")[2]:
        case "QuestionAnswering":
            return SpanHead(start_token_id=start_token_id)
        case "SequenceClassification":
            labels = fields.labels(default_labels)
            if default_end_token_id is None:
                return ClassificationHead(labels, dense="tanh", pool="last", start_token_id=start_token_id)
            end = fields.integer("eos_token_id", default_end_token_id, least=0)
            return ClassificationHead(labels, dense="tanh", pool="end", start_token_id=start_token_id, end_token_id=end)
        case _:
            return LanguageModelHead(tied=True, bias=True)


def bart_model(
    fields: Fields,
    head: HeadConfig,
    encoder: StackConfig,
    decoder: StackConfig,
    *,
    shared: bool = True,
    max_source_positions: int | None = None,
) -> ModelConfig:
    """Configuration of an encoder-decoder with a head. The decoder's positions limit the length of a text.

    shared: whether encoder and decoder use one table of token embeddings.
    max_source_positions: longest source text in tokens, None for the decoder's limit.
    """
    embedding = decoder.embedding
    assert isinstance(embedding, EmbeddingConfig) and embedding.positions is not None
    return ModelConfig(
        hidden_size=fields.integer("d_model"),
        vocab_size=embedding.vocab_size,
        head=head,
        encoder=encoder,
        decoder=decoder,
        shared_embeddings=shared,
        max_positions=embedding.positions.num_positions,
        max_source_positions=max_source_positions,
    )
