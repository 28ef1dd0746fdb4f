"""The FastConformer encoder (Rekesh et al. 2023, arXiv:2305.05084), which several speech models have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import (
    ConfigError,
    ConformerLayerConfig,
    FeedForwardConfig,
    LogMelSubsamplingConfig,
    NormConfig,
    NormSlots,
    RelativeAttentionConfig,
    StackConfig,
)
from models.families.shared.fields import Fields, head_width
from weights.rules import Drop, Rename, Rule, block_diagonal

_NORM = NormConfig("layer", 1e-5)
_HALF = NormSlots(input=_NORM, scale=0.5)
_LINEAR = r"\.(weight|bias)"
_FEED_FORWARDS = (("feed_forward1", "first_feed_forward"), ("feed_forward2", "feed_forward"))
_PROJECTIONS = (("q", "q", "query"), ("k", "k", "key"), ("v", "v", "value"), ("o", "out", "output"))
_NORMS = (
    ("norm_feed_forward1", "first_feed_forward_norms.input"),
    ("norm_self_att", "attention_norms.input"),
    ("norm_conv", "convolution_norms.input"),
    ("norm_feed_forward2", "feed_forward_norms.input"),
    ("norm_out", "output_norm"),
)


def encoder_fields(hf: Mapping[str, Any], defaults: Mapping[str, Any]) -> Fields:
    """Typed access to the settings in `encoder_config`, with `defaults` for absent settings.

    Raises ConfigError if `encoder_config` is no object.
    """
    inner = hf.get("encoder_config") or {}
    if not isinstance(inner, dict):
        raise ConfigError("'encoder_config' must be an object")
    return Fields(inner, defaults=defaults)


def embedding_config(encoder: Fields, dither: float = 0.0) -> LogMelSubsamplingConfig:
    """Configuration of the layers that turn audio samples into the encoder's input.

    dither: standard deviation of the noise that is added to the samples, 0 for no noise.
    Raises ConfigError unless `subsampling_factor` is a power of two from 2 to 64.
    """
    factor = encoder.integer("subsampling_factor")
    if factor.bit_count() != 1 or not 2 <= factor <= 64:
        raise ConfigError(f"'subsampling_factor' must be a power of two from 2 to 64, not {factor}")
    return LogMelSubsamplingConfig(
        encoder.integer("num_mel_bins"),
        encoder.integer("subsampling_conv_channels"),
        encoder.integer("subsampling_conv_kernel_size"),
        factor.bit_length() - 1,
        float(encoder.integer("hidden_size") ** 0.5) if encoder.flag("scale_input") else 1.0,
        dither,
    )


def layer_configs(encoder: Fields) -> tuple[ConformerLayerConfig, ...]:
    """Configurations of the encoder's layers, which are all equal. Raises ConfigError for unsupported settings."""
    heads, bias = encoder.integer("num_attention_heads"), encoder.flag("attention_bias")
    encoder.refuse_unless("num_key_value_heads", heads)
    encoder.refuse_unless("subsampling_conv_stride", 2)
    head_dim = head_width(encoder.integer("hidden_size"), heads)
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
    return (layer,) * encoder.integer("num_hidden_layers")


def encoder_rules(stack: StackConfig | None, prefix: str = "") -> tuple[Rule, ...]:
    """Rules for the encoder's tensors, with the names of transformers and with those of NVIDIA NeMo.

    prefix: regular expression for what precedes `encoder` in the names, without capturing groups.
    """
    assert stack is not None and isinstance(stack.embedding, LogMelSubsamplingConfig)
    theirs, ours = rf"{prefix}encoder\.layers\.(\d+)\.", r"encoder.layers.\1."
    attention = theirs + r"self_attn\."
    return (
        *_subsampling_rules(stack.embedding.num_halvings, prefix),
        *(
            Rename(theirs + rf"{block}\.linear{number}{_LINEAR}", ours + rf"{name}.{part}.\2")
            for block, name in _FEED_FORWARDS
            for number, part in ((1, "up"), (2, "down"))
        ),
        *(
            Rename(attention + rf"(?:{short}_proj|linear_{nemo}){_LINEAR}", ours + rf"attention.{name}.\2")
            for short, nemo, name in _PROJECTIONS
        ),
        Rename(attention + r"(?:relative_k_proj|linear_pos)\.weight", ours + "attention.distance_key.weight"),
        Rename(attention + r"(?:pos_)?bias_u", ours + "attention.content_bias"),
        Rename(attention + r"(?:pos_)?bias_v", ours + "attention.distance_bias"),
        *(
            rule
            for number, name in ((1, "input"), (2, "output"))
            for rule in pointwise_rules(theirs + rf"conv\.pointwise_conv{number}", ours + f"convolution.{name}", 2)
        ),
        Rename(theirs + r"conv\.depthwise_conv" + _LINEAR, ours + r"convolution.depthwise.\2"),
        Rename(theirs + r"conv\.(?:batch_)?norm" + _LINEAR, ours + r"convolution.norm.\2"),
        Rename(theirs + r"conv\.(?:batch_)?norm\.running_mean", ours + "convolution.norm.mean"),
        Rename(theirs + r"conv\.(?:batch_)?norm\.running_var", ours + "convolution.norm.variance"),
        Drop(theirs + r"conv\.(?:batch_)?norm\.num_batches_tracked"),
        *(Rename(theirs + block + _LINEAR, ours + rf"{name}.\2") for block, name in _NORMS),
    )


def pointwise_rules(theirs: str, ours: str, group: int) -> tuple[Rule, Rule]:
    """Rules for a convolution with kernel size 1, which is loaded as a matrix.

    theirs, ours: the convolution's name in the checkpoint (a regular expression) and in the model.
    group: index of the first regular expression group after the groups of `theirs`.
    """
    return (
        Rule(theirs + r"\.weight", (ours + ".weight",), (block_diagonal(1),)),
        Rename(theirs + r"\.(bias)", ours + rf".\{group}"),
    )


def _subsampling_rules(num_halvings: int, prefix: str) -> list[Rule]:
    """Rules for the convolutions that shorten the input. Checkpoints number convolutions and activations in one list.

    num_halvings: number of convolutions that halve the number of frames.
    """
    numbers = [0, *(number for pair in range(num_halvings - 1) for number in (3 * pair + 2, 3 * pair + 3))]
    theirs, ours = rf"{prefix}encoder\.", "encoder.embedding."
    convolutions = r"subsampling\.layers|pre_encode\.conv"
    found = [
        Rename(f"{theirs}(?:{convolutions})" + rf"\.{number}{_LINEAR}", rf"{ours}convolutions.{index}.\1")
        for index, number in enumerate(numbers)
    ]
    return [*found, Rename(theirs + r"(?:subsampling\.linear|pre_encode\.out)" + _LINEAR, rf"{ours}projection.\1")]
