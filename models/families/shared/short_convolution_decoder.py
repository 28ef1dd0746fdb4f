"""Decoders of LFM2: gated short convolutions in most layers, attention in the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    FeedForwardConfig,
    LanguageModelHead,
    MixtureOfExpertsConfig,
    ModelConfig,
    NormConfig,
    QueryKeyNorm,
    ShortConvolutionConfig,
)
from models.families.shared.fields import Fields
from models.families.shared.gguf import Settings, rotary_settings
from models.families.shared.gguf_mixers import gguf_short_convolution_rules
from models.families.shared.layer_types import layer_types, mixer_layer
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import head_dim_of, rotary_decoder, rotary_layer
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule

LAYER = r"model\.layers\.(\d+)\."
OURS = r"decoder.layers.\1."


def short_convolution_decoder(
    fields: Fields,
    feed_forwards: Sequence[FeedForwardConfig | MixtureOfExpertsConfig],
    default_types: Sequence[str] = (),
) -> ModelConfig:
    """Configuration of a decoder whose layers have short convolutions or attention, by `layer_types`.

    feed_forwards: one per layer.
    default_types: type of each layer, `conv` or `full_attention`, if the file does not have `layer_types`.
    """
    head_dim, norm = head_dim_of(fields), NormConfig("rms", fields.number("norm_eps"), bias=False)
    rope, hidden_size = rope_config(fields, head_dim), fields.integer("hidden_size")
    mixer = ShortConvolutionConfig(
        hidden_size, fields.integer("conv_L_cache", least=2), fields.flag("conv_bias", False)
    )
    layers = [
        mixer_layer(mixer, norm, feed_forward)
        if kind == "conv"
        else rotary_layer(
            fields,
            head_dim=head_dim,
            num_kv_heads=fields.integer("num_key_value_heads"),
            rope=rope,
            norm=norm,
            feed_forward=feed_forward,
            query_key_norm=QueryKeyNorm(norm),
        )
        for kind, feed_forward in zip(
            layer_types(fields, ("conv", "full_attention"), default_types, len(feed_forwards)),
            feed_forwards,
            strict=True,
        )
    ]
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    return rotary_decoder(fields, layers, norm, max_positions, default_tied=True)


def with_tied_name(hf: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copy the contents of `config.json`, with `tie_word_embeddings` from the older name `tie_embedding` if present."""
    return {**hf, "tie_word_embeddings": hf["tie_embedding"]} if "tie_embedding" in hf else hf


def short_convolution_rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    """Rules for all tensors except those of mixtures of experts."""
    tokens, ours = "decoder.embedding.tokens.weight", OURS
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    return (
        Rename(r"model\.embed_tokens\.weight", tokens),
        Rename(LAYER + r"operator_norm\.weight", ours + "attention_norms.input.weight"),
        Rename(LAYER + r"ffn_norm\.weight", ours + "feed_forward_norms.input.weight"),
        Rename(LAYER + r"conv\.in_proj\.(weight|bias)", ours + r"mixer.input.\2"),
        Rename(LAYER + r"conv\.conv\.(weight|bias)", ours + r"mixer.convolution.\2"),
        Rename(LAYER + r"conv\.out_proj\.(weight|bias)", ours + r"mixer.output.\2"),
        *(
            Rename(LAYER + rf"self_attn\.{theirs}\.weight", f"{ours}attention.{name}.weight")
            for theirs, name in (
                ("q_proj", "query"),
                ("k_proj", "key"),
                ("v_proj", "value"),
                ("out_proj", "output"),
                ("q_layernorm", "query_norm"),
                ("k_layernorm", "key_norm"),
            )
        ),
        *(
            Rename(LAYER + rf"feed_forward\.{theirs}\.weight", f"{ours}feed_forward.{name}.weight")
            for theirs, name in (("w1", "gate"), ("w3", "up"), ("w2", "down"))
        ),
        Rename(r"model\.embedding_norm\.weight", "decoder.final_norm.weight"),
        Rename(r"lm_head\.weight", tokens if tied else "head.weight"),
    )


def short_convolution_gguf_settings(of: Metadata, **more: Any) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file. more: further settings to add."""
    mixing = of.layers_with("shortconv.conv.weight")
    return rotary_settings(
        of,
        layer_types=["conv" if layer in mixing else "full_attention" for layer in range(of.layers)],
        conv_L_cache=of.integer("shortconv.l_cache"),
        conv_bias=bool(of.layers_with("shortconv.conv.bias")),
        norm_eps=of.number("attention.layer_norm_rms_epsilon"),
        **more,
    )


def short_convolution_gguf_rules(model: ModelConfig) -> Sequence[Rule]:
    """Rules for the short convolutions and the final norm in GGUF files.

    Some files call the final norm `token_embd_norm`.
    """
    return (
        Rename(r"(?:token_embd_norm|output_norm)\.weight", "decoder.final_norm.weight"),
        *gguf_short_convolution_rules(),
    )
