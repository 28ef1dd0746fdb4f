"""Layers of T5 and its successors: RMS pre-norm, position buckets, no biases (Raffel et al. 2020, arXiv:1910.10683)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from models.config import (
    AttentionConfig,
    BucketBiasConfig,
    ConfigError,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelHead,
    LayerConfig,
    MixtureOfExpertsConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    PoolingHead,
    StackConfig,
)
from models.families.shared.fields import Fields, activation, short
from models.families.shared.gguf import Settings
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule

TOKENS = "encoder.embedding.tokens.weight"
FeedForwards = Sequence[FeedForwardConfig | MixtureOfExpertsConfig]
"""The feed-forwards of an encoder's or a decoder's layers, in order."""


def t5_model(
    fields: Fields,
    head: LanguageModelHead | PoolingHead,
    *,
    bias_per_layer: bool = False,
    encoder_attention: AttentionConfig | None = None,
    max_source_positions: int | None = None,
    feed_forwards: tuple[FeedForwards, FeedForwards] | None = None,
) -> ModelConfig:
    """Configuration of an encoder-decoder with a language model head, or of an encoder if the head is a pooling head.

    bias_per_layer: whether each layer has a separate table of relative position biases, not one table for all layers.
    encoder_attention: self-attention of the encoder, None for full attention.
    max_source_positions: longest source text in tokens, None for no limit.
    feed_forwards: the feed-forwards of the encoder's layers and of the decoder's layers. None: all are equal, with the
        sizes in the settings.
    """
    num_layers, encoder_only = fields.integer("num_layers"), isinstance(head, PoolingHead)
    num_decoder_layers = fields.integer("num_decoder_layers", num_layers)
    if feed_forwards is None:
        own = _feed_forward(fields)
        feed_forwards = (own,) * num_layers, (own,) * num_decoder_layers
    decoder: StackConfig | None = None
    if not encoder_only:
        decoder = _stack(fields, feed_forwards[1], t5_attention(fields, causal=True), bias_per_layer)
    encoder_attention = encoder_attention or t5_attention(fields, causal=False)
    return ModelConfig(
        hidden_size=fields.integer("d_model"),
        vocab_size=fields.integer("vocab_size"),
        head=head,
        encoder=_stack(fields, feed_forwards[0], encoder_attention, bias_per_layer),
        decoder=decoder,
        shared_embeddings=decoder is not None,
        max_positions=max_source_positions if encoder_only else None,
        max_source_positions=None if encoder_only else max_source_positions,
    )


def t5_attention(fields: Fields, *, causal: bool) -> AttentionConfig:
    """Full attention without biases. Scores are not scaled, because T5's query weights already include the scale."""
    heads, head_dim = fields.integer("num_heads"), fields.integer("d_kv")
    return AttentionConfig(heads, heads, head_dim, 1.0, causal, False, False, False, False)


def t5_buckets(fields: Fields, *, bidirectional: bool, per_layer: bool = False) -> BucketBiasConfig:
    return BucketBiasConfig(
        num_buckets=fields.integer("relative_attention_num_buckets", 32),
        max_distance=fields.integer("relative_attention_max_distance", 128),
        bidirectional=bidirectional,
        per_layer=per_layer,
    )


def _stack(
    fields: Fields, feed_forwards: FeedForwards, attention: AttentionConfig, bias_per_layer: bool
) -> StackConfig:
    """Configuration of the encoder or the decoder.

    feed_forwards: feed-forward of each layer.
    attention: self-attention of all layers. If it is causal, the result is a decoder with cross-attention.
    bias_per_layer: whether each layer has its own table of relative position biases, not one table for all layers.
    """
    norm, decoder = NormConfig("rms", fields.number("layer_norm_epsilon", 1e-6), bias=False), attention.causal
    norms = NormSlots(input=norm)
    layer = LayerConfig(
        attention=attention,
        attention_norms=norms,
        feed_forward=feed_forwards[0],
        feed_forward_norms=norms,
        cross_attention=t5_attention(fields, causal=False) if decoder else None,
        cross_attention_norms=norms if decoder else NormSlots(),
    )
    buckets = t5_buckets(fields, bidirectional=not decoder, per_layer=bias_per_layer)
    embedding = EmbeddingConfig(fields.integer("vocab_size"))
    layers = tuple(replace(layer, feed_forward=feed_forward) for feed_forward in feed_forwards)
    return StackConfig(embedding, layers, final_norm=norm, score_bias=buckets)


def _feed_forward(fields: Fields) -> FeedForwardConfig:
    kind = fields.text("feed_forward_proj", "")
    gated, name = kind.startswith("gated-"), kind.removeprefix("gated-")
    if "-" in name:
        raise ConfigError(f"'feed_forward_proj': {short(kind)} must be an activation, or `gated-` followed by one")
    # Version 1.1 writes `gelu` for its tanh approximation.
    name = "gelu_new" if kind == "gated-gelu" else name
    activation(name, "feed_forward_proj")
    # transformers also writes the two parts of `feed_forward_proj` as settings of their own, which take precedence.
    gated, known = fields.flag("is_gated_act", gated), fields.activation("dense_act_fn", name)
    return FeedForwardConfig(fields.integer("d_ff"), known, gated, bias=False)


def t5_rules(model: ModelConfig) -> Sequence[Rule]:
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    assert model.encoder is not None and isinstance(model.encoder.score_bias, BucketBiasConfig)
    per_layer = model.encoder.score_bias.per_layer
    biased = r"(\d+)" if per_layer else "0"
    layer, ours = r"(encoder|decoder)\.block\.(\d+)\.layer\.", r"\1.layers.\2."
    encoder_end, decoder_middle = r"encoder\.block\.(\d+)\.layer\.1\.", r"decoder\.block\.(\d+)\.layer\.1\."
    return (
        Rename(r"shared\.weight", TOKENS),
        Rename(r"(?:encoder|decoder)\.embed_tokens\.weight", TOKENS),
        Rename(
            r"(encoder|decoder)\.block\." + biased + r"\.layer\.0\.SelfAttention\.relative_attention_bias\.weight",
            r"\1.score_bias.layers.\2.weight" if per_layer else r"\1.score_bias.weight",
        ),
        Rename(layer + r"0\.layer_norm\.weight", ours + "attention_norms.input.weight"),
        *(
            Rename(layer + rf"\d\.{theirs}\.{short_name}\.weight", ours + f"{name}.{long_name}.weight")
            for theirs, name in (("SelfAttention", "attention"), ("EncDecAttention", "cross_attention"))
            for short_name, long_name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
        ),
        Rename(decoder_middle + r"layer_norm\.weight", r"decoder.layers.\1.cross_attention_norms.input.weight"),
        Rename(encoder_end + r"layer_norm\.weight", r"encoder.layers.\1.feed_forward_norms.input.weight"),
        Rename(layer + r"2\.layer_norm\.weight", ours + "feed_forward_norms.input.weight"),
        Rename(layer + r"\d\.DenseReluDense\.wi_0\.weight", ours + "feed_forward.gate.weight"),
        Rename(layer + r"\d\.DenseReluDense\.(?:wi|wi_1)\.weight", ours + "feed_forward.up.weight"),
        Rename(layer + r"\d\.DenseReluDense\.wo\.weight", ours + "feed_forward.down.weight"),
        Rename(r"(encoder|decoder)\.final_layer_norm\.weight", r"\1.final_norm.weight"),
        Rename(r"lm_head\.weight", TOKENS if tied else "head.weight"),
        # The first releases have one more table, which their own code does not use.
        Drop(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"),
    )


# ---------------------------------------------------------------------------------------------------------- GGUF files


def t5_gguf_settings(of: Metadata, model_type: str) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    The file states neither the activation nor whether logits are scaled. Models with a gated feed-forward are read as
    version 1.1: GELU, and logits that are not scaled. Others are read as version 1.0: ReLU, and tied logits are scaled.

    model_type: `t5` or `umt5`. Files of T5, mT5 and UMT5 have the same architecture name.
    """
    gated, tied = of.has("enc.blk.0.ffn_gate.weight"), not of.has("output.weight")
    layers, is_encoder = of.integer("block_count"), of.architecture == "t5encoder"
    stem = "UMT5" if model_type == "umt5" else "T5"
    return {
        "model_type": model_type,
        "architectures": [f"{stem}EncoderModel" if is_encoder else f"{stem}ForConditionalGeneration"],
        "vocab_size": of.rows("token_embd.weight"),
        "d_model": of.integer("embedding_length"),
        "d_ff": of.integer("feed_forward_length"),
        "d_kv": of.head_dim,
        "num_layers": layers,
        "num_decoder_layers": of.integer("decoder_block_count", layers),
        "num_heads": of.integer("attention.head_count"),
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "relative_attention_num_buckets": of.integer("attention.relative_buckets_count"),
        "layer_norm_epsilon": of.number("attention.layer_norm_rms_epsilon", of.number("attention.layer_norm_epsilon")),
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": tied and not gated,
        "decoder_start_token_id": of.integer("decoder_start_token_id", 0),
    }


def has_biases_per_layer(of: Metadata) -> bool:
    """Whether a GGUF file has a table of relative position biases for each layer, as for UMT5, not only one."""
    return of.has("enc.blk.1.attn_rel_b.weight")


def t5_gguf_rules(model: ModelConfig) -> Sequence[Rule]:
    """Rules for the tensors of the layers and final norms in GGUF files."""
    assert model.encoder is not None and isinstance(model.encoder.score_bias, BucketBiasConfig)
    bias = "score_bias.layers.{}.weight" if model.encoder.score_bias.per_layer else "score_bias.weight"
    return tuple(
        Rename(rf"{short_name}\.{pattern}", f"{stack}.{name}")
        for short_name, stack in (("enc", "encoder"), ("dec", "decoder"))
        for pattern, name in (
            (r"blk\.(\d+)\.attn_rel_b\.weight", bias.format(r"\1")),
            (r"output_norm\.weight", "final_norm.weight"),
            *((rf"blk\.(\d+)\.{theirs}\.weight", rf"layers.\1.{ours}.weight") for theirs, ours in _GGUF_NAMES.items()),
        )
    )


_GGUF_NAMES = {
    "attn_norm": "attention_norms.input",
    "cross_attn_norm": "cross_attention_norms.input",
    "ffn_norm": "feed_forward_norms.input",
    **{
        f"{theirs}_{letter}": f"{ours}.{name}"
        for theirs, ours in (("attn", "attention"), ("cross_attn", "cross_attention"))
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
    },
    **{f"ffn_{part}": f"feed_forward.{part}" for part in ("gate", "up", "down")},
}
"""Names of a layer's matrices and norms in the model, by their names in GGUF files."""
