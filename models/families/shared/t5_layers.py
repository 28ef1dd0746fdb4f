"""What T5, mT5 and UMT5 share: RMS pre-norm, position buckets, no biases (Raffel et al. 2020, arXiv:1910.10683)."""

from __future__ import annotations

from collections.abc import Sequence

from models.config import (
    AttentionConfig,
    BucketBiasConfig,
    ConfigError,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelHead,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    PoolingHead,
    StackConfig,
)
from models.families.shared.fields import Fields, activation, short
from weights.rules import Drop, Rename, Rule

TOKENS = "encoder.embedding.tokens.weight"


def t5_model(fields: Fields, head: LanguageModelHead | PoolingHead, bias_per_layer: bool = False) -> ModelConfig:
    """Both stacks under a head for language, the encoder alone without one."""
    vocab, num_layers = fields.integer("vocab_size"), fields.integer("num_layers")
    decoder: StackConfig | None = None
    if isinstance(head, LanguageModelHead):
        num_decoder_layers = fields.integer("num_decoder_layers", num_layers)
        decoder = _stack(fields, vocab, num_decoder_layers, decoder=True, bias_per_layer=bias_per_layer)
    return ModelConfig(
        hidden_size=fields.integer("d_model"),
        vocab_size=vocab,
        head=head,
        encoder=_stack(fields, vocab, num_layers, decoder=False, bias_per_layer=bias_per_layer),
        decoder=decoder,
        shared_embeddings=decoder is not None,
    )


def _stack(fields: Fields, vocab: int, num_layers: int, decoder: bool, bias_per_layer: bool) -> StackConfig:
    norm = NormConfig("rms", fields.number("layer_norm_epsilon", 1e-6), bias=False)
    before = NormSlots(input=norm)

    def attention(causal: bool) -> AttentionConfig:
        heads, head_dim = fields.integer("num_heads"), fields.integer("d_kv")
        # The square root of head_dim is folded into the query's initial weights (Mesh TensorFlow's habit).
        return AttentionConfig(heads, heads, head_dim, 1.0, causal, False, False, False, False)

    layer = LayerConfig(
        attention=attention(causal=decoder),
        attention_norms=before,
        feed_forward=_feed_forward(fields),
        feed_forward_norms=before,
        cross_attention=attention(causal=False) if decoder else None,
        cross_attention_norms=before if decoder else NormSlots(),
    )
    buckets = BucketBiasConfig(
        num_buckets=fields.integer("relative_attention_num_buckets", 32),
        max_distance=fields.integer("relative_attention_max_distance", 128),
        bidirectional=not decoder,
        per_layer=bias_per_layer,
    )
    return StackConfig(EmbeddingConfig(vocab), (layer,) * num_layers, final_norm=norm, score_bias=buckets)


def _feed_forward(fields: Fields) -> FeedForwardConfig:
    kind = fields.text("feed_forward_proj", "")
    gated, name = kind.startswith("gated-"), kind.removeprefix("gated-")
    if "-" in name:
        raise ConfigError(f"'feed_forward_proj': {short(kind)} is neither an activation nor `gated-` and one")
    # Version 1.1 calls the tanh approximation plain gelu.
    name = "gelu_new" if kind == "gated-gelu" else name
    activation(name, "feed_forward_proj")
    # transformers writes what it made of this beside it, and lets that win where the two differ.
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
        # The first releases stored one more table, which their own code never read.
        Drop(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"),
    )
