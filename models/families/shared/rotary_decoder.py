"""Decoders like LLaMA: RMS pre-norm, rotary positions, grouped-query attention, gated feed-forward.

With `is_causal: false` (transformers 5), the same layers are an encoder, whose tokens attend to the whole text.
This file has no defaults for sizes, activations or epsilons: each family states them as `Fields(defaults=...)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelHead,
    LayerConfig,
    MixtureOfExpertsConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    QueryKeyNorm,
    QueryScale,
    RopeConfig,
    StackConfig,
    XieluFeedForwardConfig,
)
from models.families.shared.fields import Fields, head_width
from models.families.shared.rename_rules import renamed
from models.families.shared.rope import rope_config, scaled_max_positions
from weights.rules import Drop, Rename, Rule


def head_dim_of(fields: Fields, default: int | None = None) -> int:
    """Width of one head: the setting `head_dim`, else `default`, else the hidden size divided by the number of heads.

    Raises ConfigError if that division has a remainder.
    """
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    return fields.optional_integer("head_dim") or default or head_width(hidden, heads)


def rms_norm(fields: Fields, kind: Literal["rms", "rms_from_one"] = "rms") -> NormConfig:
    """Configuration of every norm of a model: an RMS norm with the setting `rms_norm_eps`.

    kind: `rms`, or `rms_from_one` for norms that multiply by 1 plus their weights.
    """
    return NormConfig(kind, fields.number("rms_norm_eps"), bias=False)


def gated_feed_forward(
    fields: Fields, intermediate_size: int | None = None, *, bias: bool = False
) -> FeedForwardConfig:
    """Configuration of a gated feed-forward with the activation `hidden_act`.

    intermediate_size: None for the setting of that name. bias: whether its matrices have biases.
    """
    width = fields.integer("intermediate_size") if intermediate_size is None else intermediate_size
    return FeedForwardConfig(width, fields.activation("hidden_act"), gated=True, bias=bias)


AnyFeedForward = FeedForwardConfig | XieluFeedForwardConfig | MixtureOfExpertsConfig


class LayerOptions(TypedDict, total=False):
    """Options in which the layers of a family differ from LLaMA's.

    window: sliding window in tokens, None for full attention. In an encoder it extends to both sides of the query.
    qkv_bias: whether the projections of queries, keys and values have biases.
    output_bias: whether the output projection has a bias.
    scale: factor of the attention scores, None for `head_dim ** -0.5`.
    score_cap: soft cap of the attention scores, None for no cap.
    query_key_norm: norms of queries and keys, None for no norms.
    norm_slots: places of the norms in each sublayer: `input`, `output`.
    parallel: whether attention and feed-forward have the same normed input, and both results are added to the residual.
    residual_scale: factor of attention's and the feed-forward's results before the residual is added.
    clip: largest magnitude of queries, keys and values, None for no limit.
    query_scale: scale of queries by position, None for unscaled queries.
    output_gate: whether a gate multiplies the result of attention.
    sinks: whether each head has an attention sink, a learned score of a key without value.
    """

    window: int | None
    qkv_bias: bool
    output_bias: bool
    scale: float | None
    score_cap: float | None
    query_key_norm: QueryKeyNorm | None
    norm_slots: Sequence[Literal["input", "output"]]
    parallel: bool
    residual_scale: float
    clip: float | None
    query_scale: QueryScale | None
    output_gate: bool
    sinks: bool


def rotary_layer(
    fields: Fields,
    *,
    head_dim: int,
    num_kv_heads: int,
    rope: RopeConfig | None,
    norm: NormConfig,
    feed_forward: AnyFeedForward,
    **options: Unpack[LayerOptions],
) -> LayerConfig:
    """Configuration of one layer of a decoder, or of an encoder if `is_causal` is false.

    rope: rotary positions, None for a layer without positions.
    norm: norm in each of `norm_slots`, by default the input norm of attention and of the feed-forward.
    options: differences from the layers of LLaMA.
    """
    qkv_bias, scale, window = options.get("qkv_bias", False), options.get("scale"), options.get("window")
    residual_scale, parallel = options.get("residual_scale", 1.0), options.get("parallel", False)
    norms = NormSlots(**dict.fromkeys(options.get("norm_slots", ("input",)), norm), scale=residual_scale)
    causal = fields.flag("is_causal", True)
    attention = AttentionConfig(
        num_heads=fields.integer("num_attention_heads"),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5 if scale is None else scale,
        causal=causal,
        query_bias=qkv_bias,
        key_bias=qkv_bias,
        value_bias=qkv_bias,
        output_bias=options.get("output_bias", False),
        rope=rope,
        query_key_norm=options.get("query_key_norm"),
        window=window if window is None or causal else window + 1,
        clip=options.get("clip"),
        score_cap=options.get("score_cap"),
        query_scale=options.get("query_scale"),
        output_gate=options.get("output_gate", False),
        sinks=options.get("sinks", False),
    )
    second = NormSlots(scale=residual_scale) if parallel else norms
    return LayerConfig(attention, norms, feed_forward, second, parallel=parallel)


def rotary_decoder(
    fields: Fields,
    layers: Sequence[LayerConfig],
    final_norm: NormConfig,
    max_positions: int | None,
    *,
    default_tied: bool = False,
    embedding_scale: float = 1.0,
    logit_scale: float = 1.0,
    logit_cap: float | None = None,
    logit_bias: bool = False,
) -> ModelConfig:
    """Configuration of a decoder with a language model head, or of an encoder if a layer's attention is not causal.

    max_positions: longest text in tokens, None for no limit.
    default_tied: whether logits use the token embeddings if `config.json` has no `tie_word_embeddings`.
    embedding_scale, logit_scale: factors of the token embeddings and of the logits.
    logit_cap: soft cap of the logits, None for no cap. logit_bias: whether the logits have a bias.
    """
    vocab_size = fields.integer("vocab_size")
    causal = all(layer.attention is None or layer.attention.causal for layer in layers)
    stack = StackConfig(EmbeddingConfig(vocab_size, embedding_scale), tuple(layers), final_norm=final_norm)
    return ModelConfig(
        hidden_size=fields.integer("hidden_size"),
        vocab_size=vocab_size,
        head=LanguageModelHead(
            tied=fields.flag("tie_word_embeddings", default_tied), bias=logit_bias, scale=logit_scale, cap=logit_cap
        ),
        encoder=None if causal else stack,
        decoder=stack if causal else None,
        max_positions=max_positions,
    )


def llama_decoder(
    fields: Fields,
    feed_forward: AnyFeedForward | Sequence[AnyFeedForward],
    *,
    windows: Sequence[int | None] = (),
    ropes: Sequence[RopeConfig | None] = (),
    rope: RopeConfig | None = None,
    norm: NormConfig | None = None,
    head_dim: int | None = None,
    num_kv_heads: int | None = None,
    max_positions: int | None = None,
    default_tied: bool = False,
    embedding_scale: float = 1.0,
    logit_scale: float = 1.0,
    logit_cap: float | None = None,
    logit_bias: bool = False,
    **options: Unpack[LayerOptions],
) -> ModelConfig:
    """Configuration of a decoder with the layers of LLaMA. They are equal, except for what is given for each layer.

    fields: settings with defaults for all sizes that `config.json` may leave out.
    feed_forward: feed-forward of all layers, or of each layer.
    windows: sliding window of each layer; empty for the same window in all layers.
    ropes: rotary positions of each layer, None for a layer without positions; empty for `rope` in all layers.
    rope: rotary positions; None to read them from the settings, for heads that rotate as a whole.
    norm: norm of every sublayer, None for an RMS norm with `rms_norm_eps`.
    head_dim: None for the setting `head_dim`, or without it the hidden size divided by the number of heads.
    num_kv_heads: None for `num_key_value_heads`, or without it one key-value head per query head.
    max_positions: longest text in tokens, None for `max_position_embeddings`.
    default_tied: whether logits use the token embeddings if the file has no `tie_word_embeddings`.
    embedding_scale, logit_scale: factors of the token embeddings and of the logits.
    logit_cap: soft cap of the logits, None for no cap. logit_bias: whether the logits have a bias.
    options: differences from the layers of LLaMA.
    """
    width = head_dim_of(fields) if head_dim is None else head_dim
    rotation = rope_config(fields, width) if rope is None else rope
    every_norm = rms_norm(fields) if norm is None else norm
    kv_heads = num_kv_heads or fields.integer("num_key_value_heads", fields.integer("num_attention_heads"))

    def layer(index: int) -> LayerConfig:
        own: LayerOptions = {**options, "window": windows[index]} if windows else options
        return rotary_layer(
            fields,
            head_dim=width,
            num_kv_heads=kv_heads,
            rope=ropes[index] if ropes else rotation,
            norm=every_norm,
            feed_forward=feed_forward[index] if isinstance(feed_forward, Sequence) else feed_forward,
            **own,
        )

    if max_positions is None:
        max_positions = scaled_max_positions(rotation, fields.integer("max_position_embeddings"))
    return rotary_decoder(
        fields,
        [layer(index) for index in range(fields.integer("num_hidden_layers"))],
        every_norm,
        max_positions,
        default_tied=default_tied,
        embedding_scale=embedding_scale,
        logit_scale=logit_scale,
        logit_cap=logit_cap,
        logit_bias=logit_bias,
    )


def rotary_rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    """Rules for the tensor names of LLaMA, which most later decoders share.

    `post_attention_layernorm` has two meanings: the norm of attention's output in families with output norms
    (Gemma 2, OLMo 2), and the norm before the feed-forward in all others.
    """
    stack, side = (model.encoder, "encoder") if model.decoder is None else (model.decoder, "decoder")
    assert stack is not None
    output_norms = stack.layers[0].attention_norms.output is not None
    tokens = f"{side}.embedding.tokens.weight"
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    layer, ours = r"model\.layers\.(\d+)\.", rf"{side}.layers.\1."
    return (
        Rename(r"model\.embed_tokens\.weight", tokens),
        Rename(layer + r"input_layernorm\.(weight|bias)", ours + r"attention_norms.input.\2"),
        Rename(layer + r"self_attn\.q_proj\.(weight|bias)", ours + r"attention.query.\2"),
        Rename(layer + r"self_attn\.k_proj\.(weight|bias)", ours + r"attention.key.\2"),
        Rename(layer + r"self_attn\.v_proj\.(weight|bias)", ours + r"attention.value.\2"),
        Rename(layer + r"self_attn\.o_proj\.(weight|bias)", ours + r"attention.output.\2"),
        Rename(layer + r"self_attn\.q_norm\.weight", ours + "attention.query_norm.weight"),
        Rename(layer + r"self_attn\.k_norm\.weight", ours + "attention.key_norm.weight"),
        Rename(
            layer + r"post_attention_layernorm\.(weight|bias)",
            ours + ("attention_norms.output" if output_norms else "feed_forward_norms.input") + r".\2",
        ),
        Rename(layer + r"pre_feedforward_layernorm\.weight", ours + "feed_forward_norms.input.weight"),
        Rename(layer + r"post_feedforward_layernorm\.weight", ours + "feed_forward_norms.output.weight"),
        Rename(layer + r"mlp\.(gate|up|down)_proj\.(weight|bias)", ours + r"feed_forward.\2.\3"),
        Rename(r"model\.norm\.(weight|bias)", rf"{side}.final_norm.\1"),
        Rename(r"lm_head\.weight", tokens if tied else "head.weight"),
        Rename(r"lm_head\.bias", "head.bias"),
        Drop(layer + r"self_attn\.rotary_emb\.inv_freq"),
    )


def headless_rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    """Rules for the tensor names of LLaMA in a checkpoint whose language model head, if it has one, is not used.

    The names may lack the prefix `model.`.
    """
    body = rotary_rules(replace(model, head=LanguageModelHead(tied=True)), hf, architecture)
    return (Drop(r"lm_head\..*"), *renamed(body, r"model\.", r"(?:model\.)?"))
