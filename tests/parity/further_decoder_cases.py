"""Configurations of decoder families with parts of their own, two shapes of each.

The parts are sinks, chunks, latent attention, shared keys and values, vectors per layer, and older layouts.
"""

from __future__ import annotations

import transformers

VOCAB = 97
_BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WIDE = {**_BASE, "intermediate_size": 56}
_BIGCODE = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4}
_XGLM = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "ffn_dim": 56,
    "num_layers": 3,
    "attention_heads": 4,
    "max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "original_max_position_embeddings": 16,
}
_GEMMA4_ROPE = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}
_KINDS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
_LATENT = {
    **_WIDE,
    "num_key_value_heads": 4,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
}
_LLAMA4 = {**_WIDE, "intermediate_size_mlp": 40, "head_dim": 8, "num_local_experts": 4}


def _case(stem: str, settings, **more):
    return f"{stem}ForCausalLM", getattr(transformers, f"{stem}Config")(**settings | more)


def _text_case(stem: str, settings, **more):
    return f"{stem}ForCausalLM", getattr(transformers, f"{stem}TextConfig")(**settings | more)


FURTHER_CASES = {
    "gpt-bigcode": _case("GPTBigCode", _BIGCODE),
    "gpt-bigcode-all-heads-untied": _case(
        "GPTBigCode",
        _BIGCODE,
        multi_query=False,
        n_inner=40,
        activation_function="relu",
        scale_attn_weights=False,
        tie_word_embeddings=False,
    ),
    "xglm": _case("XGLM", _XGLM),
    "xglm-unscaled-untied": _case(
        "XGLM", _XGLM, scale_embedding=False, activation_function="relu", tie_word_embeddings=False
    ),
    "biogpt": _case("BioGpt", _WIDE),
    "biogpt-unscaled-untied": _case(
        "BioGpt", _WIDE, scale_embedding=False, hidden_act="relu", tie_word_embeddings=False
    ),
    "persimmon": _case("Persimmon", _WIDE),
    "persimmon-plain-heads-tied": _case(
        "Persimmon",
        _WIDE,
        qk_layernorm=False,
        hidden_act="gelu",
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0, "partial_rotary_factor": 0.25},
    ),
    "modernbert-decoder": _case("ModernBertDecoder", _WIDE, local_attention=10),
    "modernbert-decoder-biases-untied": _case(
        "ModernBertDecoder",
        _WIDE,
        local_attention=14,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        attention_bias=True,
        mlp_bias=True,
        norm_bias=True,
        classifier_bias=True,
        decoder_bias=False,
        tie_word_embeddings=False,
    ),
    "gemma4": _text_case(
        "Gemma4",
        _WIDE,
        num_hidden_layers=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=12,
        sliding_window=5,
        layer_types=_KINDS,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=12,
        vocab_size_per_layer_input=VOCAB,
        rope_parameters=_GEMMA4_ROPE,
    ),
    "gemma4-values-of-keys-capped": _text_case(
        "Gemma4",
        _WIDE,
        num_hidden_layers=4,
        num_key_value_heads=2,
        head_dim=12,
        global_head_dim=16,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=7,
        layer_types=_KINDS,
        hidden_size_per_layer_input=0,
        final_logit_softcapping=4.0,
        attention_bias=True,
    ),
    "gemma4-unified": _text_case(
        "Gemma4Unified",
        _WIDE,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=12,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
        num_kv_shared_layers=1,
        rope_parameters=_GEMMA4_ROPE,
    ),
    "gemma4-unified-values-of-keys": _text_case(
        "Gemma4Unified",
        _WIDE,
        num_key_value_heads=4,
        head_dim=8,
        global_head_dim=8,
        num_global_key_value_heads=2,
        attention_k_eq_v=True,
        sliding_window=6,
        tie_word_embeddings=False,
    ),
    "gpt-oss": _case(
        "GptOss",
        _WIDE,
        head_dim=8,
        num_key_value_heads=2,
        sliding_window=5,
        num_local_experts=4,
        num_experts_per_tok=2,
        swiglu_limit=0.7,
        rope_parameters=_YARN,
    ),
    "gpt-oss-full-tied": _case(
        "GptOss",
        _WIDE,
        head_dim=12,
        num_key_value_heads=4,
        layer_types=["full_attention"] * 3,
        num_local_experts=5,
        num_experts_per_tok=3,
        attention_bias=False,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    ),
    "deepseek-v2": _case(
        "DeepseekV2",
        _LATENT,
        q_lora_rank=None,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
        rope_parameters={**_YARN, "mscale": 0.7, "mscale_all_dim": 0.9},
    ),
    "deepseek-v2-groups-biases": _case(
        "DeepseekV2",
        _LATENT,
        q_lora_rank=16,
        v_head_dim=16,
        n_shared_experts=1,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "deepseek-v3": _case(
        "DeepseekV3",
        _LATENT,
        q_lora_rank=16,
        first_k_dense_replace=1,
        n_group=4,
        topk_group=2,
        rope_parameters={**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "deepseek-v3-direct-queries": _case(
        "DeepseekV3",
        _LATENT,
        q_lora_rank=None,
        qk_rope_head_dim=4,
        first_k_dense_replace=2,
        n_group=2,
        topk_group=1,
        norm_topk_prob=False,
        rope_interleave=False,
        attention_bias=True,
    ),
    "mistral4": _case(
        "Mistral4",
        _LATENT,
        q_lora_rank=16,
        first_k_dense_replace=1,
        rope_parameters={**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4},
    ),
    "mistral4-groups-direct-queries": _case(
        "Mistral4",
        _LATENT,
        q_lora_rank=None,
        n_group=4,
        topk_group=2,
        norm_topk_prob=False,
        routed_scaling_factor=1.7,
        rope_interleave=False,
        rope_parameters={**_YARN, "original_max_position_embeddings": 5, "llama_4_scaling_beta": 0.2},
    ),
    "llama4": _text_case(
        "Llama4",
        _LLAMA4,
        num_key_value_heads=2,
        no_rope_layers=[1, 0, 1],
        attention_chunk_size=5,
        interleave_moe_layer_step=2,
        floor_scale=6,
        attn_scale=0.4,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    ),
    "llama4-two-experts-plain-heads": _text_case(
        "Llama4",
        _LLAMA4,
        num_key_value_heads=4,
        no_rope_layers=[0, 1, 1],
        attention_chunk_size=7,
        layer_types=["full_attention", "chunked_attention", "full_attention"],
        moe_layers=[0, 2],
        num_experts_per_tok=2,
        use_qk_norm=False,
        attn_temperature_tuning=False,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
}
