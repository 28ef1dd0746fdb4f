"""Tiny configurations of decoder families, at least two per family.

`MORE_CASES` also contains the cases of `recent_decoder_cases`, `further_decoder_cases` and `newer_decoder_cases`.
`test_decoders` adds GPT-2, LLaMA, Mistral, Qwen2 and the hybrid families.
"""

from __future__ import annotations

import transformers

from tests.parity.cases import BASE, VOCAB, WIDE, WIDE_WITH_TOKENS, YARN, case
from tests.parity.further_decoder_cases import FURTHER_CASES
from tests.parity.newer_decoder_cases import NEWER_CASES
from tests.parity.recent_decoder_cases import RECENT_CASES

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
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
_OPT = {**BASE, "ffn_dim": 56}

MORE_CASES = {
    "qwen3": case("Qwen3", **WIDE, num_key_value_heads=2, head_dim=12),
    "qwen3-biases-mixed-windows-tied": case(
        "Qwen3",
        **WIDE,
        num_key_value_heads=4,
        head_dim=8,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=6,
        max_window_layers=2,
        tie_word_embeddings=True,
    ),
    "gpt-neox": case("GPTNeoX", **WIDE, rope_parameters={"rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    "gpt-neox-in-turn-linear-rope": case(
        "GPTNeoX",
        **{**WIDE, "num_attention_heads": 2},
        use_parallel_residual=False,
        attention_bias=False,
        hidden_act="gelu_new",
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0, "partial_rotary_factor": 0.25},
    ),
    "opt": case("OPT", **_OPT),
    "opt-narrow-post-norm": case("OPT", **_OPT, word_embed_proj_dim=20, do_layer_norm_before=False),
    "opt-wide-tokens-untied": case("OPT", **_OPT, word_embed_proj_dim=40, tie_word_embeddings=False),
    "opt-post-norm-untied": case(
        "OPT", **_OPT, do_layer_norm_before=False, activation_function="gelu", tie_word_embeddings=False
    ),
    "opt-no-biases-no-final-norm": case("OPT", **_OPT, enable_bias=False, _remove_final_layer_norm=True),
    "gptj": case("GPTJ", **_GPTJ, rotary_dim=4),
    "gptj-whole-heads-wide": case("GPTJ", **_GPTJ, rotary_dim=8, n_inner=40, activation_function="relu"),
    "phi": case("Phi", **WIDE),
    "phi-gqa-normed-heads": case(
        "Phi",
        **WIDE,
        num_key_value_heads=2,
        qk_layernorm=True,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0, "partial_rotary_factor": 0.25},
    ),
    "phi3": case("Phi3", WIDE_WITH_TOKENS),
    "phi3-gqa-window-partial-rope": case(
        "Phi3",
        WIDE_WITH_TOKENS,
        num_key_value_heads=2,
        sliding_window=5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
    ),
    "gemma": case("Gemma", **WIDE, num_key_value_heads=1, head_dim=12),
    "gemma-biases-gelu": case(
        "Gemma", **WIDE, num_key_value_heads=4, head_dim=8, attention_bias=True, hidden_act="gelu"
    ),
    "gemma2": case("Gemma2", **WIDE, num_key_value_heads=2, head_dim=12, sliding_window=5, query_pre_attn_scalar=9),
    "gemma2-low-caps": case(
        "Gemma2",
        **WIDE,
        num_key_value_heads=4,
        head_dim=8,
        sliding_window=7,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        query_pre_attn_scalar=2,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=4.0,
    ),
    "gemma2-no-caps": case(
        "Gemma2",
        **WIDE,
        num_key_value_heads=1,
        head_dim=8,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        transformers.Gemma3TextConfig(
            **WIDE, num_key_value_heads=2, head_dim=12, sliding_window=5, query_pre_attn_scalar=9
        ),
    ),
    "gemma3-scaled-positions-capped-logits": (
        "Gemma3ForCausalLM",
        transformers.Gemma3TextConfig(
            **WIDE,
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
    "smollm3": case("SmolLM3", WIDE_WITH_TOKENS, num_key_value_heads=2, no_rope_layer_interval=2),
    "smollm3-windows-biases-untied": case(
        "SmolLM3",
        WIDE_WITH_TOKENS,
        num_key_value_heads=4,
        no_rope_layers=[0, 1, 1],
        use_sliding_window=True,
        sliding_window=5,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
    ),
    "mixtral": case("Mixtral", **WIDE, num_key_value_heads=2, num_local_experts=5, num_experts_per_tok=2),
    "mixtral-window-three-of-four-tied": case(
        "Mixtral",
        **WIDE,
        num_key_value_heads=4,
        num_local_experts=4,
        num_experts_per_tok=3,
        sliding_window=5,
        tie_word_embeddings=True,
    ),
    "qwen2-moe": case("Qwen2Moe", **WIDE, num_key_value_heads=2, **_EXPERTS, shared_expert_intermediate_size=20),
    "qwen2-moe-some-layers-windows": case(
        "Qwen2Moe",
        **WIDE,
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
    "qwen3-moe": case("Qwen3Moe", **WIDE, num_key_value_heads=2, **_EXPERTS, head_dim=12, norm_topk_prob=True),
    "qwen3-moe-every-other-layer-window-biases": case(
        "Qwen3Moe",
        **WIDE,
        num_key_value_heads=1,
        **_EXPERTS,
        decoder_sparse_step=2,
        use_sliding_window=True,
        sliding_window=6,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "olmo2": case("Olmo2", WIDE_WITH_TOKENS),
    "olmo2-gqa-biases-tied": case(
        "Olmo2", WIDE_WITH_TOKENS, num_key_value_heads=2, attention_bias=True, tie_word_embeddings=True
    ),
    "stablelm": case("StableLm", **WIDE, num_key_value_heads=4),
    "stablelm-parallel-gqa-biases": case(
        "StableLm",
        **WIDE,
        num_key_value_heads=2,
        use_qkv_bias=True,
        use_parallel_residual=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
    ),
    "stablelm-normed-heads": case("StableLm", **WIDE, num_key_value_heads=2, qk_layernorm=True),
    "stablelm-parallel-normed-heads": case(
        "StableLm", **WIDE, num_key_value_heads=4, qk_layernorm=True, use_parallel_residual=True, use_qkv_bias=True
    ),
    "starcoder2": case("Starcoder2", **WIDE),
    "starcoder2-window-no-biases-untied": case(
        "Starcoder2", **WIDE, num_key_value_heads=1, sliding_window=5, use_bias=False, tie_word_embeddings=False
    ),
    "gpt-neo": case("GPTNeo", **_NEO, num_layers=4, attention_types=[[["global", "local"], 2]]),
    "gpt-neo-wide-untied": case(
        "GPTNeo",
        **_NEO,
        num_layers=3,
        attention_types=[[["local"], 2], [["global"], 1]],
        intermediate_size=40,
        activation_function="relu",
        tie_word_embeddings=False,
    ),
    "openai-gpt": ("OpenAIGPTLMHeadModel", transformers.OpenAIGPTConfig(**_GPTJ)),
    "openai-gpt-silu-untied": (
        "OpenAIGPTLMHeadModel",
        transformers.OpenAIGPTConfig(**{**_GPTJ, "n_head": 2}, afn="swish", tie_word_embeddings=False),
    ),
    "llama-dynamic-rope": case(
        "Llama", **WIDE, rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}
    ),
    "llama-yarn-rope": case("Llama", **WIDE, head_dim=16, rope_parameters=YARN),
    "qwen2-yarn-rope-by-hand": case(
        "Qwen2", **WIDE, num_key_value_heads=2, rope_parameters={**YARN, "attention_factor": 1.3, "truncate": False}
    ),
    "llama-long-rope": case("Llama", **WIDE, rope_parameters=_LONG),
    "phi3-long-rope": case(
        "Phi3",
        WIDE_WITH_TOKENS,
        original_max_position_embeddings=48,
        rope_parameters={**_LONG, "partial_rotary_factor": 1.0},
    ),
    "bloom": case("Bloom", **_BLOOM, n_head=4),
    "bloom-six-heads-untied": case("Bloom", **{**_BLOOM, "hidden_size": 36}, n_head=6, tie_word_embeddings=False),
    "mpt": case("Mpt", **_MPT, n_heads=4),
    "mpt-six-heads-other-scores": case("Mpt", **{**_MPT, "d_model": 36}, n_heads=6, attn_config={"softmax_scale": 0.3}),
    "mpt-clipped": case("Mpt", **_MPT, n_heads=4, attn_config={"clip_qkv": 0.7}),
    "mpt-clipped-other-scores": case("Mpt", **_MPT, n_heads=2, attn_config={"clip_qkv": 1.5, "softmax_scale": 0.2}),
    "falcon-multi-query": case("Falcon", **BASE),
    "falcon-grouped-two-norms": case(
        "Falcon", **BASE, new_decoder_architecture=True, num_kv_heads=2, bias=True, tie_word_embeddings=False
    ),
    "falcon-grouped-one-norm": case(
        "Falcon", **BASE, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, ffn_hidden_size=40
    ),
    "falcon-in-turn": case("Falcon", **BASE, parallel_attn=False, multi_query=False, bias=True, activation="gelu_new"),
    **RECENT_CASES,
    **NEWER_CASES,
    **FURTHER_CASES,
}
