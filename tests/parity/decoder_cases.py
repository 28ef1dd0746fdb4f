"""Random checkpoints of the decoder families after the first four, at least two shapes of each."""

from __future__ import annotations

from transformers import GPTNeoXConfig, OPTConfig, Qwen3Config

VOCAB = 97
_BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_WIDE = {**_BASE, "intermediate_size": 56}
_OPT = {**_BASE, "ffn_dim": 56}

MORE_CASES = {
    "qwen3": ("Qwen3ForCausalLM", Qwen3Config(**_WIDE, num_key_value_heads=2, head_dim=12)),
    "qwen3-biases-mixed-windows-tied": (
        "Qwen3ForCausalLM",
        Qwen3Config(
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
        GPTNeoXConfig(**_WIDE, rope_parameters={"rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    ),
    "gpt-neox-in-turn-linear-rope": (
        "GPTNeoXForCausalLM",
        GPTNeoXConfig(
            **{**_WIDE, "num_attention_heads": 2},
            use_parallel_residual=False,
            attention_bias=False,
            hidden_act="gelu_new",
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0, "partial_rotary_factor": 0.25},
        ),
    ),
    "opt": ("OPTForCausalLM", OPTConfig(**_OPT)),
    "opt-post-norm-untied": (
        "OPTForCausalLM",
        OPTConfig(**_OPT, do_layer_norm_before=False, activation_function="gelu", tie_word_embeddings=False),
    ),
    "opt-no-biases-no-final-norm": (
        "OPTForCausalLM",
        OPTConfig(**_OPT, enable_bias=False, _remove_final_layer_norm=True),
    ),
}
