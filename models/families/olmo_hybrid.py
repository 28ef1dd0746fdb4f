"""OLMo Hybrid (Ai2 2026): gated delta rule in three of four layers, and the attention of OLMo 3 in the others.

In layers with attention, norms follow the sublayers; in layers with the delta rule, norms precede them. Published
checkpoints have no rotary positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import GatedDeltaConfig, ModelConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.layer_types import layer_types, mixer_layer
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rms_norm,
    rotary_decoder,
    rotary_layer,
    rotary_rules,
)
from weights.rules import Drop, Rename, Rule, Split

_NORM_EPS = 1e-5
"""Epsilon of the gated norm after the delta rule, fixed in the published code."""
_DEFAULTS = {
    "vocab_size": 100352,
    "hidden_size": 3840,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 30,
    "max_position_embeddings": 65536,
    "linear_conv_kernel_dim": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    rotates = not _states_no_base(hf)
    fields = Fields(hf if rotates else {**hf, "rope_parameters": None}, defaults=_DEFAULTS)
    # The convolution has the activation of the feed-forwards; its kernels support SiLU only.
    fields.refuse_unless("hidden_act", "silu", "swish")
    head_dim, norm, bias = head_dim_of(fields), rms_norm(fields), fields.flag("attention_bias", False)
    rope = rope_config(fields, head_dim)
    mixer, feed_forward = _mixer(fields), gated_feed_forward(fields)
    attention = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads")),
        rope=rope if rotates else None,
        norm=norm,
        feed_forward=feed_forward,
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm(norm, "all"),
        norm_slots=("output",),
    )
    mixing = mixer_layer(mixer, norm, feed_forward)
    layers = [mixing if kind == "linear_attention" else attention for kind in _kinds(fields)]
    return rotary_decoder(fields, layers, norm, scaled_max_positions(rope, fields.integer("max_position_embeddings")))


def _states_no_base(hf: Mapping[str, Any]) -> bool:
    """Whether the file states a null rotary base, so that the model has no rotary positions.

    A model whose file lacks the setting has rotary positions.
    """
    rope = hf.get("rope_parameters")
    return isinstance(rope, dict) and "rope_theta" in rope and rope["rope_theta"] is None


def _mixer(fields: Fields) -> GatedDeltaConfig:
    heads = fields.integer("num_attention_heads")
    key_heads = fields.integer("linear_num_key_heads", heads)
    key_dim = fields.integer("linear_key_head_dim", int(0.75 * fields.integer("hidden_size") / key_heads))
    return GatedDeltaConfig(
        num_key_heads=key_heads,
        key_head_dim=key_dim,
        num_value_heads=fields.integer("linear_num_value_heads", heads),
        value_head_dim=fields.integer("linear_value_head_dim", 2 * key_dim),
        kernel_size=fields.integer("linear_conv_kernel_dim", least=2),
        norm_eps=_NORM_EPS,
        separate_convolutions=True,
        strength=2.0 if fields.flag("linear_allow_neg_eigval", True) else 1.0,
    )


def _kinds(fields: Fields) -> list[str]:
    layers = fields.integer("num_hidden_layers")
    default = ["full_attention" if index % 4 == 3 else "linear_attention" for index in range(layers)]
    if "full_attention" not in default:
        default[-1] = "full_attention"
    return layer_types(fields, ("linear_attention", "full_attention"), default, layers)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    mixing = "|".join(str(index) for index in model.decoder.mixers) or "-"
    layer, ours = rf"model\.layers\.({mixing})\.", r"decoder.layers.\1."
    delta, mixer = layer + r"linear_attn\.", ours + "mixer."
    parts = {"q": "query", "k": "key", "v": "value"}
    projections = {**parts, "g": "gate", "b": "beta", "a": "decay", "o": "output"}
    mixers = model.decoder.mixers.values()
    first = next((config for config in mixers if isinstance(config, GatedDeltaConfig)), None)
    widths = None if first is None else (first.key_width, first.key_width, first.value_width)
    any_layer = r"model\.layers\.(\d+)\."
    return (
        Rename(layer + r"(?:input_layernorm|attention_layer_norm)\.weight", ours + "attention_norms.input.weight"),
        Rename(
            layer + r"(?:post_attention_layernorm|feedforward_layer_norm)\.weight",
            ours + "feed_forward_norms.input.weight",
        ),
        # transformers writes this name when it saves a checkpoint that it has loaded.
        Rename(any_layer + r"(?:post_attention_layernorm|feedforward_layer_norm)\.weight", _RESULT_NORM),
        *(Rename(delta + rf"{old}_conv1d\.weight", f"{mixer}convolution.{new}.weight") for old, new in parts.items()),
        Split(delta + r"conv1d\.weight", [f"{mixer}convolution.{new}.weight" for new in parts.values()], sizes=widths),
        *(Rename(delta + rf"{old}_proj\.weight", f"{mixer}{new}.weight") for old, new in projections.items()),
        Rename(delta + "A_log", mixer + "log_decay"),
        Rename(delta + "dt_bias", mixer + "decay_bias"),
        Rename(delta + r"o_norm\.weight", mixer + "norm.weight"),
        *rotary_rules(model, hf, architecture),
        Drop(r"mtp\..*"),
    )


_RESULT_NORM = r"decoder.layers.\1.attention_norms.output.weight"
FAMILY = decoder_family("olmo_hybrid", "OlmoHybrid", config, rules, texts=False, tokens=False, answers=False)
