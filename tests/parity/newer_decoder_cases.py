"""Configurations of decoder families of 2025 and 2026, two shapes of each."""

from __future__ import annotations

import transformers

from tests.parity.cases import WIDE_WITH_TOKENS, YARN, case

_LATENT = {
    **WIDE_WITH_TOKENS,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
}
_LATENT_YARN = {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8}
_MIXED = ["full_attention", "sliding_attention", "full_attention"]
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def _as_llama(stem: str, **settings):
    """A configuration class that transformers runs as LLaMA."""
    return "LlamaForCausalLM", getattr(transformers, f"{stem}Config")(**WIDE_WITH_TOKENS, **settings)


NEWER_CASES = {
    "cwm": case("Cwm", WIDE_WITH_TOKENS, num_key_value_heads=2, head_dim=8, sliding_window=5),
    "cwm-other-layers-biases-tied": case(
        "Cwm",
        WIDE_WITH_TOKENS,
        num_key_value_heads=4,
        head_dim=12,
        sliding_window=7,
        layer_types=_MIXED,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_parameters=_LLAMA3,
    ),
    "internlm3": _as_llama("InternLM3", head_dim=12),
    "internlm3-biases-tied": _as_llama(
        "InternLM3",
        num_key_value_heads=4,
        head_dim=8,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_parameters=_LLAMA3,
    ),
    "iquestcoder": _as_llama("IQuestCoder", num_key_value_heads=2, head_dim=12),
    "iquestcoder-biases-tied": _as_llama(
        "IQuestCoder", num_key_value_heads=4, head_dim=8, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "jais2": case("Jais2", WIDE_WITH_TOKENS, num_key_value_heads=2),
    "jais2-no-biases-tied": case(
        "Jais2", WIDE_WITH_TOKENS, head_dim=12, attention_bias=False, mlp_bias=False, tie_word_embeddings=True
    ),
    "granite-swa": case(
        "GraniteSWA",
        WIDE_WITH_TOKENS,
        num_key_value_heads=2,
        sliding_window=5,
        layer_rope_theta=[0, 500.0, 10000.0],
        attention_multiplier=0.2,
        residual_multiplier=0.3,
        embedding_multiplier=8.0,
        logits_scaling=0.5,
    ),
    "granite-swa-other-layers-biases-untied": case(
        "GraniteSWA",
        WIDE_WITH_TOKENS,
        num_key_value_heads=4,
        sliding_window=7,
        layer_types=_MIXED,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
        attention_multiplier=0.4,
    ),
    "granitemoeshared": case(
        "GraniteMoeShared",
        WIDE_WITH_TOKENS,
        num_key_value_heads=2,
        num_local_experts=5,
        shared_intermediate_size=20,
        attention_multiplier=0.2,
        residual_multiplier=0.3,
        embedding_multiplier=8.0,
        logits_scaling=0.5,
    ),
    "granitemoeshared-none-tied": case(
        "GraniteMoeShared",
        WIDE_WITH_TOKENS,
        num_local_experts=4,
        num_experts_per_tok=3,
        attention_bias=True,
        tie_word_embeddings=True,
        attention_multiplier=0.3,
    ),
    "youtu": case("Youtu", _LATENT, tie_word_embeddings=False),
    "youtu-plain-queries-scaled-biases": case(
        "Youtu",
        # transformers sets the row of the padding token to zero when it loads tied embeddings.
        {**_LATENT, "q_lora_rank": None, "pad_token_id": None},
        attention_bias=True,
        rope_interleave=False,
        rope_parameters=_LATENT_YARN,
    ),
    "minicpm3": case("MiniCPM3", _LATENT, scale_emb=3.0, dim_model_base=16),
    "minicpm3-plain-queries-unscaled-biases-untied": case(
        "MiniCPM3",
        {**_LATENT, "q_lora_rank": None, "v_head_dim": None},
        attention_bias=True,
        mlp_bias=True,
        scale_emb=1.0,
        scale_depth=None,
        dim_model_base=None,
        tie_word_embeddings=False,
        rope_parameters=_LATENT_YARN,
    ),
    "glm4-moe-lite": case("Glm4MoeLite", _LATENT, moe_intermediate_size=24, n_routed_experts=6, num_experts_per_tok=3),
    "glm4-moe-lite-groups-other-layers-tied": case(
        "Glm4MoeLite",
        {**_LATENT, "q_lora_rank": None},
        moe_intermediate_size=20,
        n_routed_experts=8,
        n_shared_experts=2,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        norm_topk_prob=False,
        mlp_layer_types=["sparse", "dense", "sparse"],
        attention_bias=True,
        rope_interleave=False,
        tie_word_embeddings=True,
        rope_parameters=_LATENT_YARN,
    ),
    "vaultgemma": case("VaultGemma", WIDE_WITH_TOKENS, num_key_value_heads=2, head_dim=12, sliding_window=5),
    "vaultgemma-other-layers-uncapped-biases-untied": case(
        "VaultGemma",
        WIDE_WITH_TOKENS,
        num_key_value_heads=4,
        head_dim=8,
        query_pre_attn_scalar=12,
        sliding_window=7,
        layer_types=_MIXED,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        attention_bias=True,
        tie_word_embeddings=False,
    ),
}
