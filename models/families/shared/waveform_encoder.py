"""Families with the encoder of wav2vec 2.0 and a CTC head: convolutions over audio samples, then transformer layers.

The layers are post-norm as in BERT, or pre-norm in large checkpoints (`do_stable_layer_norm`).
Source: Baevski et al. 2020, arXiv:2006.11477.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from models.config import (
    ConfigError,
    CtcHead,
    FeedForwardConfig,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
    WaveformEmbeddingConfig,
)
from models.families.shared.bert_config import encoder_attention
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from weights.rules import Drop, Rename, Rule

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "feat_extract_norm": "group",
    "feat_extract_activation": "gelu",
    "conv_dim": [512] * 7,
    "conv_stride": [5, 2, 2, 2, 2, 2, 2],
    "conv_kernel": [10, 3, 3, 3, 3, 2, 2],
    "conv_bias": False,
    "num_conv_pos_embeddings": 128,
    "num_conv_pos_embedding_groups": 16,
    "do_stable_layer_norm": False,
}
_NORMED: Mapping[str, Literal["first", "all"]] = {"group": "first", "layer": "all"}


def ctc_family(name: str, classes: str, prefix: str) -> Family:
    """A family of speech encoders with a CTC head, which read audio samples.

    name: name of the family and its `model_type`.
    classes: start of its class names in transformers.
    prefix: start of the encoder's tensor names.
    """

    def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
        return ctc_config(hf)

    def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
        return ctc_rules(model, prefix + r"\.")

    return Family(name, (name,), {f"{classes}ForCTC": ("transcribe",)}, config, rules)


def ctc_config(hf: Mapping[str, Any]) -> ModelConfig:
    """Configuration of a speech encoder with a CTC head. hf: contents of `config.json`.

    Raises ConfigError for settings that are invalid or not supported.
    """
    fields = Fields(hf, defaults=_DEFAULTS)
    for setting in ("add_adapter", "conv_pos_batch_norm"):
        fields.refuse_unless(setting, False)
    fields.refuse_unless("adapter_attn_dim")
    fields.refuse_unless("feat_extract_activation", "gelu")
    norm = NormConfig("layer", fields.number("layer_norm_eps"))
    is_pre_norm, hidden_size = fields.flag("do_stable_layer_norm"), fields.integer("hidden_size")
    slots = NormSlots(input=norm) if is_pre_norm else NormSlots(residual=norm)
    layer = LayerConfig(
        encoder_attention(hidden_size, fields.integer("num_attention_heads")),
        slots,
        FeedForwardConfig(fields.integer("intermediate_size"), fields.activation("hidden_act")),
        slots,
    )
    embedding = _embedding(fields, hidden_size, norm, None if is_pre_norm else norm)
    layers = (layer,) * fields.integer("num_hidden_layers")
    encoder = StackConfig(embedding, layers, final_norm=norm if is_pre_norm else None)
    vocab_size = fields.integer("vocab_size")
    return ModelConfig(hidden_size, vocab_size, CtcHead(vocab_size), encoder=encoder)


def _embedding(
    fields: Fields, hidden_size: int, norm: NormConfig, sum_norm: NormConfig | None
) -> WaveformEmbeddingConfig:
    normed = fields.text("feat_extract_norm", "group")
    if normed not in _NORMED:
        raise ConfigError(f"'feat_extract_norm' must be group or layer, not {normed!r}")
    sizes = [fields.integers(setting) or [] for setting in ("conv_dim", "conv_kernel", "conv_stride")]
    count = fields.integer("num_feat_extract_layers", len(sizes[0]))
    for setting, values in zip(("conv_dim", "conv_kernel", "conv_stride"), sizes, strict=True):
        if len(values) != count or min(values, default=0) < 1:
            raise ConfigError(f"{setting!r} must have {count} positive entries, 'num_feat_extract_layers'")
    groups = fields.integer("num_conv_pos_embedding_groups")
    if hidden_size % groups:
        raise ConfigError(
            f"'num_conv_pos_embedding_groups': {groups} groups do not divide the hidden size {hidden_size}"
        )
    widths, kernels, strides = map(tuple, sizes)
    return WaveformEmbeddingConfig(
        widths,
        kernels,
        strides,
        fields.flag("conv_bias"),
        _NORMED[normed],
        norm if fields.flag("feat_proj_layer_norm", True) else None,
        fields.integer("num_conv_pos_embeddings"),
        groups,
        sum_norm,
    )


def ctc_rules(model: ModelConfig, prefix: str) -> Sequence[Rule]:
    """Rules for all tensors of a speech encoder with a CTC head.

    prefix: regular expression for the start of the encoder's tensor names.
    """
    assert model.encoder is not None and isinstance(model.encoder.embedding, WaveformEmbeddingConfig)
    is_pre_norm, normed = model.encoder.final_norm is not None, model.encoder.embedding.normed
    linear, slot = r"\.(weight|bias)", "input" if is_pre_norm else "residual"
    layer, ours = prefix + r"encoder\.layers\.(\d+)\.", r"encoder.layers.\1."
    convolution = prefix + r"feature_extractor\.conv_layers\."
    position = prefix + r"encoder\.pos_conv_embed\.conv\."
    embedding = "encoder.embedding."
    norm = rf"{embedding}convolutions.\1." + (r"channel_\2" if normed == "first" else r"norm.\2")
    return (
        Rename(convolution + r"(\d+)\.conv" + linear, rf"{embedding}convolutions.\1.\2"),
        Rename(convolution + r"(\d+)\.layer_norm" + linear, norm),
        Rename(prefix + r"feature_projection\.layer_norm" + linear, rf"{embedding}input_norm.\1"),
        Rename(prefix + r"feature_projection\.projection" + linear, rf"{embedding}projection.\1"),
        Rename(position + r"(?:weight_g|parametrizations\.weight\.original0)", f"{embedding}positions.scale"),
        Rename(position + r"(?:weight_v|parametrizations\.weight\.original1)", f"{embedding}positions.direction"),
        Rename(position + "bias", f"{embedding}positions.bias"),
        Rename(
            prefix + r"encoder\.layer_norm" + linear,
            r"encoder.final_norm.\1" if is_pre_norm else rf"{embedding}norm.\1",
        ),
        *(
            Rename(layer + rf"attention\.{theirs}{linear}", ours + rf"attention.{name}.\2")
            for theirs, name in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "output"))
        ),
        Rename(layer + r"layer_norm" + linear, ours + rf"attention_norms.{slot}.\2"),
        Rename(layer + r"feed_forward\.intermediate_dense" + linear, ours + r"feed_forward.up.\2"),
        Rename(layer + r"feed_forward\.output_dense" + linear, ours + r"feed_forward.down.\2"),
        Rename(layer + r"final_layer_norm" + linear, ours + rf"feed_forward_norms.{slot}.\2"),
        Rename(r"lm_head" + linear, r"head.output.\1"),
        Drop(prefix + "masked_spec_embed"),
    )
