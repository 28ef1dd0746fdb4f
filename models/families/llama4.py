"""Llama 4 (Meta 2025): a mixture of experts, and layers that attend within chunks of the text.

Layers without rotary positions attend to the whole text and scale queries by a factor that grows with the position.
Multimodal checkpoints are served without their vision part, which changes nothing for requests without a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    ConfigError,
    LayerConfig,
    MixtureOfExpertsConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    QueryKeyNorm,
    QueryScale,
    RouterConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, rms_eps, rotary_settings
from models.families.shared.rename_rules import renamed
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rms_norm,
    rotary_decoder,
    rotary_rules,
)
from models.families.shared.text_part import text_settings
from models.families.shared.transposed_experts import transposed_expert_rules
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule

_MULTIMODAL = "Llama4ForConditionalGeneration"
_EXPERTS_WITHOUT_HEAD_NORMS = 128
_KINDS = ("full_attention", "chunked_attention")
_DEFAULTS = {
    "vocab_size": 202048,
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    # The language model of a multimodal checkpoint is a model of its own, with its own head.
    text = text_settings(hf, outside=("auto_map",)) if architecture == _MULTIMODAL else hf
    fields = Fields(text, defaults=_DEFAULTS)
    num_layers, heads = fields.integer("num_hidden_layers"), fields.integer("num_attention_heads")
    head_dim, norm, bias = head_dim_of(fields, 128), rms_norm(fields), fields.flag("attention_bias", False)
    rope = rope_config(fields, head_dim, pairing="interleaved")
    head_norm = None
    if fields.flag("use_qk_norm", True):
        head_norm = QueryKeyNorm(NormConfig("rms_unscaled", norm.eps, bias=False), after_rotation=True)
    scale = None
    if fields.flag("attn_temperature_tuning", True):
        scale = QueryScale(fields.number("attn_scale", 0.1), fields.integer("floor_scale", 8192), offset=1)
    width = fields.integer("intermediate_size", 8192)
    dense = gated_feed_forward(fields, fields.integer("intermediate_size_mlp", 16384))
    mixture = MixtureOfExpertsConfig(
        gated_feed_forward(fields, width),
        num_experts=fields.integer("num_local_experts", 16),
        experts_per_token=fields.integer("num_experts_per_tok", 1),
        router=RouterConfig(normalized=False, score="sigmoid"),
        shared=gated_feed_forward(fields, width),
        weighs_inputs=True,
    )
    rotating = _rotating_layers(fields, num_layers)
    chunks, mixtures = _chunks(fields, rotating), _mixture_layers(fields, num_layers)

    def layer(index: int) -> LayerConfig:
        attention = AttentionConfig(
            num_heads=heads,
            num_kv_heads=fields.integer("num_key_value_heads", 8),
            head_dim=head_dim,
            scale=head_dim**-0.5,
            causal=True,
            query_bias=bias,
            key_bias=bias,
            value_bias=bias,
            output_bias=bias,
            rope=rope if rotating[index] else None,
            query_key_norm=head_norm if rotating[index] else None,
            chunk=chunks[index],
            query_scale=None if rotating[index] else scale,
        )
        norms = NormSlots(input=norm)
        return LayerConfig(attention, norms, mixture if index in mixtures else dense, norms)

    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 131072))
    return rotary_decoder(fields, [layer(index) for index in range(num_layers)], norm, max_positions)


def _rotating_layers(fields: Fields, layers: int) -> list[bool]:
    """Whether each layer has rotary positions. Despite its name, `no_rope_layers` has 1 for layers with positions."""
    stated = fields.integers("no_rope_layers")
    if not stated:
        interval = fields.integer("no_rope_layer_interval", 4)
        return [(index + 1) % interval != 0 for index in range(layers)]
    if len(stated) < layers or max(stated) > 1:
        raise ConfigError(f"'no_rope_layers' must have 0 or 1 for each of {layers} layers")
    return [bool(flag) for flag in stated[:layers]]


def _chunks(fields: Fields, rotating: Sequence[bool]) -> list[int | None]:
    """Attention chunk size of each layer, in tokens. None for a layer with attention to the whole text."""
    kinds = fields.raw("layer_types")
    if kinds is None:
        kinds = ["chunked_attention" if has_rope else "full_attention" for has_rope in rotating]
    if not isinstance(kinds, list) or len(kinds) != len(rotating) or any(kind not in _KINDS for kind in kinds):
        raise ConfigError(f"'layer_types' must name {' or '.join(_KINDS)} for each of {len(rotating)} layers")
    size = fields.optional_integer("attention_chunk_size", absent=8192)
    if size is None and "chunked_attention" in kinds:
        raise ConfigError("'layer_types' has chunked_attention, but 'attention_chunk_size' is unset")
    return [size if kind == "chunked_attention" else None for kind in kinds]


def _mixture_layers(fields: Fields, layers: int) -> Sequence[int]:
    """Indices of the layers with experts: the list `moe_layers`, else every `interleave_moe_layer_step`-th layer."""
    stated = fields.integers("moe_layers")
    if stated is not None:
        return stated
    step = fields.integer("interleave_moe_layer_step", 1)
    return range(step - 1, layers, step)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.feed_forward\.", r"decoder.layers.\1.feed_forward."
    text = (
        Rename(layer + r"router\.weight", ours + "router.weight"),
        Rename(layer + r"shared_expert\.(gate|up|down)_proj\.weight", ours + r"shared.\2.weight"),
        Rename(layer + r"(gate|up|down)_proj\.weight", ours + r"\2.weight"),
        *transposed_expert_rules(model, "feed_forward", interleaved=False),
        *rotary_rules(model, hf, architecture),
    )
    if architecture != _MULTIMODAL:
        return text
    body = renamed(text, r"model\.", r"(?:model\.)?language_model\.model\.")
    return (
        *renamed(body, "lm_head", r"(?:model\.)?language_model\.lm_head"),
        Drop(r"(?:model\.)?(?:vision_model|multi_modal_projector)\..*"),
    )


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    The file lacks the settings of chunks, query scale and query norms, which get the published values. Queries and keys
    have norms except in the model with 128 experts.
    """
    experts = of.integer("expert_count")
    return rotary_settings(
        of,
        model_type="llama4_text",
        attention_bias=has_bias(of, "attn_q"),
        intermediate_size=of.integer("expert_feed_forward_length"),
        intermediate_size_mlp=of.integer("feed_forward_length"),
        num_local_experts=experts,
        num_experts_per_tok=of.integer("expert_used_count"),
        moe_layers=of.layers_with("ffn_gate_inp.weight"),
        use_qk_norm=experts != _EXPERTS_WITHOUT_HEAD_NORMS,
        **rms_eps(of),
    )


FAMILY = decoder_family(
    "llama4",
    "Llama4",
    config,
    rules,
    model_types=("llama4_text", "llama4"),
    generating=("Llama4ForCausalLM", _MULTIMODAL),
    body="Llama4TextModel",
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"llama4": gguf_settings}),
)
