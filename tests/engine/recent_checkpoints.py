"""Configurations of tiny random checkpoints of decoder families of 2024 and 2025, one for each new part of a layer."""

from __future__ import annotations

import transformers

_SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _checkpoint(stem: str, **settings):
    return f"{stem}ForCausalLM", getattr(transformers, f"{stem}Config")(**_SIZES, **settings)


RECENT_DECODERS = {
    "granitemoe": _checkpoint(
        "GraniteMoe",
        num_local_experts=4,
        attention_multiplier=0.3,
        residual_multiplier=0.4,
        embedding_multiplier=6.0,
        logits_scaling=0.5,
    ),
    "cohere2": _checkpoint(
        "Cohere2", sliding_window=6, layer_types=["sliding_attention", "full_attention"], logit_scale=0.7
    ),
    "glm4-moe": _checkpoint(
        "Glm4Moe",
        head_dim=12,
        moe_intermediate_size=24,
        num_experts_per_tok=3,
        n_routed_experts=8,
        n_group=4,
        topk_group=2,
    ),
    "olmo": _checkpoint("Olmo"),
    "nemotron": _checkpoint("Nemotron"),
    "hunyuan": _checkpoint("HunYuanDenseV1", head_dim=12),
    "apertus": _checkpoint("Apertus"),
    "phimoe": _checkpoint("Phimoe", num_local_experts=4, router_jitter_noise=0.2, lm_head_bias=True),
}
