"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786): Gemma 2 with normalised queries and keys, five layers with a sliding
window for each without, and rotary positions of their own for the two kinds.

Checkpoints that also see pictures are served by their text part, which is the whole model where there is no picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import ConfigError, LanguageModelHead, LayerConfig, ModelConfig, NormConfig
from models.families.decoder_heads import with_heads
from models.families.family import Family
from models.families.fields import Fields
from models.families.renamed import renamed
from models.families.rotary_decoder import rotary_decoder
from models.families.rotary_decoder import rules as llama_rules
from models.families.windows import named_windows
from weights.rules import Drop, Rule

_WITH_PICTURES = "Gemma3ForConditionalGeneration"


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    text = _text_settings(hf) if architecture == _WITH_PICTURES else hf
    text = {"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8, **text}
    rope, local_rope = _rope_settings(text, "full_attention"), _rope_settings(text, "sliding_attention")
    fields = Fields({**rope, "hidden_act": text.get("hidden_activation") or "gelu_pytorch_tanh"})
    for name in ("use_bidirectional_attention", "attn_logit_softcapping"):
        fields.refuse_unless(name, False)
    attention_bias = fields.flag("attention_bias", False)
    model = rotary_decoder(
        fields,
        windows=_windows(fields, text.get("layer_types")),
        num_kv_heads=fields.integer("num_key_value_heads", 4),
        max_positions=fields.integer("max_position_embeddings", 131072),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        norm=NormConfig("rms_from_one", fields.number("rms_norm_eps", 1e-6), bias=False),
        slots=("input", "output"),
        query_key_norms="head",
        default_head_dim=256,
        default_tied=True,
    )
    assert model.decoder is not None and isinstance(model.head, LanguageModelHead)
    scale = fields.positive("query_pre_attn_scalar", 256.0) ** -0.5
    local = Fields(local_rope).rope(model.decoder.layers[0].attention.head_dim)

    def placed(layer: LayerConfig) -> LayerConfig:
        attention = replace(layer.attention, scale=scale)
        return replace(layer, attention=attention if attention.window is None else replace(attention, rope=local))

    decoder = replace(
        model.decoder,
        embedding=replace(model.decoder.embedding, scale=model.hidden_size**0.5),
        layers=tuple(placed(layer) for layer in model.decoder.layers),
    )
    cap = fields.optional_positive("final_logit_softcapping")
    return replace(model, decoder=decoder, head=replace(model.head, cap=cap))


def _text_settings(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the text part; whether logits are tied is said outside of it."""
    text = hf.get("text_config")
    if not isinstance(text, dict):
        raise ConfigError("'text_config' must be an object")
    outside = ("auto_map", "quantization_config", "tie_word_embeddings")
    return {**text, **{name: hf[name] for name in outside if name in hf}}


def _rope_settings(hf: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """`config.json` with the positions of one kind of layer only, where the settings of a model with one kind stand.

    transformers 5 writes `rope_parameters` by kind; before, `rope_scaling` was of the layers without a window.
    """
    by_kind = hf.get("rope_parameters") or {}
    own = by_kind.get(kind) or {} if isinstance(by_kind, dict) else None
    if not isinstance(own, dict) or set(by_kind) - {"full_attention", "sliding_attention"}:
        raise ConfigError("'rope_parameters' must be objects for full_attention and sliding_attention")
    local = kind == "sliding_attention"
    theta = hf.get("rope_local_base_freq" if local else "rope_theta") or (10000.0 if local else 1000000.0)
    older = None if local else hf.get("rope_scaling")
    return {**hf, "rope_theta": theta, "rope_scaling": older, "rope_parameters": own}


def _windows(fields: Fields, layer_types: Any) -> list[int | None]:
    layers, window = fields.integer("num_hidden_layers", 26), fields.optional_integer("sliding_window", absent=4096)
    if layer_types is None:
        every = fields.integer("sliding_window_pattern", 6)
        layer_types = ["sliding_attention" if (index + 1) % every else "full_attention" for index in range(layers)]
    return named_windows(layer_types, layers, window)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    text = llama_rules(model, hf, architecture)
    if architecture != _WITH_PICTURES:
        return text
    # Files keep the names of transformers 4, where the text part was a language model of its own.
    body = renamed(text, r"model\.", r"(?:model\.language_model|language_model\.model)\.")
    return (
        *renamed(body, "lm_head", r"(?:language_model\.)?lm_head"),
        Drop(r"(?:model\.)?(?:vision_tower|multi_modal_projector)\..*"),
    )


FAMILY = with_heads(
    "Gemma3Text",
    Family(
        name="gemma3",
        model_types=("gemma3_text", "gemma3"),
        architectures={"Gemma3ForCausalLM": ("generate",), _WITH_PICTURES: ("generate",)},
        config=config,
        rules=rules,
        refused_dtypes={"float16": "Gemma 3's residual stream can exceed float16; use bfloat16 or float32"},
    ),
    answers=False,
    tokens=False,
    pad_token_id=0,
)
