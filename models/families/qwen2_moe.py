"""Qwen1.5-MoE and Qwen2-MoE (Yang et al. 2024, arXiv:2407.10671): Qwen2 with mixtures of experts.

Each mixture has a shared expert, which processes every token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, qwen_experts, rms_eps, rotary_settings
from models.families.shared.mixture_of_experts import rotary_expert_rules, sparse_layers
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    llama_decoder,
)
from models.families.shared.windows import switched_window, windows_by_type
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "decoder_sparse_step": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    dense = gated_feed_forward(fields)
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields, fields.integer("moe_intermediate_size")),
        num_experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(normalized=fields.flag("norm_topk_prob", False)),
        shared=gated_feed_forward(fields, fields.integer("shared_expert_intermediate_size")),
        shared_gate=True,
    )
    return llama_decoder(
        fields,
        [experts if sparse else dense for sparse in sparse_layers(fields)],
        num_kv_heads=fields.integer("num_key_value_heads"),
        windows=_windows(fields),
        qkv_bias=fields.flag("qkv_bias", True),
    )


def _windows(fields: Fields) -> list[int | None]:
    """Window of each layer in tokens, or None for full attention.

    There are no windows unless `use_sliding_window` is true. `layer_types` names the layers with a window. Without it,
    the layers with an even index below `max_window_layers` have one.
    """
    window = switched_window(fields, absent=4096)

    def is_full(index: int) -> bool:
        return index >= fields.integer("max_window_layers", least=0) or index % 2 == 1 or window is None

    return windows_by_type(fields, window, is_full)


def gguf_settings(of: Metadata) -> Settings:
    shared = of.integer("expert_shared_feed_forward_length", 0) or of.integer("feed_forward_length")
    return rotary_settings(
        of,
        model_type="qwen2_moe",
        norm_topk_prob=False,
        shared_expert_intermediate_size=shared,
        use_sliding_window=False,
        **qwen_experts(of),
        **rms_eps(of),
    )


FAMILY = decoder_family(
    "qwen2_moe",
    "Qwen2Moe",
    config,
    rotary_expert_rules,
    gguf=GgufFamily({"qwen2moe": gguf_settings}),
)
