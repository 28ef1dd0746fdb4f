"""Configurations of decoder families of 2024 and 2025, two shapes of each."""

from __future__ import annotations

import transformers

VOCAB = 97
_WIDE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "original_max_position_embeddings": 16,
}
_MIXED = ["full_attention", "sliding_attention", "full_attention"]
_LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}


def _case(stem: str, **settings):
    return f"{stem}ForCausalLM", getattr(transformers, f"{stem}Config")(**_WIDE | settings)


RECENT_CASES = {
    "granite": _case(
        "Granite",
        num_key_value_heads=2,
        attention_multiplier=0.2,
        residual_multiplier=0.22,
        embedding_multiplier=12.0,
        logits_scaling=0.5,
    ),
    "granite-biases-tied": _case(
        "Granite",
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        attention_multiplier=0.5,
        rope_parameters=_LINEAR,
    ),
    "granitemoe": _case(
        "GraniteMoe",
        num_key_value_heads=2,
        num_local_experts=5,
        attention_multiplier=0.2,
        residual_multiplier=0.3,
        embedding_multiplier=8.0,
        logits_scaling=0.5,
    ),
    "granitemoe-three-of-four-tied": _case(
        "GraniteMoe",
        num_local_experts=4,
        num_experts_per_tok=3,
        attention_bias=True,
        tie_word_embeddings=True,
        attention_multiplier=0.3,
    ),
    "cohere": _case("Cohere", num_key_value_heads=2, logit_scale=0.7),
    "cohere-normed-heads-biases-untied": _case(
        "Cohere",
        num_key_value_heads=2,
        use_qk_norm=True,
        attention_bias=True,
        tie_word_embeddings=False,
        logit_scale=0.8,
    ),
    "cohere2": _case("Cohere2", num_key_value_heads=2, sliding_window=5, logit_scale=0.7),
    "cohere2-other-layers-biases": _case(
        "Cohere2", sliding_window=7, layer_types=_MIXED, attention_bias=True, tie_word_embeddings=False, logit_scale=0.8
    ),
    "glm": _case("Glm", head_dim=12),
    "glm-no-biases-tied": _case(
        "Glm",
        head_dim=8,
        num_key_value_heads=4,
        attention_bias=False,
        tie_word_embeddings=True,
        rope_parameters={**_LINEAR, "partial_rotary_factor": 1.0},
    ),
    "glm4": _case("Glm4", head_dim=12),
    "glm4-no-biases-tied": _case(
        "Glm4", head_dim=8, num_key_value_heads=1, attention_bias=False, tie_word_embeddings=True
    ),
    "glm4-moe": _case(
        "Glm4Moe",
        num_key_value_heads=2,
        head_dim=12,
        moe_intermediate_size=24,
        num_experts_per_tok=3,
        n_routed_experts=6,
        routed_scaling_factor=1.5,
        use_qk_norm=True,
    ),
    "glm4-moe-groups-two-shared-experts": _case(
        "Glm4Moe",
        num_key_value_heads=4,
        moe_intermediate_size=20,
        num_experts_per_tok=3,
        n_routed_experts=8,
        n_shared_experts=2,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=2,
        norm_topk_prob=False,
        attention_bias=True,
    ),
    "exaone4": _case("Exaone4", num_key_value_heads=2, sliding_window=5, rope_parameters=_LLAMA3),
    "exaone4-full-attention-tied": _case(
        "Exaone4",
        num_key_value_heads=4,
        sliding_window=None,
        layer_types=["full_attention"] * 3,
        tie_word_embeddings=True,
    ),
    "ernie4_5": _case("Ernie4_5", head_dim=12),
    "ernie4_5-biases-untied": _case(
        "Ernie4_5", head_dim=None, num_key_value_heads=4, use_bias=True, tie_word_embeddings=False
    ),
    "ernie4_5-moe": _case("Ernie4_5_Moe", moe_intermediate_size=24, moe_k=3, moe_num_experts=6, num_key_value_heads=2),
    "ernie4_5-moe-some-layers-biases": _case(
        "Ernie4_5_Moe",
        moe_intermediate_size=20,
        moe_k=2,
        moe_num_experts=4,
        moe_num_shared_experts=0,
        moe_layer_start_index=0,
        moe_layer_end_index=1,
        num_key_value_heads=4,
        use_bias=True,
        tie_word_embeddings=False,
    ),
    "olmo": _case("Olmo"),
    "olmo-clipped-gqa-biases-tied": _case(
        "Olmo", num_key_value_heads=2, clip_qkv=0.7, attention_bias=True, tie_word_embeddings=True
    ),
    "olmo3": _case("Olmo3", sliding_window=5),
    "olmo3-scaled-gqa-biases-tied": _case(
        "Olmo3",
        num_key_value_heads=2,
        sliding_window=7,
        layer_types=_MIXED,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters={"full_attention": _YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}},
    ),
    "olmoe": _case("Olmoe", num_experts=6, num_experts_per_tok=3),
    "olmoe-normalized-gqa-tied": _case(
        "Olmoe",
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "nemotron": _case("Nemotron", num_key_value_heads=2),
    "nemotron-biases-gelu-tied": _case(
        "Nemotron",
        num_key_value_heads=4,
        head_dim=12,
        attention_bias=True,
        mlp_bias=True,
        hidden_act="gelu",
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
    ),
    "helium": _case("Helium", num_key_value_heads=2, head_dim=8),
    "helium-biases-tied": _case(
        "Helium", num_key_value_heads=4, head_dim=8, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "arcee": _case("Arcee", num_key_value_heads=2, rope_parameters=_YARN),
    "arcee-biases-tied": _case("Arcee", attention_bias=True, mlp_bias=True, head_dim=12, tie_word_embeddings=True),
    "hunyuan": _case("HunYuanDenseV1", num_key_value_heads=2, head_dim=8),
    "hunyuan-stretched-positions-biases-tied": _case(
        "HunYuanDenseV1",
        head_dim=12,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 30.0, "factor": 1.0},
    ),
    "seed-oss": _case("SeedOss", num_key_value_heads=2, head_dim=12),
    "seed-oss-other-biases-tied": _case(
        "SeedOss",
        num_key_value_heads=4,
        head_dim=8,
        attention_bias=False,
        attention_out_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    ),
    "apertus": _case("Apertus", num_key_value_heads=2, rope_parameters=_LLAMA3),
    "apertus-relu2-biases-tied": _case(
        "Apertus",
        attention_bias=True,
        tie_word_embeddings=True,
        hidden_act="relu2",
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    ),
    "ministral3": _case(
        "Ministral3",
        num_key_value_heads=2,
        head_dim=12,
        rope_parameters={**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.7},
    ),
    "ministral3-window-tied": _case(
        "Ministral3",
        num_key_value_heads=4,
        head_dim=8,
        sliding_window=5,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 500.0,
            "original_max_position_embeddings": 6,
            "llama_4_scaling_beta": 0.3,
        },
    ),
    "phimoe": _case("Phimoe", num_key_value_heads=2, num_local_experts=5, attention_bias=True, lm_head_bias=True),
    "phimoe-long-rope-window-tied": _case(
        "Phimoe",
        num_key_value_heads=4,
        num_local_experts=4,
        router_jitter_noise=0.3,
        sliding_window=7,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0, 1.5, 2.0, 4.0],
            "long_factor": [2.0, 3.0, 5.0, 9.0],
            "short_mscale": 1.2,
            "long_mscale": 1.2,
            "original_max_position_embeddings": 48,
        },
    ),
}
