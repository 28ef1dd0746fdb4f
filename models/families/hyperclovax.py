"""HyperCLOVA X Think (NAVER Cloud 2025, arXiv:2506.22403): LLaMA with the scales of Granite and two more norms a layer.

The logits are multiplied by `logits_scaling`; Granite divides them by it. The additional norms follow attention and
feed-forward, and exist unless `use_post_norm` is false.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.granite import granite_decoder
from models.families.shared.published_code import PublishedCode
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, rotary_rules
from weights.rules import Rename, Rule

_PUBLISHED = PublishedCode("naver-hyperclovax", "hyperclovax", "HyperCLOVAX")
_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "use_post_norm": True,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, _PUBLISHED, _DEFAULTS)
    return granite_decoder(
        fields,
        gated_feed_forward(fields, bias=fields.flag("mlp_bias", False)),
        default_scale=head_dim_of(fields) ** -0.5,
        logit_scale=fields.positive("logits_scaling"),
        norm_slots=("input", "output") if fields.flag("use_post_norm") else ("input",),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(layer + r"post_norm1\.weight", ours + "attention_norms.output.weight"),
        Rename(layer + r"post_attention_layernorm\.weight", ours + "feed_forward_norms.input.weight"),
        Rename(layer + r"post_norm2\.weight", ours + "feed_forward_norms.output.weight"),
        *rotary_rules(model, hf, architecture),
    )


FAMILY = decoder_family(
    "hyperclovax",
    "HyperCLOVAX",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
)
