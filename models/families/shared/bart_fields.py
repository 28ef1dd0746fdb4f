"""What BART and the families after it read alike from `config.json`: an encoder and a decoder, and heads.

Lewis et al. 2019, arXiv:1910.13461; its layers are those of Vaswani et al. 2017, arXiv:1706.03762. Most norm each sum;
mBART, M2M100, Pegasus, Blenderbot and Whisper norm before, and once more after the last layer. Not a family itself.
"""

from __future__ import annotations

from collections.abc import Mapping
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
_BART: Mapping[str, Any] = {
    "vocab_size": 50265,
    "d_model": 1024,
    "activation_function": "gelu",
    "scale_embedding": False,
    "max_position_embeddings": 1024,
}
_BART_STACK: Mapping[str, Any] = {"layers": 12, "attention_heads": 16, "ffn_dim": 4096}


def bart_fields(hf: Mapping[str, Any], **defaults: Any) -> Fields:
    """The settings. defaults: of the family, where they are not BART's; `layers`, `attention_heads` and `ffn_dim` are
    those of both stacks."""
    sizes = {name: defaults.pop(name, default) for name, default in _BART_STACK.items()}
    both = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()}
    return Fields(hf, defaults={**_BART, **both, **defaults})


def refuse_variants(fields: Fields, *, before: bool, embedding_norm: bool, sinusoids: bool | None = None) -> None:
    """Raises ConfigError for switches of the first releases that say otherwise than their published checkpoints do.

    before: whether layers norm what they read, and once more after the last. embedding_norm: whether there is one
    over the embeddings. sinusoids: whether positions are; None where no checkpoint says.
    """
    fields.refuse_unless("normalize_before", before)
    fields.refuse_unless("add_final_layer_norm", before)
    fields.refuse_unless("add_bias_logits", False)
    fields.refuse_unless("normalize_embedding", embedding_norm)
    if sinusoids is not None:
        fields.refuse_unless("static_position_embeddings", sinusoids)


def bart_embedding(
    fields: Fields,
    positions: LearnedPositions | SinusoidalPositions | FairseqSinusoidalPositions,
    norm: NormConfig | None = None,
    vocab_size: int | None = None,
) -> EmbeddingConfig:
    """Token vectors, scaled where the settings say so, with positions. vocab_size: None for that of the settings."""
    scale = float(fields.integer("d_model") ** 0.5) if fields.flag("scale_embedding") else 1.0
    return EmbeddingConfig(vocab_size or fields.integer("vocab_size"), scale, positions, norm=norm)


def bart_stack(
    fields: Fields,
    side: str,
    embedding: EmbeddingConfig | ConvolutionalEmbeddingConfig,
    *,
    before: bool = False,
    key_bias: bool = True,
) -> StackConfig:
    """One of the two stacks. side: `encoder` or `decoder`, the prefix of its settings. before: see
    `refuse_variants`."""
    heads = fields.integer(f"{side}_attention_heads")
    head_dim = head_width(fields.integer("d_model"), heads)
    norms = NormSlots(input=NORM) if before else NormSlots(residual=NORM)

    def attention(causal: bool) -> AttentionConfig:
        return AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal, key_bias=key_bias)

    decoder = side == "decoder"
    layer = LayerConfig(
        attention=attention(causal=decoder),
        attention_norms=norms,
        feed_forward=FeedForwardConfig(fields.integer(f"{side}_ffn_dim"), fields.activation("activation_function")),
        feed_forward_norms=norms,
        cross_attention=attention(causal=False) if decoder else None,
        cross_attention_norms=norms if decoder else NormSlots(),
    )
    return StackConfig(embedding, (layer,) * fields.integer(f"{side}_layers"), final_norm=NORM if before else None)


def both_stacks(fields: Fields, embedding: EmbeddingConfig, *, before: bool = False) -> tuple[StackConfig, StackConfig]:
    """The encoder and the decoder, whose embeddings are alike."""
    one, other = (bart_stack(fields, side, embedding, before=before) for side in ("encoder", "decoder"))
    return one, other


def bart_head(
    fields: Fields, architecture: str, start_token_id: int | None, *, num_labels: int = 2, end: int | None = None
) -> HeadConfig:
    """The head that the name of an architecture asks for, over what the decoder says of a text that it reads too.

    start_token_id: see `ClassificationHead`. num_labels: where the settings name none. end: the token that a text ends
        with and is classified by, where they do not say; None where that is its last one, whatever it is.
    """
    match architecture.partition("For")[2]:
        case "QuestionAnswering":
            return SpanHead(start_token_id=start_token_id)
        case "SequenceClassification":
            labels = fields.labels(num_labels)
            if end is None:
                return ClassificationHead(labels, dense="tanh", pool="last", start_token_id=start_token_id)
            end = fields.integer("eos_token_id", end, least=0)
            return ClassificationHead(labels, dense="tanh", pool="end", start_token_id=start_token_id, end_token_id=end)
        case _:
            return LanguageModelHead(tied=True, bias=True)


def bart_model(
    fields: Fields, head: HeadConfig, encoder: StackConfig, decoder: StackConfig, *, shared: bool = True
) -> ModelConfig:
    """Both stacks under a head; the decoder's positions say how long a text may be. shared: over one token table."""
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
    )
