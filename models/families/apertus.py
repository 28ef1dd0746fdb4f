"""Apertus (Project Apertus 2025, arXiv:2509.14233): LLaMA with norms of queries and keys.

The feed-forward has the activation xIELU and no gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, ModelConfig, QueryKeyNorm, XieluFeedForwardConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, rms_eps, rotary_settings
from models.families.shared.rotary_decoder import llama_decoder, rms_norm, rotary_rules
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule

_DEFAULTS = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 65536,
    "hidden_act": "xielu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 12000000.0,
}
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12000000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    rope_is_set = hf.get("rope_parameters") is not None or hf.get("rope_scaling") is not None
    fields = Fields(hf, defaults=_DEFAULTS if rope_is_set else {**_DEFAULTS, "rope_parameters": _ROPE})
    norm, bias = rms_norm(fields), fields.flag("attention_bias", False)
    width = fields.integer("intermediate_size")
    feed_forward: FeedForwardConfig | XieluFeedForwardConfig = XieluFeedForwardConfig(width)
    if fields.raw("hidden_act") != "xielu":
        feed_forward = FeedForwardConfig(width, fields.activation("hidden_act"), bias=False)
    return llama_decoder(
        fields, feed_forward, norm=norm, qkv_bias=bias, output_bias=bias, query_key_norm=QueryKeyNorm(norm)
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    numbers = layer + r"mlp\.act_fn\.(alpha_p|alpha_n|beta|eps)"
    return (
        Rename(layer + r"attention_layernorm\.weight", ours + "attention_norms.input.weight"),
        Rename(layer + r"feedforward_layernorm\.weight", ours + "feed_forward_norms.input.weight"),
        Rule(numbers, (ours + r"feed_forward.activation.\2",), (_as_vector,)),
        *rotary_rules(model, hf, architecture),
    )


def _as_vector(tensors: Sequence[Any]) -> Sequence[Any]:
    """Reshape a parameter of xIELU to a vector, because some files store it as a scalar."""
    return [tensors[0].flatten()]


def gguf_settings(of: Metadata) -> Settings:
    settings = rotary_settings(of, model_type="apertus", attention_bias=has_bias(of, "attn_q"), **rms_eps(of))
    scaling = settings.pop("rope_scaling", {"rope_type": "default"})
    return {**settings, "rope_parameters": {"rope_theta": settings.pop("rope_theta"), **scaling}}


def _gguf_rules(model: ModelConfig) -> Sequence[Rule]:
    ours = r"decoder.layers.\1.feed_forward.activation.\2"
    return (Rename(r"blk\.(\d+)\.xielu\.(alpha_p|alpha_n|beta|eps)", ours),)


FAMILY = decoder_family(
    "apertus",
    "Apertus",
    config,
    rules,
    texts=False,
    answers=False,
    gguf=GgufFamily({"apertus": gguf_settings}, rules=_gguf_rules),
)
