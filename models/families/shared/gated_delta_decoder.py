"""Decoders of Qwen3-Next and Qwen3.5: gated delta rule in most layers, gated attention in the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, GatedDeltaConfig, MixtureOfExpertsConfig, ModelConfig, QueryKeyNorm
from models.config.errors import require
from models.families.shared.fields import Fields
from models.families.shared.gguf import (
    INPUT_NORM_AFTER_ATTENTION,
    GgufFamily,
    Settings,
    has_bias,
    partly_rotary_settings,
    prediction_layers,
    rms_eps,
)
from models.families.shared.gguf_mixers import gguf_gated_delta_rules
from models.families.shared.layer_types import layer_types, mixer_layer
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import head_dim_of, rms_norm, rotary_decoder, rotary_layer, rotary_rules
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule, Split

LAYER = r"model\.layers\.(\d+)\."
OURS = r"decoder.layers.\1."


def gated_delta_decoder(
    fields: Fields, feed_forwards: Sequence[FeedForwardConfig | MixtureOfExpertsConfig]
) -> ModelConfig:
    """Configuration of a decoder whose layers have a gated delta rule or gated attention, by `layer_types`.

    feed_forwards: one per layer.
    Raises ConfigError for another activation than SiLU.
    """
    # The convolution has the activation of the feed-forwards; its kernels support SiLU only.
    fields.refuse_unless("hidden_act", "silu", "swish")
    head_dim, norm = head_dim_of(fields), rms_norm(fields, "rms_from_one")
    bias = fields.flag("attention_bias", False)
    rope = rope_config(fields, head_dim, default_share=0.25)
    mixer = gated_delta_config(fields, norm.eps)
    layers = [
        mixer_layer(mixer, norm, feed_forward)
        if kind == "linear_attention"
        else rotary_layer(
            fields,
            head_dim=head_dim,
            num_kv_heads=fields.integer("num_key_value_heads"),
            rope=rope,
            norm=norm,
            feed_forward=feed_forward,
            qkv_bias=bias,
            output_bias=bias,
            query_key_norm=QueryKeyNorm(norm),
            output_gate=True,
        )
        for kind, feed_forward in zip(_kinds(fields, len(feed_forwards)), feed_forwards, strict=True)
    ]
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    return rotary_decoder(fields, layers, norm, max_positions)


def gated_delta_config(fields: Fields, eps: float) -> GatedDeltaConfig:
    """Configuration of a layer's gated delta rule. eps: epsilon of its output norm."""
    return GatedDeltaConfig(
        num_key_heads=fields.integer("linear_num_key_heads"),
        key_head_dim=fields.integer("linear_key_head_dim"),
        num_value_heads=fields.integer("linear_num_value_heads"),
        value_head_dim=fields.integer("linear_value_head_dim"),
        kernel_size=fields.integer("linear_conv_kernel_dim", least=2),
        norm_eps=eps,
    )


def _kinds(fields: Fields, layers: int) -> list[str]:
    interval = fields.integer("full_attention_interval")
    default = ["linear_attention" if (index + 1) % interval else "full_attention" for index in range(layers)]
    return layer_types(fields, ("linear_attention", "full_attention"), default, layers)


def gated_delta_rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    """Rules for all tensors except the input projections of the gated delta rule."""
    return (
        _gated_queries(model, LAYER + r"self_attn\.q_proj"),
        *delta_rules(),
        *rotary_rules(model, hf, architecture),
        # The head for multi-token prediction only drafts tokens.
        Drop(r"mtp\..*"),
    )


def delta_rules() -> Sequence[Rule]:
    """Rules for the tensors of the gated delta rule, except its input projections."""
    theirs, ours = LAYER + r"linear_attn\.", OURS + "mixer."
    return (
        Rename(theirs + r"conv1d\.weight", ours + "convolution.weight"),
        Rename(theirs + "A_log", ours + "log_decay"),
        Rename(theirs + "dt_bias", ours + "decay_bias"),
        Rename(theirs + r"norm\.weight", ours + "norm.weight"),
        Rename(theirs + r"out_proj\.weight", ours + "output.weight"),
    )


def _gated_queries(model: ModelConfig, theirs: str) -> Rule:
    """Rule for a matrix with the rows of queries and output gates: each query head is followed by its gate.

    theirs: regular expression for the matrix's name in the file, without `.weight`.
    """
    assert model.decoder is not None
    heads = [layer.attention.num_heads for layer in model.decoder.layers if layer.attention is not None]
    names = (OURS + r"attention.query.\2", OURS + r"attention.gate.\2")
    return Split(rf"{theirs}\.(weight|bias)", names, groups=heads[0] if heads else 1)


def gated_delta_gguf(architecture: str, settings: Callable[[Metadata], Settings], *, reordered: bool) -> GgufFamily:
    """Describe how to read the GGUF files of a family with the gated delta rule.

    architecture: name of the family in these files.
    settings: returns the settings that only this family has.
    reordered: whether the files interleave the value heads of different key heads, as files of Qwen3.5 do.
    """

    def rules(model: ModelConfig) -> Sequence[Rule]:
        return (
            prediction_layers(model),
            _gated_queries(model, r"blk\.(\d+)\.attn_q"),
            *gguf_gated_delta_rules(delta_mixer(model), reordered=reordered),
        )

    def all_settings(of: Metadata) -> Settings:
        mixing, heads = of.layers_with("ssm_a"), of.integer("ssm.time_step_rank")
        return partly_rotary_settings(
            of,
            layer_types=["linear_attention" if layer in mixing else "full_attention" for layer in range(of.layers)],
            attention_bias=has_bias(of, "attn_q"),
            linear_num_key_heads=of.integer("ssm.group_count"),
            linear_key_head_dim=of.integer("ssm.state_size"),
            linear_num_value_heads=heads,
            linear_value_head_dim=of.integer("ssm.inner_size") // max(heads, 1),
            linear_conv_kernel_dim=of.integer("ssm.conv_kernel"),
            **rms_eps(of),
            **settings(of),
        )

    return GgufFamily({architecture: all_settings}, rules=rules, norms=INPUT_NORM_AFTER_ATTENTION)


def separate_input_rules(model: ModelConfig) -> Sequence[Rule]:
    """Rules for the input projections of Qwen3.5. The fused matrix has all queries, then all keys, then all values."""
    mixer, theirs, ours = delta_mixer(model), LAYER + r"linear_attn\.in_proj_", OURS + "mixer."
    return (
        Split(
            theirs + r"qkv\.weight",
            [f"{ours}{part}.weight" for part in ("query", "key", "value")],
            sizes=(mixer.key_width, mixer.key_width, mixer.value_width),
        ),
        Rename(theirs + r"z\.weight", ours + "gate.weight"),
        Rename(theirs + r"b\.weight", ours + "beta.weight"),
        Rename(theirs + r"a\.weight", ours + "decay.weight"),
    )


def grouped_input_rules(model: ModelConfig) -> Sequence[Rule]:
    """Rules for the input projections of Qwen3-Next.

    There are two fused matrices, whose rows are grouped by key head. A group of the first has the query, the key, the
    values and the gates of a key head; a group of the second has its betas and decays.
    """
    mixer, theirs, ours = delta_mixer(model), LAYER + r"linear_attn\.in_proj_", OURS + "mixer."
    value_width = mixer.value_width // mixer.num_key_heads
    return (
        Split(
            theirs + r"qkvz\.weight",
            [f"{ours}{part}.weight" for part in ("query", "key", "value", "gate")],
            sizes=(mixer.key_head_dim, mixer.key_head_dim, value_width, value_width),
            groups=mixer.num_key_heads,
        ),
        Split(
            theirs + r"ba\.weight",
            [f"{ours}{part}.weight" for part in ("beta", "decay")],
            groups=mixer.num_key_heads,
        ),
    )


def delta_mixer(model: ModelConfig) -> GatedDeltaConfig:
    """Configuration of the gated delta rule, which is the same in all layers that have one.

    Raises ConfigError if no layer has one.
    """
    assert model.decoder is not None
    mixers = [layer.mixer for layer in model.decoder.layers if isinstance(layer.mixer, GatedDeltaConfig)]
    require(len(mixers) > 0, "'layer_types' names no layer of type linear_attention")
    return mixers[0]
