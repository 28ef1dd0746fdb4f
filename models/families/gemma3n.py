"""Gemma 3n (Gemma Team 2025), text part: a decoder with several parallel hidden states per token (AltUp).

Each layer runs attention and feed-forward on one of these hidden states and predicts the others.
Checkpoints with vision and audio are served without these parts. This changes nothing for requests without pictures
and sound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from models.config import (
    AlternatingLayerConfig,
    AttentionConfig,
    ConfigError,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelHead,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    PerLayerEmbeddingConfig,
    QueryKeyNorm,
    StackConfig,
    StreamsConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gemma4_text import (
    layer_input_gguf_rules,
    layer_input_gguf_settings,
    layer_input_rules,
    text_part_rules,
)
from models.families.shared.gguf import GgufFamily, Settings, decoder_settings, unstack
from models.families.shared.rope import rope_config, scaled_max_positions, with_rope_of
from models.families.shared.rotary_decoder import rms_norm, rotary_rules
from models.families.shared.text_part import text_settings
from models.families.shared.windows import key_value_layers, windows_by_type
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule

_DIGITS_OF_SPARSITY = 6
_MULTIMODAL = "Gemma3nForConditionalGeneration"
_DEFAULTS = {
    "vocab_size": 262400,
    "hidden_size": 2048,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "rms_norm_eps": 1e-06,
    "final_logit_softcapping": 30.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    text = {**_DEFAULTS, **(text_settings(hf) if architecture == _MULTIMODAL else hf)}
    fields = Fields({**text, "rope_parameters": None, "rope_scaling": None})
    fields.refuse_unless("use_bidirectional_attention", False)
    norm, width, vocab = rms_norm(fields), fields.integer("hidden_size"), fields.integer("vocab_size")
    input_width, streams = fields.integer("hidden_size_per_layer_input", 256), fields.integer("altup_num_inputs", 4)
    activation = fields.activation("hidden_activation", "gelu_pytorch_tanh")
    norms = NormSlots(input=norm, output=norm)
    windows = windows_by_type(fields, fields.integer("sliding_window", 512), lambda index: index % 5 == 4)

    def layer(attention: AttentionConfig, intermediate_size: int, sparsity: float) -> LayerConfig:
        feed_forward = FeedForwardConfig(intermediate_size, activation, gated=True, bias=False, sparsity=sparsity)
        return AlternatingLayerConfig(
            attention,
            norms,
            feed_forward,
            norms,
            input_width=input_width,
            activation=activation,
            input_norm=norm,
            streams=streams,
            active=fields.integer("altup_active_idx", 0, least=0),
            rank=fields.integer("laurel_rank", 64),
            router_norm=norm,
            scales_correction=fields.flag("altup_correct_scale", True),
        )

    attentions = _attentions(fields, text, norm, windows)
    parts = zip(attentions, _sizes(fields), _sparsities(fields), strict=True)
    positions = fields.integer("max_position_embeddings", 32768)
    return ModelConfig(
        hidden_size=width,
        vocab_size=vocab,
        head=LanguageModelHead(
            tied=fields.flag("tie_word_embeddings", True), cap=fields.optional_positive("final_logit_softcapping")
        ),
        decoder=StackConfig(
            EmbeddingConfig(vocab, width**0.5),
            tuple(layer(*part) for part in parts),
            final_norm=norm,
            per_layer=PerLayerEmbeddingConfig(fields.integer("vocab_size_per_layer_input", 262144), input_width, norm),
            streams=StreamsConfig(streams),
        ),
        max_positions=min(
            scaled_max_positions(attention_config.rope, positions)
            for attention_config in attentions
            if attention_config.rope is not None
        ),
    )


def _attentions(
    fields: Fields, text: Mapping[str, Any], norm: NormConfig, windows: Sequence[int | None]
) -> list[AttentionConfig]:
    head_dim, bias = fields.integer("head_dim", 256), fields.flag("attention_bias", False)
    ropes = {
        kind: rope_config(Fields(with_rope_of(text, kind, text.get(theta) or default)), head_dim)
        for kind, theta, default in (
            ("full_attention", "rope_theta", 1000000.0),
            ("sliding_attention", "rope_local_base_freq", 10000.0),
        )
    }
    sources = key_value_layers(windows, fields.integer("num_kv_shared_layers", 15, least=0))
    return [
        AttentionConfig(
            num_heads=fields.integer("num_attention_heads"),
            num_kv_heads=fields.integer("num_key_value_heads", 2),
            head_dim=head_dim,
            scale=1.0,
            causal=True,
            query_bias=bias,
            key_bias=bias,
            value_bias=bias,
            output_bias=bias,
            rope=ropes["full_attention" if window is None else "sliding_attention"],
            query_key_norm=QueryKeyNorm(norm),
            window=window,
            value_norm=NormConfig("rms_unscaled", norm.eps, bias=False),
            key_value_layer=source,
        )
        for window, source in zip(windows, sources, strict=True)
    ]


def _sizes(fields: Fields) -> list[int]:
    """Intermediate size of each layer, from one number or a list. Raises ConfigError for a list of another length."""
    layers = fields.integer("num_hidden_layers")
    if not isinstance(fields.raw("intermediate_size"), list):
        return [fields.integer("intermediate_size", 16384)] * layers
    sizes = fields.integers("intermediate_size") or []
    if len(sizes) != layers:
        raise ConfigError(f"'intermediate_size' must have a number for each of {layers} layers")
    return sizes


def _sparsities(fields: Fields) -> list[float]:
    """For each layer, the share of gate activations that are set to zero, from 0 to below 1.

    By default 0.95 in the first ten layers of a model with more than ten layers, and 0 in all other layers.
    Raises ConfigError unless the setting has one such number per layer.
    """
    layers, pattern = fields.integer("num_hidden_layers"), fields.raw("activation_sparsity_pattern")
    if pattern is None:
        sparse = 10 if layers > 10 else 0
        return [0.95] * sparse + [0.0] * (layers - sparse)
    shares = pattern if isinstance(pattern, list) else [pattern]
    if len(shares) != layers or not all(isinstance(share, int | float) and 0 <= share < 1 for share in shares):
        raise ConfigError(f"'activation_sparsity_pattern' must have a number from 0 to 1 for each of {layers} layers")
    return [float(share) for share in shares]


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    settings = text_settings(hf) if architecture == _MULTIMODAL else hf
    is_scaled = settings.get("altup_correct_scale") is not False
    text = (
        *layer_input_rules(model),
        *(() if is_scaled else (Drop(layer + r"altup\.correct_output_scale"),)),
        Rename(layer + r"altup\.modality_router\.weight", ours + "router"),
        Rename(layer + r"altup\.router_norm\.weight", ours + "router_norm.weight"),
        Rename(layer + r"altup\.prediction_coefs\.weight", ours + "prediction"),
        Rename(layer + r"altup\.correction_coefs\.weight", ours + "correction"),
        Rename(layer + r"altup\.correct_output_scale", ours + "correction_scale"),
        Rename(layer + r"laurel\.linear_left\.weight", ours + "down.weight"),
        Rename(layer + r"laurel\.linear_right\.weight", ours + "up.weight"),
        Rename(layer + r"laurel\.post_laurel_norm\.weight", ours + "low_rank_norm.weight"),
        Rename(r"model\.altup_projections\.(\d+)\.weight", r"decoder.streams.expand.\1.weight"),
        Rename(r"model\.altup_unembed_projections\.(\d+)\.weight", r"decoder.streams.merge.\1.weight"),
        *rotary_rules(model, hf, architecture),
    )
    if architecture != _MULTIMODAL:
        return text
    return text_part_rules(text, "vision_tower|audio_tower|embed_vision|embed_audio")


def gguf_settings(of: Metadata) -> Settings:
    widths = of.by_layer("feed_forward_length")
    # The file has the quantile of the normal distribution for each sparsity.
    scales = of.by_layer("activation_sparsity_scale")
    sparsities = [0.0 if scale is None else round(NormalDist().cdf(scale), _DIGITS_OF_SPARSITY) for scale in scales]
    return {
        **decoder_settings(of, model_type="gemma3n_text", intermediate_size=widths),
        **layer_input_gguf_settings(of),
        "activation_sparsity_pattern": sparsities,
        "altup_active_idx": of.integer("altup.active_idx"),
        "altup_num_inputs": of.integer("altup.num_inputs"),
        "altup_correct_scale": bool(of.layers_with("altup_correct_scale.weight")),
        "laurel_rank": of.rows("blk.0.laurel_l.weight"),
        "rope_theta": of.number("rope.freq_base", 1000000.0),
        "rope_local_base_freq": of.number("rope.freq_base_swa", 10000.0),
    }


def _gguf_rules(model: ModelConfig) -> Sequence[Rule]:
    assert model.decoder is not None and model.decoder.streams is not None
    layer, ours, others = r"blk\.(\d+)\.", r"decoder.layers.\1.", model.decoder.streams.count - 1
    names = {
        "altup_router": "router",
        "altup_router_norm": "router_norm.weight",
        "altup_predict_coef": "prediction",
        "altup_correct_coef": "correction",
        "altup_correct_scale": "correction_scale",
        "laurel_l": "down.weight",
        "laurel_r": "up.weight",
        "laurel_post_norm": "low_rank_norm.weight",
    }
    return (
        *layer_input_gguf_rules(),
        *(Rename(layer + rf"{theirs}\.weight", ours + name) for theirs, name in names.items()),
        *(
            Rule(
                rf"{theirs}\.weight",
                tuple(f"decoder.streams.{name}.{stream}.weight" for stream in range(others)),
                (unstack(others),),
            )
            for theirs, name in (("altup_proj", "expand"), ("altup_unembd_proj", "merge"))
        ),
    )


FAMILY = decoder_family(
    "gemma3n",
    "Gemma3nText",
    config,
    rules,
    model_types=("gemma3n_text", "gemma3n"),
    generating=("Gemma3nForCausalLM", _MULTIMODAL),
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"gemma3n": gguf_settings}, rules=_gguf_rules),
)
