"""Configurations of decoder families, at least two shapes of each. `test_decoders` has four more families."""

from __future__ import annotations

import transformers

from tests.parity.further_decoder_cases import FURTHER_CASES
from tests.parity.recent_decoder_cases import RECENT_CASES

VOCAB = 97
_BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_WIDE = {**_BASE, "intermediate_size": 56}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "original_max_position_embeddings": 16,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 4.0],
    "long_factor": [2.0, 3.0, 5.0, 9.0],
    "original_max_position_embeddings": 48,
}
_BLOOM = {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 3}
_MPT = {"vocab_size": VOCAB, "d_model": 32, "n_layers": 3, "max_seq_len": 64}
_NEO = {"vocab_size": VOCAB, "hidden_size": 32, "num_heads": 4, "max_position_embeddings": 64, "window_size": 5}
_GPTJ = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4}
_PHI3 = {**_WIDE, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
_OPT = {**_BASE, "ffn_dim": 56}

MORE_CASES = {
    "qwen3": ("Qwen3ForCausalLM", transformers.Qwen3Config(**_WIDE, num_key_value_heads=2, head_dim=12)),
    "qwen3-biases-mixed-windows-tied": (
        "Qwen3ForCausalLM",
        transformers.Qwen3Config(
            **_WIDE,
            num_key_value_heads=4,
            head_dim=8,
            attention_bias=True,
            use_sliding_window=True,
            sliding_window=6,
            max_window_layers=2,
            tie_word_embeddings=True,
        ),
    ),
    "gpt-neox": (
        "GPTNeoXForCausalLM",
        transformers.GPTNeoXConfig(**_WIDE, rope_parameters={"rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    ),
    "gpt-neox-in-turn-linear-rope": (
        "GPTNeoXForCausalLM",
        transformers.GPTNeoXConfig(
            **{**_WIDE, "num_attention_heads": 2},
            use_parallel_residual=False,
            attention_bias=False,
            hidden_act="gelu_new",
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0, "partial_rotary_factor": 0.25},
        ),
    ),
    "opt": ("OPTForCausalLM", transformers.OPTConfig(**_OPT)),
    "opt-narrow-post-norm": (
        "OPTForCausalLM",
        transformers.OPTConfig(**_OPT, word_embed_proj_dim=20, do_layer_norm_before=False),
    ),
    "opt-wide-tokens-untied": (
        "OPTForCausalLM",
        transformers.OPTConfig(**_OPT, word_embed_proj_dim=40, tie_word_embeddings=False),
    ),
    "opt-post-norm-untied": (
        "OPTForCausalLM",
        transformers.OPTConfig(
            **_OPT, do_layer_norm_before=False, activation_function="gelu", tie_word_embeddings=False
        ),
    ),
    "opt-no-biases-no-final-norm": (
        "OPTForCausalLM",
        transformers.OPTConfig(**_OPT, enable_bias=False, _remove_final_layer_norm=True),
    ),
    "gptj": ("GPTJForCausalLM", transformers.GPTJConfig(**_GPTJ, rotary_dim=4)),
    "gptj-whole-heads-wide": (
        "GPTJForCausalLM",
        transformers.GPTJConfig(**_GPTJ, rotary_dim=8, n_inner=40, activation_function="relu"),
    ),
    "phi": ("PhiForCausalLM", transformers.PhiConfig(**_WIDE)),
    "phi-gqa-normed-heads": (
        "PhiForCausalLM",
        transformers.PhiConfig(
            **_WIDE,
            num_key_value_heads=2,
            qk_layernorm=True,
            rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0, "partial_rotary_factor": 0.25},
        ),
    ),
    "phi3": ("Phi3ForCausalLM", transformers.Phi3Config(**_PHI3)),
    "phi3-gqa-window-partial-rope": (
        "Phi3ForCausalLM",
        transformers.Phi3Config(
            **_PHI3,
            num_key_value_heads=2,
            sliding_window=5,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        ),
    ),
    "gemma": ("GemmaForCausalLM", transformers.GemmaConfig(**_WIDE, num_key_value_heads=1, head_dim=12)),
    "gemma-biases-gelu": (
        "GemmaForCausalLM",
        transformers.GemmaConfig(**_WIDE, num_key_value_heads=4, head_dim=8, attention_bias=True, hidden_act="gelu"),
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        transformers.Gemma2Config(
            **_WIDE, num_key_value_heads=2, head_dim=12, sliding_window=5, query_pre_attn_scalar=9
        ),
    ),
    "gemma2-low-caps": (
        "Gemma2ForCausalLM",
        transformers.Gemma2Config(
            **_WIDE,
            num_key_value_heads=4,
            head_dim=8,
            sliding_window=7,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
            query_pre_attn_scalar=2,
            attn_logit_softcapping=1.5,
            final_logit_softcapping=4.0,
        ),
    ),
    "gemma2-no-caps": (
        "Gemma2ForCausalLM",
        transformers.Gemma2Config(
            **_WIDE,
            num_key_value_heads=1,
            head_dim=8,
            query_pre_attn_scalar=8,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
        ),
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        transformers.Gemma3TextConfig(
            **_WIDE, num_key_value_heads=2, head_dim=12, sliding_window=5, query_pre_attn_scalar=9
        ),
    ),
    "gemma3-scaled-positions-capped-logits": (
        "Gemma3ForCausalLM",
        transformers.Gemma3TextConfig(
            **_WIDE,
            num_key_value_heads=1,
            head_dim=8,
            sliding_window=7,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
            query_pre_attn_scalar=2,
            final_logit_softcapping=4.0,
            attention_bias=True,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        ),
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        transformers.SmolLM3Config(**_PHI3, num_key_value_heads=2, no_rope_layer_interval=2),
    ),
    "smollm3-windows-biases-untied": (
        "SmolLM3ForCausalLM",
        transformers.SmolLM3Config(
            **_PHI3,
            num_key_value_heads=4,
            no_rope_layers=[0, 1, 1],
            use_sliding_window=True,
            sliding_window=5,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=False,
        ),
    ),
    "mixtral": (
        "MixtralForCausalLM",
        transformers.MixtralConfig(**_WIDE, num_key_value_heads=2, num_local_experts=5, num_experts_per_tok=2),
    ),
    "mixtral-window-three-of-four-tied": (
        "MixtralForCausalLM",
        transformers.MixtralConfig(
            **_WIDE,
            num_key_value_heads=4,
            num_local_experts=4,
            num_experts_per_tok=3,
            sliding_window=5,
            tie_word_embeddings=True,
        ),
    ),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        transformers.Qwen2MoeConfig(**_WIDE, num_key_value_heads=2, **_EXPERTS, shared_expert_intermediate_size=20),
    ),
    "qwen2-moe-some-layers-windows": (
        "Qwen2MoeForCausalLM",
        transformers.Qwen2MoeConfig(
            **_WIDE,
            num_key_value_heads=4,
            **_EXPERTS,
            shared_expert_intermediate_size=28,
            norm_topk_prob=True,
            mlp_only_layers=[1],
            use_sliding_window=True,
            sliding_window=6,
            max_window_layers=2,
            qkv_bias=False,
        ),
    ),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        transformers.Qwen3MoeConfig(**_WIDE, num_key_value_heads=2, **_EXPERTS, head_dim=12, norm_topk_prob=True),
    ),
    "qwen3-moe-every-other-layer-window-biases": (
        "Qwen3MoeForCausalLM",
        transformers.Qwen3MoeConfig(
            **_WIDE,
            num_key_value_heads=1,
            **_EXPERTS,
            decoder_sparse_step=2,
            use_sliding_window=True,
            sliding_window=6,
            attention_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    "olmo2": ("Olmo2ForCausalLM", transformers.Olmo2Config(**_PHI3)),
    "olmo2-gqa-biases-tied": (
        "Olmo2ForCausalLM",
        transformers.Olmo2Config(**_PHI3, num_key_value_heads=2, attention_bias=True, tie_word_embeddings=True),
    ),
    "stablelm": ("StableLmForCausalLM", transformers.StableLmConfig(**_WIDE, num_key_value_heads=4)),
    "stablelm-parallel-gqa-biases": (
        "StableLmForCausalLM",
        transformers.StableLmConfig(
            **_WIDE,
            num_key_value_heads=2,
            use_qkv_bias=True,
            use_parallel_residual=True,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        ),
    ),
    "stablelm-normed-heads": (
        "StableLmForCausalLM",
        transformers.StableLmConfig(**_WIDE, num_key_value_heads=2, qk_layernorm=True),
    ),
    "stablelm-parallel-normed-heads": (
        "StableLmForCausalLM",
        transformers.StableLmConfig(
            **_WIDE, num_key_value_heads=4, qk_layernorm=True, use_parallel_residual=True, use_qkv_bias=True
        ),
    ),
    "starcoder2": ("Starcoder2ForCausalLM", transformers.Starcoder2Config(**_WIDE)),
    "starcoder2-window-no-biases-untied": (
        "Starcoder2ForCausalLM",
        transformers.Starcoder2Config(
            **_WIDE, num_key_value_heads=1, sliding_window=5, use_bias=False, tie_word_embeddings=False
        ),
    ),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        transformers.GPTNeoConfig(**_NEO, num_layers=4, attention_types=[[["global", "local"], 2]]),
    ),
    "gpt-neo-wide-untied": (
        "GPTNeoForCausalLM",
        transformers.GPTNeoConfig(
            **_NEO,
            num_layers=3,
            attention_types=[[["local"], 2], [["global"], 1]],
            intermediate_size=40,
            activation_function="relu",
            tie_word_embeddings=False,
        ),
    ),
    "openai-gpt": ("OpenAIGPTLMHeadModel", transformers.OpenAIGPTConfig(**_GPTJ)),
    "openai-gpt-silu-untied": (
        "OpenAIGPTLMHeadModel",
        transformers.OpenAIGPTConfig(**{**_GPTJ, "n_head": 2}, afn="swish", tie_word_embeddings=False),
    ),
    "llama-dynamic-rope": (
        "LlamaForCausalLM",
        transformers.LlamaConfig(**_WIDE, rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}),
    ),
    "llama-yarn-rope": ("LlamaForCausalLM", transformers.LlamaConfig(**_WIDE, head_dim=16, rope_parameters=_YARN)),
    "qwen2-yarn-rope-by-hand": (
        "Qwen2ForCausalLM",
        transformers.Qwen2Config(
            **_WIDE, num_key_value_heads=2, rope_parameters={**_YARN, "attention_factor": 1.3, "truncate": False}
        ),
    ),
    "llama-long-rope": ("LlamaForCausalLM", transformers.LlamaConfig(**_WIDE, rope_parameters=_LONG)),
    "phi3-long-rope": (
        "Phi3ForCausalLM",
        transformers.Phi3Config(
            **_PHI3, original_max_position_embeddings=48, rope_parameters={**_LONG, "partial_rotary_factor": 1.0}
        ),
    ),
    "bloom": ("BloomForCausalLM", transformers.BloomConfig(**_BLOOM, n_head=4)),
    "bloom-six-heads-untied": (
        "BloomForCausalLM",
        transformers.BloomConfig(**{**_BLOOM, "hidden_size": 36}, n_head=6, tie_word_embeddings=False),
    ),
    "mpt": ("MptForCausalLM", transformers.MptConfig(**_MPT, n_heads=4)),
    "mpt-six-heads-other-scores": (
        "MptForCausalLM",
        transformers.MptConfig(**{**_MPT, "d_model": 36}, n_heads=6, attn_config={"softmax_scale": 0.3}),
    ),
    "mpt-clipped": ("MptForCausalLM", transformers.MptConfig(**_MPT, n_heads=4, attn_config={"clip_qkv": 0.7})),
    "mpt-clipped-other-scores": (
        "MptForCausalLM",
        transformers.MptConfig(**_MPT, n_heads=2, attn_config={"clip_qkv": 1.5, "softmax_scale": 0.2}),
    ),
    "falcon-multi-query": ("FalconForCausalLM", transformers.FalconConfig(**_BASE)),
    "falcon-grouped-two-norms": (
        "FalconForCausalLM",
        transformers.FalconConfig(
            **_BASE, new_decoder_architecture=True, num_kv_heads=2, bias=True, tie_word_embeddings=False
        ),
    ),
    "falcon-grouped-one-norm": (
        "FalconForCausalLM",
        transformers.FalconConfig(
            **_BASE, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, ffn_hidden_size=40
        ),
    ),
    "falcon-in-turn": (
        "FalconForCausalLM",
        transformers.FalconConfig(**_BASE, parallel_attn=False, multi_query=False, bias=True, activation="gelu_new"),
    ),
    **RECENT_CASES,
    **FURTHER_CASES,
}
