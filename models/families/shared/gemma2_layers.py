"""Decoders with the layers of Gemma 2: sliding windows in every other layer, soft caps of scores and logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from models.config import ModelConfig
from models.families.shared.fields import Fields
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    llama_decoder,
    rms_norm,
)
from models.families.shared.windows import windows_by_type


def gemma2_decoder(
    hf: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    score_cap: float,
    logit_cap: float,
    window: int,
    activation: str,
    norm_slots: Sequence[Literal["input", "output"]],
) -> ModelConfig:
    """Configuration of a decoder, or of an encoder if `is_causal` is false.

    hf: contents of `config.json`.
    defaults: values of settings that the file may leave out.
    score_cap, logit_cap: soft caps of scores and logits if the file lacks the settings. Null in the file means no cap.
    window: width of the sliding windows in tokens if the file has no `sliding_window`.
    activation: activation if the file has no `hidden_activation`.
    norm_slots: places of the norms in each sublayer: `input`, `output`.
    """
    fields = Fields({**hf, "hidden_act": hf.get("hidden_activation") or activation}, defaults=defaults)
    fields.refuse_unless("use_bidirectional_attention", False)
    bias = fields.flag("attention_bias", False)
    width = fields.optional_integer("sliding_window", absent=window)
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        windows=windows_by_type(fields, width, lambda index: index % 2 == 1),
        norm=rms_norm(fields, "rms_from_one"),
        num_kv_heads=fields.integer("num_key_value_heads"),
        default_tied=True,
        embedding_scale=fields.integer("hidden_size") ** 0.5,
        logit_cap=_cap(hf, "final_logit_softcapping", logit_cap),
        qkv_bias=bias,
        output_bias=bias,
        scale=fields.positive("query_pre_attn_scalar") ** -0.5,
        score_cap=_cap(hf, "attn_logit_softcapping", score_cap),
        norm_slots=norm_slots,
    )


def _cap(hf: Mapping[str, Any], name: str, default: float) -> float | None:
    """The soft cap of logits or scores that a setting states: None if it is null, `default` if it is absent."""
    return None if hf.get(name, default) is None else Fields(hf).positive(name, default)
