"""T5 (Raffel et al. 2020, arXiv:1910.10683), versions 1.0 and 1.1: RMS pre-norm, position buckets, no biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    BucketBiasConfig,
    ConfigError,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    LanguageModelHead,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    PoolingHead,
    StackConfig,
)
from models.families.family import Family
from models.families.fields import Fields, activation, short
from models.families.t5_heads import with_t5_heads
from models.generation_defaults import GenerationDefaults
from weights.rules import Drop, Rename, Rule

_TOKENS = "encoder.embedding.tokens.weight"


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    hidden, vocab = fields.integer("d_model", 512), fields.integer("vocab_size", 32128)
    num_layers = fields.integer("num_layers", 6)
    decoder: StackConfig | None = None
    head: HeadConfig = PoolingHead()
    if architecture != "T5EncoderModel":
        decoder = _stack(fields, vocab, fields.integer("num_decoder_layers", num_layers), decoder=True)
        head = _head(fields, hidden)
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=head,
        encoder=_stack(fields, vocab, num_layers, decoder=False),
        decoder=decoder,
        shared_embeddings=decoder is not None,
    )


def _head(fields: Fields, hidden: int) -> HeadConfig:
    """Version 1.0 ties the logits to the embeddings and scales them; 1.1 does neither.

    transformers 5 writes the scaling as `scale_decoder_outputs`; before, `tie_word_embeddings` told the versions apart.
    """
    first_version = fields.flag("scale_decoder_outputs", fields.flag("tie_word_embeddings", True))
    return LanguageModelHead(tied=first_version, scale=hidden**-0.5 if first_version else 1.0)


def _stack(fields: Fields, vocab: int, num_layers: int, decoder: bool) -> StackConfig:
    norm = NormConfig("rms", fields.number("layer_norm_epsilon", 1e-6), bias=False)
    before = NormSlots(input=norm)

    def attention(causal: bool) -> AttentionConfig:
        heads, head_dim = fields.integer("num_heads", 8), fields.integer("d_kv", 64)
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
    )
    return StackConfig(EmbeddingConfig(vocab), (layer,) * num_layers, final_norm=norm, score_bias=buckets)


def _feed_forward(fields: Fields) -> FeedForwardConfig:
    kind = fields.text("feed_forward_proj", "relu")
    gated, name = kind.startswith("gated-"), kind.removeprefix("gated-")
    if "-" in name:
        raise ConfigError(f"'feed_forward_proj': {short(kind)} is neither an activation nor `gated-` and one")
    # Version 1.1 calls the tanh approximation plain gelu.
    known = "gelu_new" if kind == "gated-gelu" else name
    return FeedForwardConfig(fields.integer("d_ff", 2048), activation(known, "feed_forward_proj"), gated, bias=False)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    layer, ours = r"(encoder|decoder)\.block\.(\d+)\.layer\.", r"\1.layers.\2."
    encoder_end, decoder_middle = r"encoder\.block\.(\d+)\.layer\.1\.", r"decoder\.block\.(\d+)\.layer\.1\."
    return (
        Rename(r"shared\.weight", _TOKENS),
        Rename(r"(?:encoder|decoder)\.embed_tokens\.weight", _TOKENS),
        Rename(
            r"(encoder|decoder)\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.weight",
            r"\1.score_bias.weight",
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
        Rename(r"lm_head\.weight", _TOKENS if tied else "head.weight"),
        # The first releases stored one more table, which their own code never read.
        Drop(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"),
    )


FAMILY = with_t5_heads(
    "T5",
    Family(
        name="t5",
        model_types=("t5",),
        architectures={
            "T5ForConditionalGeneration": ("generate", "translate"),
            "T5WithLMHeadModel": ("generate", "translate"),
            "T5EncoderModel": ("embed",),
        },
        config=config,
        rules=rules,
        generation=GenerationDefaults(end_token_ids=(1,), pad_token_id=0, decoder_start_token_ids=(0,)),
        # transformers 5 saves a version 1.1 whose logits were never untied without its `lm_head`.
        tied_if_absent={"head.weight": _TOKENS},
        refused_dtypes={"float16": "T5's feed-forward sums exceed float16; use bfloat16 or float32"},
    ),
)
