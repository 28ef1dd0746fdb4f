"""Tiny configurations of decoders with mixers, at least two per family."""

from __future__ import annotations

import transformers

from tests.parity.cases import VOCAB, case

_BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WIDE = {**_BASE, "intermediate_size": 56}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
_DELTA = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 12,
}
_ONE_DELTA_HEAD = {
    "head_dim": 16,
    "linear_num_key_heads": 3,
    "linear_key_head_dim": 12,
    "linear_num_value_heads": 3,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 2,
}
_DELTA_TYPES = ["linear_attention", "full_attention", "linear_attention"]
_CONV_TYPES = ["conv", "full_attention", "conv"]
_MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 12, "mamba_n_groups": 2, "mamba_chunk_size": 16}
_GRANITE = {
    **_WIDE,
    **_MAMBA,
    "shared_intermediate_size": 40,
    "num_hidden_layers": 3,
    "layer_types": _DELTA_TYPES,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "logits_scaling": 0.4,
    "attention_multiplier": 0.3,
}
_FALCON = {
    **_WIDE,
    "num_hidden_layers": 3,
    "mamba_n_heads": 4,
    "mamba_d_state": 12,
    "mamba_chunk_size": 16,
    "key_multiplier": 0.7,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.1,
    "ssm_out_multiplier": 0.8,
    "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 0.7],
    "mlp_multipliers": [1.3, 0.6],
    "embedding_multiplier": 2.0,
    "lm_head_multiplier": 1.5,
}
_NEMOTRON = {
    **_WIDE,
    "head_dim": 12,
    "mamba_num_heads": 8,
    "mamba_head_dim": 6,
    "ssm_state_size": 10,
    "n_groups": 2,
    "chunk_size": 16,
}
_MAMBA2 = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "state_size": 12,
    "chunk_size": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "residual_in_fp32": False,
}
_QWEN_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}

HYBRIDS = {
    "qwen3_5": ("Qwen3_5ForCausalLM", transformers.Qwen3_5TextConfig(**_WIDE, **_DELTA, num_hidden_layers=4)),
    "qwen3_5-equal-heads-tied": (
        "Qwen3_5ForCausalLM",
        transformers.Qwen3_5TextConfig(
            **_WIDE,
            **_ONE_DELTA_HEAD,
            num_hidden_layers=3,
            layer_types=_DELTA_TYPES,
            attention_bias=True,
            tie_word_embeddings=True,
            rope_parameters=_QWEN_ROPE,
        ),
    ),
    "olmo_hybrid": case(
        "OlmoHybrid",
        **_WIDE,
        num_hidden_layers=4,
        pad_token_id=0,
        # transformers saves the convolution of queries, keys and values as three equal parts.
        linear_num_key_heads=2,
        linear_key_head_dim=12,
        linear_value_head_dim=6,
        rope_parameters={"rope_type": "default", "rope_theta": None},
    ),
    "olmo_hybrid-rotary-positive-biases": case(
        "OlmoHybrid",
        **_WIDE,
        num_hidden_layers=3,
        pad_token_id=0,
        layer_types=_DELTA_TYPES,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_conv_kernel_dim=2,
        linear_allow_neg_eigval=False,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    ),
    "lfm2": case("Lfm2", **_WIDE, num_hidden_layers=3, layer_types=_CONV_TYPES),
    "lfm2-biases-wide-kernel-untied": case(
        "Lfm2",
        **_WIDE,
        num_hidden_layers=4,
        full_attn_idxs=[2],
        conv_bias=True,
        conv_L_cache=5,
        block_multiple_of=8,
        block_ffn_dim_multiplier=1.5,
        tie_word_embeddings=False,
    ),
    "granitemoehybrid": case("GraniteMoeHybrid", **_GRANITE, num_local_experts=6, num_experts_per_tok=3),
    "granitemoehybrid-dense-rope-biases": case(
        "GraniteMoeHybrid",
        **{**_GRANITE, "mamba_n_groups": 1},
        num_local_experts=0,
        position_embedding_type="rope",
        attention_bias=True,
        mamba_proj_bias=True,
        mamba_conv_bias=False,
        tie_word_embeddings=True,
    ),
    "qwen3_next": case(
        "Qwen3Next",
        **_WIDE,
        **_DELTA,
        **_EXPERTS,
        num_hidden_layers=3,
        layer_types=["linear_attention", "linear_attention", "full_attention"],
        shared_expert_intermediate_size=40,
    ),
    "qwen3_next-dense-first-equal-heads": case(
        "Qwen3Next",
        **_WIDE,
        **_ONE_DELTA_HEAD,
        **_EXPERTS,
        num_hidden_layers=3,
        layer_types=_DELTA_TYPES,
        mlp_only_layers=[0],
        norm_topk_prob=False,
        shared_expert_intermediate_size=24,
    ),
    "qwen3_5_moe": (
        "Qwen3_5MoeForCausalLM",
        transformers.Qwen3_5MoeTextConfig(
            **_BASE,
            **_DELTA,
            **_EXPERTS,
            num_hidden_layers=2,
            layer_types=["linear_attention", "full_attention"],
            shared_expert_intermediate_size=40,
        ),
    ),
    "qwen3_5_moe-equal-heads-biases": (
        "Qwen3_5MoeForCausalLM",
        transformers.Qwen3_5MoeTextConfig(
            **_BASE,
            **_ONE_DELTA_HEAD,
            **{**_EXPERTS, "num_experts_per_tok": 1},
            num_hidden_layers=3,
            layer_types=_DELTA_TYPES,
            shared_expert_intermediate_size=24,
            attention_bias=True,
            rope_parameters=_QWEN_ROPE,
        ),
    ),
    "lfm2_moe": case("Lfm2Moe", **_WIDE, **_EXPERTS, num_hidden_layers=3, num_dense_layers=1, layer_types=_CONV_TYPES),
    "lfm2_moe-plain-shares": case(
        "Lfm2Moe",
        **_WIDE,
        **_EXPERTS,
        num_hidden_layers=3,
        num_dense_layers=0,
        layer_types=["full_attention", "conv", "conv"],
        use_expert_bias=False,
        norm_topk_prob=False,
        routed_scaling_factor=1.7,
        conv_bias=True,
        tie_word_embeddings=False,
    ),
    "lfm3": case(
        "Lfm3",
        **_WIDE,
        pad_token_id=0,
        head_dim=8,
        num_hidden_layers=4,
        sliding_window=6,
        layer_types=["conv", "full_attention", "sliding_attention", "conv"],
    ),
    "lfm3-plain-norms-biases": case(
        "Lfm3",
        **_WIDE,
        pad_token_id=0,
        head_dim=12,
        num_hidden_layers=3,
        conv_L_cache=3,
        conv_bias=True,
        use_sandwich_norm=False,
        use_attention_gate=False,
        attention_bias=True,
        tie_word_embeddings=False,
        layer_types=["sliding_attention", "conv", "full_attention"],
        sliding_window=5,
    ),
    "falcon_h1": case("FalconH1", **_FALCON, mamba_d_ssm=24, mamba_n_groups=2, mamba_rms_norm=True),
    "falcon_h1-gate-alone-biases": case(
        "FalconH1",
        **{**_FALCON, "attention_in_multiplier": 1.0},
        mamba_d_ssm=None,
        mamba_proj_bias=True,
        projectors_bias=True,
        attention_bias=True,
        mlp_bias=True,
        mamba_conv_bias=False,
        tie_word_embeddings=True,
    ),
    "falcon_h1-gate-before-norm": case(
        "FalconH1", **_FALCON, mamba_d_ssm=32, mamba_n_groups=2, mamba_rms_norm=True, mamba_norm_before_gate=False
    ),
    "nemotron_h": case(
        "NemotronH", **_NEMOTRON, layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"]
    ),
    "nemotron_h-experts-last": case(
        "NemotronH",
        **_NEMOTRON,
        layers_block_type=["full_attention", "linear_attention", "moe"],
        n_routed_experts=8,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.5,
        moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=40,
        use_bias=True,
        use_conv_bias=False,
    ),
    "nemotron_h-latent-experts": case(
        "NemotronH",
        **_NEMOTRON,
        layers_block_type=["linear_attention", "moe", "full_attention"],
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_latent_size=20,
        moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=40,
        mlp_bias=True,
    ),
    "bamba": case("Bamba", **_WIDE, **_MAMBA, num_hidden_layers=3, attn_layer_indices=[1]),
    "bamba-biases-whole-heads-tied": case(
        "Bamba",
        **{**_WIDE, **_MAMBA, "mamba_n_groups": 1},
        num_hidden_layers=3,
        attn_layer_indices=[0, 2],
        attention_bias=True,
        mlp_bias=True,
        mamba_proj_bias=True,
        mamba_conv_bias=False,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
    ),
    "mamba2": case("Mamba2", **_MAMBA2, num_heads=8, head_dim=8, n_groups=2),
    "mamba2-biases-tied": case(
        "Mamba2",
        **_MAMBA2,
        num_heads=4,
        head_dim=16,
        n_groups=1,
        use_bias=True,
        use_conv_bias=False,
        conv_kernel=2,
        tie_word_embeddings=True,
    ),
}


def remember(model) -> None:
    """Make the decay of states slow. With random weights, a state would forget a token after a few more."""
    for name, tensor in model.named_parameters():
        if name.endswith("A_log"):
            tensor.copy_(tensor - 4)
