"""Configurations of tiny random checkpoints of decoder families whose layers have unusual parts, one for each part."""

from __future__ import annotations

import transformers

_SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FURTHER_DECODERS = {
    "modernbert-decoder": (
        "ModernBertDecoderForCausalLM",
        transformers.ModernBertDecoderConfig(**_SIZES, local_attention=12),
    ),
    "gemma4": (
        "Gemma4ForCausalLM",
        transformers.Gemma4TextConfig(
            **_SIZES | {"num_hidden_layers": 4},
            num_key_value_heads=2,
            head_dim=8,
            global_head_dim=12,
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            num_kv_shared_layers=2,
            hidden_size_per_layer_input=12,
            vocab_size_per_layer_input=97,
        ),
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        transformers.GptOssConfig(
            **_SIZES,
            head_dim=8,
            num_key_value_heads=2,
            sliding_window=6,
            num_local_experts=4,
            num_experts_per_tok=2,
            swiglu_limit=0.7,
        ),
    ),
    "deepseek-v3": (
        "DeepseekV3ForCausalLM",
        transformers.DeepseekV3Config(
            **_SIZES,
            num_key_value_heads=4,
            q_lora_rank=16,
            kv_lora_rank=20,
            qk_rope_head_dim=8,
            qk_nope_head_dim=12,
            v_head_dim=10,
            first_k_dense_replace=1,
            moe_intermediate_size=24,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_group=4,
            topk_group=2,
        ),
    ),
    "llama4": (
        "Llama4ForCausalLM",
        transformers.Llama4TextConfig(
            **_SIZES,
            head_dim=8,
            num_key_value_heads=2,
            intermediate_size_mlp=40,
            num_local_experts=4,
            no_rope_layers=[1, 0],
            attention_chunk_size=6,
            floor_scale=5,
            attn_scale=0.3,
        ),
    ),
}
