"""T5Gemma (Zhang et al. 2025, arXiv:2504.06225): an encoder and a decoder with the layers of Gemma 2.

Encoder and decoder have separate token tables, and may differ in width (9B-2B).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import ConfigError, EmbeddingConfig, LanguageModelHead, LayerConfig, ModelConfig, StackConfig
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, rms_norm, rotary_layer
from models.families.shared.windows import windows_by_type
from weights.rules import Rename, Rule

_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "head_dim": 256,
    "query_pre_attn_scalar": 256.0,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    (encoder, max_source), (decoder, max_positions) = (_stack(fields, side) for side in ("encoder", "decoder"))
    source_size, width = (_side(fields, side).integer("hidden_size") for side in ("encoder", "decoder"))
    cap = _cap(_side(fields, "decoder"), "final_logit_softcapping", 30.0)
    return ModelConfig(
        hidden_size=width,
        vocab_size=decoder.embedding.vocab_size,
        head=LanguageModelHead(tied=fields.flag("tie_word_embeddings", True), cap=cap),
        encoder=encoder,
        decoder=decoder,
        max_positions=max_positions,
        max_source_positions=max_source,
        source_size=source_size,
    )


def _side(fields: Fields, side: str) -> Fields:
    """The settings of the encoder or the decoder, with `is_causal` set accordingly. Raises ConfigError for no object.

    side: `encoder` or `decoder`, the key in `config.json`.
    """
    settings = fields.raw(side)
    if not isinstance(settings, dict):
        raise ConfigError(f"{side!r} must be an object")
    activation = settings.get("hidden_activation") or "gelu_pytorch_tanh"
    causal = {"is_causal": side == "decoder"}
    return Fields({**settings, "hidden_act": activation, **causal}, defaults=_DEFAULTS)


def _stack(fields: Fields, side: str) -> tuple[StackConfig, int]:
    """The configuration of the encoder or the decoder, and its longest text in tokens."""
    own = _side(fields, side)
    head_dim, bias, norm = head_dim_of(own), own.flag("attention_bias", False), rms_norm(own, "rms_from_one")
    rope, width = rope_config(own, head_dim), own.integer("hidden_size")

    def layer(window: int | None) -> LayerConfig:
        base = rotary_layer(
            own,
            head_dim=head_dim,
            num_kv_heads=own.integer("num_key_value_heads"),
            rope=rope,
            norm=norm,
            feed_forward=gated_feed_forward(own),
            window=window,
            qkv_bias=bias,
            output_bias=bias,
            scale=own.positive("query_pre_attn_scalar") ** -0.5,
            score_cap=_cap(own, "attn_logit_softcapping", 50.0),
            norm_slots=("input", "output"),
        )
        if side == "encoder" or base.attention is None:
            return base
        source_size = _side(fields, "encoder").integer("hidden_size")
        cross = replace(base.attention, causal=False, rope=None, window=None, key_value_width=source_size)
        return replace(base, cross_attention=cross, cross_attention_norms=base.attention_norms)

    window = own.optional_integer("sliding_window", absent=4096)
    stack = StackConfig(
        EmbeddingConfig(own.integer("vocab_size"), width**0.5),
        tuple(map(layer, windows_by_type(own, window, lambda index: index % 2 == 1))),
        final_norm=norm,
    )
    return stack, scaled_max_positions(rope, own.integer("max_position_embeddings"))


def _cap(fields: Fields, name: str, default: float) -> float | None:
    """The soft cap of scores or logits that a setting states: None if it is null, `default` if it is absent."""
    return None if fields.raw(name, default) is None else fields.positive(name, default)


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    layer, ours = r"model\.(encoder|decoder)\.layers\.(\d+)\.", r"\1.layers.\2."
    attentions = {"self_attn": "attention", "cross_attn": "cross_attention"}
    parts = {"q": "query", "k": "key", "v": "value", "o": "output"}
    norms = {**attentions, "feedforward": "feed_forward"}
    return (
        Rename(r"model\.(encoder|decoder)\.embed_tokens\.weight", r"\1.embedding.tokens.weight"),
        *(
            Rename(layer + rf"{theirs}\.{short}_proj\.(weight|bias)", ours + rf"{name}.{long}.\3")
            for theirs, name in attentions.items()
            for short, long in parts.items()
        ),
        *(
            Rename(layer + rf"{when}_{theirs}_layernorm\.weight", ours + f"{name}_norms.{slot}.weight")
            for theirs, name in norms.items()
            for when, slot in (("pre", "input"), ("post", "output"))
        ),
        Rename(layer + r"mlp\.(gate|up|down)_proj\.weight", ours + r"feed_forward.\3.weight"),
        Rename(r"model\.(encoder|decoder)\.norm\.weight", r"\1.final_norm.weight"),
        Rename(r"lm_head\.out_proj\.weight", "decoder.embedding.tokens.weight" if tied else "head.weight"),
    )


FAMILY = Family(
    name="t5gemma",
    model_types=("t5gemma",),
    architectures={"T5GemmaForConditionalGeneration": ("generate",)},
    config=_config,
    rules=_rules,
    refused_dtypes={"float16": "Gemma 2's residual stream can exceed float16; use bfloat16 or float32"},
)
