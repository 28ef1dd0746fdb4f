"""DeBERTa, all versions: layers of BERT with disentangled attention (He et al. 2021, arXiv:2006.03654)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    ClassificationHead,
    ConfigError,
    ConvolutionLayerConfig,
    DisentangledConfig,
    DistanceConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    LearnedPositions,
    MaskedLanguageModelHead,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.bert_config import encoder_head
from models.families.shared.bert_rules import TOKENS, embedding_rules, linear, norm, output_rules
from models.families.shared.fields import Fields, head_width, short
from weights.rules import Drop, Rename, Rule

PREFIX = r"(?:deberta\.)?"
LAYER = rf"{PREFIX}encoder\.layer\.(\d+)\."
OURS = r"encoder.layers.\1."


def position_kinds(hf: Mapping[str, Any]) -> tuple[str, ...]:
    """Terms that relative positions add to the attention scores, from `pos_att_type`.

    `c2p` is content to position, `p2c` position to content. Raises ConfigError for other or repeated terms.
    """
    kinds = hf.get("pos_att_type") or []
    if isinstance(kinds, str):
        kinds = [kind.strip() for kind in kinds.lower().split("|")]
    known = isinstance(kinds, list) and all(kind in ("c2p", "p2c") for kind in kinds)
    if not known or len(set(kinds)) != len(kinds):
        raise ConfigError(f"'pos_att_type': {short(hf['pos_att_type'])} is not supported, only c2p and p2c")
    return tuple(kinds)


def config(
    hf: Mapping[str, Any],
    architecture: str,
    *,
    default_vocab: int,
    default_sizes: tuple[int, int, int, int],
    key_bias: bool,
    position_key_bias: bool,
    own_projections: bool = True,
    num_buckets: int | None = None,
    distance_norm: bool = False,
    convolution: bool = False,
) -> ModelConfig:
    """Model configuration from the contents of a `config.json`.

    default_vocab: default of `vocab_size`.
    default_sizes: default hidden size, number of layers, number of heads, and intermediate size.
    key_bias, position_key_bias: whether the projections of keys, and of the keys of distances, have biases.
    own_projections: whether distances have separate projections; otherwise the projections of the tokens apply to them.
    num_buckets: number of buckets of distances in each direction, None for one vector per distance.
    distance_norm: whether the vectors of distances are normed.
    convolution: whether the first layer has a convolution in parallel.
    """
    fields = Fields(hf)
    hidden, num_layers, heads, inner = (
        fields.integer(name, default)
        for name, default in zip(
            ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"), default_sizes, strict=True
        )
    )
    fields.refuse_unless("embedding_size", hidden)
    fields.refuse_unless("pooler_hidden_size", hidden)
    kinds, head_dim = position_kinds(hf), head_width(hidden, heads)
    fields.refuse_unless("attention_head_size", head_dim)
    layer_norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-7))
    num_positions, vocab = fields.integer("max_position_embeddings", 512), fields.integer("vocab_size", default_vocab)
    # The scale depends on the terms that `pos_att_type` names, even if `relative_attention` is off.
    scale = (head_dim * (1 + len(kinds))) ** -0.5
    attention, distances = AttentionConfig(heads, heads, head_dim, scale, False, key_bias=key_bias), None
    if fields.flag("relative_attention", False) and kinds:
        attention = DisentangledConfig(
            *(heads, heads, head_dim, scale, False),
            key_bias=key_bias,
            content_to_position="c2p" in kinds,
            position_to_content="p2c" in kinds,
            own_projections=own_projections,
            position_key_bias=position_key_bias,
        )
        farthest = hf.get("max_relative_positions")
        if farthest is None or (isinstance(farthest, int) and farthest < 1):
            farthest = num_positions
        farthest = Fields({"max_relative_positions": farthest}).integer("max_relative_positions")
        distances = DistanceConfig(farthest, num_buckets, layer_norm if distance_norm else None)
    activation, after = fields.activation("hidden_act", "gelu"), NormSlots(residual=layer_norm)
    embedding = EmbeddingConfig(
        vocab,
        positions=LearnedPositions(num_positions) if fields.flag("position_biased_input", True) else None,
        num_token_types=fields.integer("type_vocab_size", 0, least=0),
        norm=layer_norm,
    )
    layer = LayerConfig(attention, after, FeedForwardConfig(inner, activation), after)
    layers = [layer] * num_layers
    if convolution:
        layers[0] = ConvolutionLayerConfig(
            **vars(layer),
            kernel_size=fields.integer("conv_kernel_size"),
            groups=fields.integer("conv_groups", 1),
            activation=fields.activation("conv_act", "tanh"),
            norm=layer_norm,
        )
    pooled = fields.activation("pooler_hidden_act", "gelu")
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=encoder_head(fields, architecture, MaskedLanguageModelHead(activation, layer_norm), dense=pooled),
        encoder=StackConfig(embedding, tuple(layers), distances=distances),
        max_positions=num_positions,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], attention: Sequence[Rule]) -> Sequence[Rule]:
    """Rules for all tensors of the model.

    attention: rules for the projections of queries, keys, values and distances, which differ between the versions.
    """
    encoder = model.encoder
    assert encoder is not None and isinstance(encoder.embedding, EmbeddingConfig)
    unused = [r"mask_predictions\..*"]
    if encoder.embedding.positions is None:
        unused.append(rf"{PREFIX}embeddings\.position_embeddings\.weight")
    if encoder.distances is None:
        unused.append(rf"{PREFIX}encoder\.(rel_embeddings|LayerNorm)\..*")
    body = (
        *(Drop(pattern) for pattern in unused),
        *embedding_rules(rf"{PREFIX}embeddings"),
        *attention,
        Rename(rf"{PREFIX}encoder\.rel_embeddings\.weight", "encoder.distances.weight"),
        *norm(rf"{PREFIX}encoder\.LayerNorm", "encoder.distances.norm"),
        linear(rf"{LAYER}attention\.output\.dense", f"{OURS}attention.output"),
        *norm(rf"{LAYER}attention\.output\.LayerNorm", f"{OURS}attention_norms.residual"),
        linear(rf"{LAYER}intermediate\.dense", f"{OURS}feed_forward.up"),
        linear(rf"{LAYER}output\.dense", f"{OURS}feed_forward.down"),
        *norm(rf"{LAYER}output\.LayerNorm", f"{OURS}feed_forward_norms.residual"),
    )
    # The head is named `cls` or `lm_predictions`. A checkpoint with `legacy` false uses the second name, and may also
    # contain an untrained `cls` head.
    heads = {"cls": r"cls\.predictions\.", "lm_predictions": r"lm_predictions\.lm_head\."}
    dead = Drop(r"(pooler|cls|lm_predictions)\..*")
    match model.head:
        case ClassificationHead():
            return (*body, linear(r"pooler\.dense", "head.dense"), linear("classifier", "head.output"), dead)
        case MaskedLanguageModelHead():
            if not Fields(hf).flag("legacy", True):
                body = (*body, Drop(rf"{heads.pop('cls')}.*"))
            return (
                *body,
                *(linear(rf"{name}(?:transform\.)?dense", "head.dense") for name in heads.values()),
                *(rule for name in heads.values() for rule in norm(rf"{name}(?:transform\.)?LayerNorm", "head.norm")),
                *(Rename(rf"{name}(?:decoder\.)?bias", "head.bias") for name in heads.values()),
                Rename(r"cls\.predictions\.decoder\.weight", TOKENS),
                Drop(r"pooler\..*"),
            )
        case _:
            return (*body, *output_rules(model.head), dead)
