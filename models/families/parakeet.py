"""Parakeet-CTC (Rekesh et al. 2023, arXiv:2305.05084): a FastConformer encoder with a CTC head over subwords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    ConfigError,
    ConformerLayerConfig,
    CtcHead,
    FeedForwardConfig,
    LogMelSubsamplingConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    RelativeAttentionConfig,
    StackConfig,
)
from models.families.shared.family import Family
from models.families.shared.fields import Fields, head_width
from weights.rules import Drop, Rename, Rule, block_diagonal

_ENCODER_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "hidden_act": "silu",
    "attention_bias": True,
    "convolution_bias": True,
    "conv_kernel_size": 9,
    "subsampling_factor": 8,
    "subsampling_conv_channels": 256,
    "num_mel_bins": 80,
    "subsampling_conv_kernel_size": 3,
    "scale_input": True,
}
_NORM = NormConfig("layer", 1e-5)
_HALF = NormSlots(input=_NORM, scale=0.5)
_LINEAR = r"\.(weight|bias)"
_FEED_FORWARDS = (("feed_forward1", "first_feed_forward"), ("feed_forward2", "feed_forward"))
_NORMS = (
    ("norm_feed_forward1", "first_feed_forward_norms.input"),
    ("norm_self_att", "attention_norms.input"),
    ("norm_conv", "convolution_norms.input"),
    ("norm_feed_forward2", "feed_forward_norms.input"),
    ("norm_out", "output_norm"),
)


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields, inner = Fields(hf, defaults={"vocab_size": 1025}), hf.get("encoder_config") or {}
    if not isinstance(inner, dict):
        raise ConfigError("'encoder_config' must be an object")
    encoder = Fields(inner, defaults=_ENCODER_DEFAULTS)
    hidden_size, vocab_size = encoder.integer("hidden_size"), fields.integer("vocab_size")
    heads, bias = encoder.integer("num_attention_heads"), encoder.flag("attention_bias")
    encoder.refuse_unless("num_key_value_heads", heads)
    encoder.refuse_unless("subsampling_conv_stride", 2)
    head_dim = head_width(hidden_size, heads)
    activation = encoder.activation("hidden_act")
    feed_forward = FeedForwardConfig(encoder.integer("intermediate_size"), activation, bias=bias)
    layer = ConformerLayerConfig(
        RelativeAttentionConfig(heads, heads, head_dim, head_dim**-0.5, False, bias, bias, bias, bias),
        NormSlots(input=_NORM),
        feed_forward,
        _HALF,
        first_feed_forward=feed_forward,
        kernel_size=encoder.integer("conv_kernel_size"),
        convolution_activation=activation,
        convolution_bias=encoder.flag("convolution_bias"),
        output_norm=_NORM,
    )
    factor = encoder.integer("subsampling_factor")
    if factor.bit_count() != 1 or not 2 <= factor <= 64:
        raise ConfigError(f"'subsampling_factor' must be a power of two from 2 to 64, not {factor}")
    embedding = LogMelSubsamplingConfig(
        encoder.integer("num_mel_bins"),
        encoder.integer("subsampling_conv_channels"),
        encoder.integer("subsampling_conv_kernel_size"),
        factor.bit_length() - 1,
        float(hidden_size**0.5) if encoder.flag("scale_input") else 1.0,
    )
    stack = StackConfig(embedding, (layer,) * encoder.integer("num_hidden_layers"))
    return ModelConfig(hidden_size, vocab_size, CtcHead(vocab_size), encoder=stack)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.encoder is not None and isinstance(model.encoder.embedding, LogMelSubsamplingConfig)
    layer, ours = r"encoder\.layers\.(\d+)\.", r"encoder.layers.\1."
    return (
        *_subsampling_rules(model.encoder.embedding.num_halvings),
        *(
            Rename(layer + rf"{theirs}\.linear{number}{_LINEAR}", ours + rf"{name}.{part}.\2")
            for theirs, name in _FEED_FORWARDS
            for number, part in ((1, "up"), (2, "down"))
        ),
        *(
            Rename(layer + rf"self_attn\.{theirs}_proj{_LINEAR}", ours + rf"attention.{name}.\2")
            for theirs, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
        ),
        Rename(layer + r"self_attn\.relative_k_proj\.weight", ours + "attention.distance_key.weight"),
        Rename(layer + r"self_attn\.bias_u", ours + "attention.content_bias"),
        Rename(layer + r"self_attn\.bias_v", ours + "attention.distance_bias"),
        *(
            rule
            for number, name in ((1, "input"), (2, "output"))
            for rule in _pointwise(layer + rf"conv\.pointwise_conv{number}", ours + f"convolution.{name}", 2)
        ),
        Rename(layer + r"conv\.depthwise_conv" + _LINEAR, ours + r"convolution.depthwise.\2"),
        Rename(layer + r"conv\.norm" + _LINEAR, ours + r"convolution.norm.\2"),
        Rename(layer + r"conv\.norm\.running_mean", ours + "convolution.norm.mean"),
        Rename(layer + r"conv\.norm\.running_var", ours + "convolution.norm.variance"),
        Drop(layer + r"conv\.norm\.num_batches_tracked"),
        *(Rename(layer + theirs + _LINEAR, ours + rf"{name}.\2") for theirs, name in _NORMS),
        *_pointwise(r"ctc_head", "head.output", 1),
    )


def _subsampling_rules(num_halvings: int) -> list[Rule]:
    """Rules for the convolutions, which the published code numbers together with their activations."""
    numbers = [0, *(number for pair in range(num_halvings - 1) for number in (3 * pair + 2, 3 * pair + 3))]
    theirs, ours = r"encoder\.subsampling\.", "encoder.embedding."
    found = [
        Rename(theirs + rf"layers\.{number}{_LINEAR}", rf"{ours}convolutions.{index}.\1")
        for index, number in enumerate(numbers)
    ]
    return [*found, Rename(theirs + "linear" + _LINEAR, rf"{ours}projection.\1")]


def _pointwise(theirs: str, ours: str, group: int) -> tuple[Rule, Rule]:
    """Rules for a convolution of size 1, which is a matrix here. group: number of the group after those of `theirs`."""
    return (
        Rule(theirs + r"\.weight", (ours + ".weight",), (block_diagonal(1),)),
        Rename(theirs + r"\.(bias)", ours + rf".\{group}"),
    )


FAMILY = Family(
    name="parakeet",
    model_types=("parakeet_ctc",),
    architectures={"ParakeetForCTC": ("transcribe",)},
    config=config,
    rules=rules,
)
