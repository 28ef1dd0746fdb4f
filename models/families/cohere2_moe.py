"""Command A+ (Cohere 2026): Command A with mixtures of experts in all but the first layers, which are dense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.config import LayerConfig, MixtureOfExpertsConfig, ModelConfig, NormConfig, NormSlots, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import (
    GgufFamily,
    Settings,
    has_bias,
    layer_types,
    prediction_layers,
    rotary_settings,
    sliding_window,
)
from models.families.shared.mixture_of_experts import rotary_expert_rules, typed_feed_forwards
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rotary_decoder,
    rotary_layer,
)
from models.families.shared.windows import typed_windows
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window_pattern": 4,
    "prefix_dense_sliding_window_pattern": 1,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "logit_scale": 0.0625,
}
_SOFTMAX, _SIGMOID = 1, 2
"""Values of `expert_gating_func` in GGUF files."""


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    heads, bias, head_dim = (
        fields.integer("num_attention_heads"),
        fields.flag("attention_bias", False),
        head_dim_of(fields),
    )
    eps = fields.optional_positive("rms_norm_eps")
    plain = NormConfig("layer", fields.number("layer_norm_eps"), bias=False)
    norm = plain if eps is None else NormConfig("rms", eps, bias=False)
    rope = rope_config(fields, head_dim, pairing="interleaved")
    first = fields.integer("first_k_dense_replace", 0, least=0)
    dense = gated_feed_forward(fields, fields.optional_integer("prefix_dense_intermediate_size"))
    experts = _experts(fields)
    # Dense layers have rotary positions even without a window, unless the dense layers have a window pattern.
    always = fields.integer("prefix_dense_sliding_window_pattern") == 1
    feed_forwards = typed_feed_forwards(fields, dense, experts, dense_layers=first)
    layers = [
        _averaged(
            fields,
            rotary_layer(
                fields,
                head_dim=head_dim,
                num_kv_heads=fields.integer("num_key_value_heads", heads),
                rope=rope if window is not None or (always and feed_forward is dense) else None,
                norm=norm,
                feed_forward=feed_forward,
                window=window,
                qkv_bias=bias,
                output_bias=bias,
                parallel=True,
            ),
        )
        for window, feed_forward in zip(_windows(fields, first), feed_forwards, strict=True)
    ]
    return rotary_decoder(
        fields,
        layers,
        norm,
        scaled_max_positions(rope, fields.integer("max_position_embeddings")),
        default_tied=True,
        logit_scale=fields.positive("logit_scale"),
    )


def _experts(fields: Fields) -> MixtureOfExpertsConfig:
    fields.refuse_unless("expert_selection_fn", "softmax", "sigmoid")
    sigmoid = fields.text("expert_selection_fn", "softmax") == "sigmoid"
    shared = fields.integer("num_shared_experts", 0, least=0)
    return MixtureOfExpertsConfig(
        gated_feed_forward(fields),
        num_experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(
            # The softmax is over the chosen experts, so that its shares always have the sum 1.
            normalized=not sigmoid or fields.flag("norm_topk_prob", True),
            score="sigmoid" if sigmoid else "softmax",
        ),
        shared=gated_feed_forward(fields, shared * fields.integer("intermediate_size")) if shared else None,
    )


def _averaged(fields: Fields, layer: LayerConfig) -> LayerConfig:
    """Return the layer so that it averages the outputs of the routed experts and of the shared expert.

    The layer is unchanged if it has no shared expert, or if `shared_expert_combination_strategy` is `sum`.
    Raises ConfigError for another strategy than `average` or `sum`.
    """
    fields.refuse_unless("shared_expert_combination_strategy", "average", "sum")
    average = fields.text("shared_expert_combination_strategy", "average") == "average"
    mixes = isinstance(layer.feed_forward, MixtureOfExpertsConfig) and layer.feed_forward.shared is not None
    return replace(layer, feed_forward_norms=NormSlots(scale=0.5)) if mixes and average else layer


def _windows(fields: Fields, first: int) -> list[int | None]:
    """Sliding window of each layer, None for full attention.

    Without the setting `layer_types`, every n-th layer has full attention. For the first, dense layers, n is
    `prefix_dense_sliding_window_pattern`; for the layers after them, counted from 1 again, `sliding_window_pattern`.

    first: number of dense layers at the beginning.
    """
    layers, window = fields.integer("num_hidden_layers"), fields.optional_integer("sliding_window", absent=4096)
    layer_types = fields.raw("layer_types")
    if layer_types is None:
        parts = (
            (first, fields.integer("prefix_dense_sliding_window_pattern")),
            (max(layers - first, 0), fields.integer("sliding_window_pattern")),
        )
        layer_types = [
            "sliding_attention" if (index + 1) % interval else "full_attention"
            for count, interval in parts
            for index in range(count)
        ]
    return typed_windows(layer_types, layers, window)


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    The file lacks two settings, which have the values of all published models: dense layers without a window have
    rotary positions, and the outputs of the routed experts and of the shared expert are averaged.
    """
    sparse = of.layers_with("ffn_gate_inp.weight")
    dense = [layer for layer in range(of.layers) if layer not in sparse]
    rms = of.optional("attention.layer_norm_rms_epsilon") is not None
    norm = "attention.layer_norm_rms_epsilon" if rms else "attention.layer_norm_epsilon"
    return rotary_settings(
        of,
        model_type="cohere2_moe",
        intermediate_size=of.integer("expert_feed_forward_length"),
        prefix_dense_intermediate_size=of.rows(f"blk.{dense[0]}.ffn_up.weight") if dense else None,
        mlp_layer_types=["sparse" if layer in sparse else "dense" for layer in range(of.layers)],
        attention_bias=has_bias(of, "attn_q"),
        sliding_window=sliding_window(of),
        layer_types=layer_types(of),
        num_experts=of.integer("expert_count"),
        num_experts_per_tok=of.integer("expert_used_count"),
        num_shared_experts=of.integer("expert_shared_count", 0),
        expert_selection_fn="softmax" if of.integer("expert_gating_func", _SIGMOID) == _SOFTMAX else "sigmoid",
        norm_topk_prob=bool(of.optional("expert_weights_norm")),
        logit_scale=of.number("logit_scale"),
        **{"rms_norm_eps" if rms else "layer_norm_eps": of.number(norm)},
    )


FAMILY = decoder_family(
    "cohere2_moe",
    "Cohere2Moe",
    config,
    rotary_expert_rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"cohere2moe": gguf_settings}, rules=lambda model: (prediction_layers(model),)),
)
