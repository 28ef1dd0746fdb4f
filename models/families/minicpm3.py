"""MiniCPM3 (Hu et al. 2024, arXiv:2404.06395): latent attention. Embeddings, sublayer results and logits are scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import LayerConfig, ModelConfig, NormSlots
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.gguf import GgufFamily, Settings
from models.families.shared.latent_attention import (
    latent_attention,
    latent_gguf_rules,
    latent_gguf_settings,
    latent_rules,
)
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import gated_feed_forward, rms_norm, rotary_decoder
from weights.gguf.metadata import Metadata
from weights.gguf.rope import longrope

_PUBLISHED = PublishedCode("openbmb", "minicpm", "MiniCPM3")
_DEFAULTS = {
    "vocab_size": 73448,
    "hidden_size": 2560,
    "intermediate_size": 6400,
    "num_hidden_layers": 62,
    "num_attention_heads": 40,
    "max_position_embeddings": 32768,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "scale_emb": 12,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    width, heads = (
        Fields(hf, _PUBLISHED, _DEFAULTS).integer(setting) for setting in ("hidden_size", "num_attention_heads")
    )
    fields = Fields(hf, _PUBLISHED, {**_DEFAULTS, "v_head_dim": head_width(width, heads)})
    rope, norm = rope_config(fields, fields.integer("qk_rope_head_dim")), rms_norm(fields)
    layers = fields.integer("num_hidden_layers")
    # Null means no scaling; an absent setting means the factor of the published model.
    depth = 1.0 if hf.get("scale_depth", 0) is None else fields.positive("scale_depth", 1.4) / layers**0.5
    base = fields.optional_integer("dim_model_base", absent=256) or width
    norms = NormSlots(input=norm, scale=depth)
    attention = latent_attention(fields, rope, default_query_rank=768)
    feed_forward = gated_feed_forward(fields, bias=fields.flag("mlp_bias", False))
    return rotary_decoder(
        fields,
        (LayerConfig(attention, norms, feed_forward, norms),) * layers,
        norm,
        scaled_max_positions(rope, fields.integer("max_position_embeddings")),
        default_tied=True,
        embedding_scale=fields.positive("scale_emb"),
        logit_scale=base / width,
    )


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    The file lacks the scaling factors of embeddings, sublayers and logits, which get the published checkpoint's values.
    """
    scaling = longrope(of, of.integer("rope.scaling.original_context_length", of.integer("context_length")))
    return latent_gguf_settings(
        of,
        model_type="minicpm3",
        scale_emb=12.0,
        scale_depth=1.4,
        dim_model_base=256,
        **({"rope_scaling": scaling} if scaling else {}),
    )


FAMILY = decoder_family(
    "minicpm3",
    "MiniCPM3",
    config,
    latent_rules,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"minicpm3": gguf_settings}, rules=latent_gguf_rules),
)
