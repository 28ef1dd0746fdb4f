"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786): Gemma 2 with norms of queries and keys instead of capped scores.

Five of six layers have a sliding window. Their rotary base differs from the rotary base of the sixth layer.
Multimodal checkpoints are served without their vision part, which changes nothing for requests without a picture.
EmbeddingGemma (Vera et al. 2025, arXiv:2509.20354) is Gemma 3 with bidirectional attention, an encoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, query_scalar, rms_eps, rotary_settings, sliding_window
from models.families.shared.rename_rules import renamed
from models.families.shared.rope import rope_config, with_rope_of
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    llama_decoder,
    rms_norm,
    rotary_rules,
)
from models.families.shared.text_part import text_settings
from models.families.shared.windows import patterned_windows
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rule

_MULTIMODAL = "Gemma3ForConditionalGeneration"
_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "head_dim": 256,
    "query_pre_attn_scalar": 256.0,
    "rms_norm_eps": 1e-06,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    text = dict(text_settings(hf) if architecture == _MULTIMODAL else hf)
    text["hidden_act"] = text.get("hidden_activation") or "gelu_pytorch_tanh"
    Fields(text).refuse_unless("is_causal", True)
    text["is_causal"] = not Fields(text).flag("use_bidirectional_attention", False)
    fields = Fields(with_rope_of(text, "full_attention", text.get("rope_theta") or 1000000.0), defaults=_DEFAULTS)
    sliding = with_rope_of(text, "sliding_attention", text.get("rope_local_base_freq") or 10000.0)
    sliding_fields = Fields(sliding, defaults=_DEFAULTS)
    fields.refuse_unless("attn_logit_softcapping", False)
    head_dim, bias = head_dim_of(fields), fields.flag("attention_bias", False)
    norm = rms_norm(fields, "rms_from_one")
    full_rope, sliding_rope = rope_config(fields, head_dim), rope_config(sliding_fields, head_dim)
    windows = _windows(fields)
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        windows=windows,
        ropes=[full_rope if window is None else sliding_rope for window in windows],
        rope=full_rope,
        norm=norm,
        num_kv_heads=fields.integer("num_key_value_heads"),
        default_tied=True,
        embedding_scale=fields.integer("hidden_size") ** 0.5,
        logit_cap=fields.optional_positive("final_logit_softcapping"),
        qkv_bias=bias,
        output_bias=bias,
        scale=fields.positive("query_pre_attn_scalar") ** -0.5,
        query_key_norm=QueryKeyNorm(norm),
        norm_slots=("input", "output"),
    )


def _windows(fields: Fields) -> list[int | None]:
    window = fields.optional_integer("sliding_window", absent=4096)
    if window is not None and not fields.flag("is_causal"):
        window //= 2
    return patterned_windows(fields, window, default=6)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    text = rotary_rules(model, hf, architecture)
    if architecture != _MULTIMODAL:
        return text
    # Files use the tensor names of transformers 4, where the text part is a separate language model.
    body = renamed(text, r"model\.", r"(?:model\.language_model|language_model\.model)\.")
    return (
        *renamed(body, "lm_head", r"(?:language_model\.)?lm_head"),
        Drop(r"(?:model\.)?(?:vision_tower|multi_modal_projector)\..*"),
    )


def gguf_settings(of: Metadata) -> Settings:
    cap, pattern = of.optional("final_logit_softcapping"), of.optional("attention.sliding_window_pattern") or 6
    if not isinstance(pattern, int) or isinstance(pattern, bool) or pattern < 1:
        raise of.error("attention.sliding_window_pattern", "is not a number of layers")
    settings = rotary_settings(
        of,
        model_type="gemma3_text",
        sliding_window=sliding_window(of),
        sliding_window_pattern=pattern if sliding_window(of) else 1,
        rope_local_base_freq=of.number("rope.freq_base_swa", 10000.0),
        query_pre_attn_scalar=query_scalar(of, largest=62),
        **rms_eps(of),
    )
    settings["rope_theta"] = of.number("rope.freq_base", 1000000.0)
    return {**settings, **({} if cap is None else {"final_logit_softcapping": of.number("final_logit_softcapping")})}


def embedding_gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` of EmbeddingGemma from the metadata of a GGUF file."""
    return {**gguf_settings(of), "architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}


FAMILY = decoder_family(
    "gemma3",
    "Gemma3Text",
    config,
    rules,
    model_types=("gemma3_text", "gemma3"),
    generating=("Gemma3ForCausalLM", _MULTIMODAL),
    refused_dtypes={"float16": "Gemma 3's residual stream can exceed float16; use bfloat16 or float32"},
    answers=False,
    tokens=False,
    pad_token_id=0,
    gguf=GgufFamily({"gemma3": gguf_settings, "gemma-embedding": embedding_gguf_settings}),
)
