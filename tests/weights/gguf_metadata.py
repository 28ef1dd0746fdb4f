"""Metadata of GGUF files that differ from those of most families.

They follow the package `conversion` of https://github.com/ggml-org/llama.cpp (2026-11). `METADATA` has, by
`model_type`, the keys that a file needs besides the common ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Settings = Mapping[str, Any]


def kinds(hf: Settings) -> list[str]:
    return hf.get("layer_types") or hf["layers_block_type"]


def _sliding(hf: Settings) -> dict[str, Any]:
    window = hf.get("sliding_window")
    sliding = [kind == "sliding_attention" for kind in hf.get("layer_types") or []]
    return {} if not window else {"attention.sliding_window": window, "attention.sliding_window_pattern": sliding}


def _rope(hf: Settings, width: int) -> dict[str, Any]:
    share = (hf.get("rope_parameters") or {}).get("partial_rotary_factor", 1.0)
    return {"rope.dimension_count": int(width * share)}


def _delta(hf: Settings) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": hf["linear_conv_kernel_dim"],
        "ssm.state_size": hf["linear_key_head_dim"],
        "ssm.group_count": hf["linear_num_key_heads"],
        "ssm.time_step_rank": hf["linear_num_value_heads"],
        "ssm.inner_size": hf["linear_num_value_heads"] * hf["linear_value_head_dim"],
    }


def _granite(hf: Settings) -> dict[str, Any]:
    return {
        "attention.scale": hf["attention_multiplier"],
        "embedding_scale": hf["embedding_multiplier"],
        "residual_scale": hf["residual_multiplier"],
        "logit_scale": hf["logits_scaling"],
    }


def _granite_windows(hf: Settings) -> dict[str, Any]:
    return {
        **_granite(hf),
        **_sliding(hf),
        "attention.rope_pattern": [int(theta > 0) for theta in hf["layer_rope_theta"]],
        "expert_shared_feed_forward_length": hf.get("shared_intermediate_size") or None,
    }


def _granite_hybrid(hf: Settings) -> dict[str, Any]:
    attending = [hf["num_key_value_heads"] if kind == "full_attention" else 0 for kind in kinds(hf)]
    return {
        **_granite(hf),
        "attention.head_count_kv": attending,
        "expert_shared_feed_forward_length": hf["shared_intermediate_size"],
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": hf["mamba_d_conv"],
        "ssm.state_size": hf["mamba_d_state"],
        "ssm.group_count": hf["mamba_n_groups"],
        "ssm.inner_size": hf["mamba_expand"] * hf["hidden_size"],
        "ssm.time_step_rank": hf["mamba_n_heads"],
    }


def _falcon_h1(hf: Settings) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": hf["mamba_d_conv"],
        "ssm.state_size": hf["mamba_d_state"],
        "ssm.group_count": hf["mamba_n_groups"],
        "ssm.inner_size": hf["mamba_d_ssm"],
        "ssm.time_step_rank": hf["mamba_n_heads"],
    }


def _nemotron_h(hf: Settings) -> dict[str, Any]:
    attending = [hf["num_key_value_heads"] if kind == "full_attention" else 0 for kind in kinds(hf)]
    return {
        "block_count": len(kinds(hf)),
        "attention.head_count_kv": attending,
        "attention.layer_norm_rms_epsilon": hf["layer_norm_epsilon"],
        "expert_shared_feed_forward_length": hf["moe_shared_expert_intermediate_size"],
        "moe_latent_size": hf["moe_latent_size"],
        "ssm.conv_kernel": hf["conv_kernel"],
        "ssm.state_size": hf["ssm_state_size"],
        "ssm.group_count": hf["n_groups"],
        "ssm.inner_size": hf["mamba_num_heads"] * hf["mamba_head_dim"],
        "ssm.time_step_rank": hf["mamba_num_heads"],
        **_routed(hf),
    }


def _mamba2(hf: Settings) -> dict[str, Any]:
    return {
        "attention.head_count": 0,
        "feed_forward_length": 0,
        "attention.layer_norm_rms_epsilon": hf["layer_norm_epsilon"],
        "ssm.conv_kernel": hf["conv_kernel"],
        "ssm.state_size": hf["state_size"],
        "ssm.group_count": hf["n_groups"],
        "ssm.inner_size": hf["expand"] * hf["hidden_size"],
        "ssm.time_step_rank": hf["num_heads"],
    }


def _lfm2(hf: Settings) -> dict[str, Any]:
    attending = [0 if kind == "conv" else hf["num_key_value_heads"] for kind in kinds(hf)]
    return {
        "attention.head_count_kv": attending,
        "attention.layer_norm_rms_epsilon": hf["norm_eps"],
        "shortconv.l_cache": hf["conv_L_cache"],
        "leading_dense_block_count": hf.get("num_dense_layers"),
        # Two thirds, rounded up to a multiple: the width in the checkpoint.
        "feed_forward_length": 256 if hf["model_type"] == "lfm2" else hf["intermediate_size"],
    }


def _routed(hf: Settings) -> dict[str, Any]:
    return {
        "expert_shared_count": hf.get("n_shared_experts"),
        "leading_dense_block_count": hf.get("first_k_dense_replace"),
        "expert_group_count": hf.get("n_group"),
        "expert_group_used_count": hf.get("topk_group"),
        "expert_weights_scale": hf.get("routed_scaling_factor"),
        "expert_weights_norm": hf.get("norm_topk_prob") or None,
    }


def _latent(hf: Settings) -> dict[str, Any]:
    rope = hf["rope_parameters"]
    return {
        **_routed(hf),
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": hf["q_lora_rank"],
        "attention.kv_lora_rank": hf["kv_lora_rank"],
        "attention.key_length": hf["kv_lora_rank"] + hf["qk_rope_head_dim"],
        "attention.value_length": hf["kv_lora_rank"],
        "attention.key_length_mla": hf["qk_nope_head_dim"] + hf["qk_rope_head_dim"],
        "attention.value_length_mla": hf["v_head_dim"],
        "rope.dimension_count": hf["qk_rope_head_dim"],
        "rope.scaling.yarn_log_multiplier": 0.1 * rope["mscale_all_dim"] if "mscale_all_dim" in rope else None,
    }


def _llama4(hf: Settings) -> dict[str, Any]:
    return {
        "feed_forward_length": hf["intermediate_size_mlp"],
        "expert_feed_forward_length": hf["intermediate_size"],
        "interleave_moe_layer_step": hf["interleave_moe_layer_step"],
    }


def _layer_inputs(hf: Settings) -> dict[str, Any]:
    rope = hf["rope_parameters"]
    return {
        **_sliding(hf),
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
        "attention.shared_kv_layers": hf["num_kv_shared_layers"],
        "embedding_length_per_layer_input": hf["hidden_size_per_layer_input"],
    }


def _gemma3n(hf: Settings) -> dict[str, Any]:
    normal = torch.distributions.normal.Normal(0, 1)
    return {
        **_layer_inputs(hf),
        "altup.active_idx": hf["altup_active_idx"],
        "altup.num_inputs": hf["altup_num_inputs"],
        "activation_sparsity_scale": normal.icdf(torch.tensor(hf["activation_sparsity_pattern"])).tolist(),
    }


def _gemma4(hf: Settings) -> dict[str, Any]:
    full = next(hf["per_layer_config"][str(layer)] for layer, kind in enumerate(kinds(hf)) if kind[0] == "f")
    heads = hf["num_key_value_heads"], full.get("num_key_value_heads", hf["num_key_value_heads"])
    width, own = hf["intermediate_size"], hf["num_hidden_layers"] - hf["num_kv_shared_layers"]
    wide = [width if layer < own else 2 * width for layer in range(hf["num_hidden_layers"])]
    return {
        **_layer_inputs(hf),
        "attention.head_count_kv": [heads[kind[0] == "f"] for kind in kinds(hf)],
        "attention.key_length": full["head_dim"],
        "attention.value_length": full["head_dim"],
        "attention.key_length_swa": hf["head_dim"],
        "attention.value_length_swa": hf["head_dim"],
        "rope.dimension_count": full["head_dim"],
        "feed_forward_length": wide if hf["use_double_wide_mlp"] else width,
    }


def _ernie_moe(hf: Settings) -> dict[str, Any]:
    return {
        "expert_count": hf["moe_num_experts"],
        "expert_used_count": hf["moe_k"],
        "interleave_moe_layer_step": hf["moe_layer_interval"],
        "expert_shared_count": hf["moe_num_shared_experts"],
    }


def _t5(hf: Settings) -> dict[str, Any]:
    return {
        "block_count": hf["num_layers"],
        "decoder_block_count": hf["num_decoder_layers"],
        "embedding_length": hf["d_model"],
        "feed_forward_length": hf["d_ff"],
        "attention.key_length": hf["d_kv"],
        "attention.value_length": hf["d_kv"],
        "attention.relative_buckets_count": hf["relative_attention_num_buckets"],
        "attention.layer_norm_rms_epsilon": hf["layer_norm_epsilon"],
        "decoder_start_token_id": hf["decoder_start_token_id"],
    }


def _modernbert(hf: Settings) -> dict[str, Any]:
    return {
        "attention.causal": False,
        "attention.sliding_window": hf["local_attention"],
        "attention.layer_norm_rms_epsilon": hf["norm_eps"],
        "rope.freq_base_swa": hf["rope_parameters"]["sliding_attention"]["rope_theta"],
        "hidden_activation": hf["hidden_activation"],
    }


def _ministral(hf: Settings) -> dict[str, Any]:
    rope = hf["rope_parameters"]
    return {
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
        "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
    }


def _olmo3(hf: Settings) -> dict[str, Any]:
    return {**_sliding(hf), "rope.freq_base_swa": hf["rope_parameters"]["sliding_attention"]["rope_theta"]}


def _cohere2_moe(hf: Settings) -> dict[str, Any]:
    shared = hf["num_shared_experts"]
    return {
        **_sliding(hf),
        "logit_scale": hf["logit_scale"],
        "expert_feed_forward_length": hf["intermediate_size"],
        "expert_shared_count": shared or None,
        "expert_shared_feed_forward_length": hf["intermediate_size"] * shared or None,
        "expert_gating_func": {"softmax": 1, "sigmoid": 2}[hf["expert_selection_fn"]],
        "expert_weights_norm": hf["norm_topk_prob"],
        "attention.layer_norm_epsilon": None if hf.get("rms_norm_eps") else hf["layer_norm_eps"],
    }


METADATA: Mapping[str, Callable[[Settings], dict[str, Any]]] = {
    "qwen3_5_text": lambda hf: {**_delta(hf), **_rope(hf, hf["head_dim"])},
    "qwen3_5_moe_text": lambda hf: {**_delta(hf), **_rope(hf, hf["head_dim"])},
    "qwen3_next": lambda hf: {**_delta(hf), **_rope(hf, hf["head_dim"])},
    "gpt_oss": lambda hf: {
        "attention.sliding_window": hf["sliding_window"],
        "expert_feed_forward_length": hf["intermediate_size"],
    },
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "granite": _granite,
    "granitemoe": _granite,
    "granitemoehybrid": _granite_hybrid,
    "granite_swa": _granite_windows,
    "granitemoe_swa": _granite_windows,
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "glm": lambda hf: _rope(hf, hf["hidden_size"] // hf["num_attention_heads"]),
    "glm4": lambda hf: _rope(hf, hf["head_dim"]),
    "glm4_moe": lambda hf: {
        **_rope(hf, hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]),
        **_routed(hf),
        "block_count": hf["num_hidden_layers"] + 1,
        "nextn_predict_layers": 1,
    },
    "llama4_text": _llama4,
    "olmo": lambda hf: {"attention.clamp_kqv": hf["clip_qkv"], "attention.layer_norm_epsilon": 1e-5},
    "olmo3": _olmo3,
    "cohere": lambda hf: {"logit_scale": hf["logit_scale"]},
    "cohere2": lambda hf: {"logit_scale": hf["logit_scale"], "attention.sliding_window": hf["sliding_window"]},
    "exaone4": _sliding,
    "ernie4_5_moe": _ernie_moe,
    "phimoe": lambda hf: {"attention.sliding_window": hf["sliding_window"]},
    "nemotron": lambda hf: {"attention.layer_norm_epsilon": hf["norm_eps"], **_rope(hf, hf["head_dim"])},
    "nemotron_h": _nemotron_h,
    "falcon_h1": _falcon_h1,
    "mamba2": _mamba2,
    "mpt": lambda hf: {
        "attention.max_alibi_bias": 8.0,
        "attention.clamp_kqv": hf["attn_config"]["clip_qkv"],
        "block_count": hf["n_layers"],
    },
    "bloom": lambda hf: {"context_length": hf["seq_length"]},
    "gpt_bigcode": lambda hf: {"attention.head_count_kv": hf["num_key_value_heads"]},
    "apertus": lambda hf: {},
    "ministral3": _ministral,
    "t5": _t5,
    "umt5": _t5,
    "modernbert": _modernbert,
    "youtu": _latent,
    "glm4_moe_lite": _latent,
    "mistral4": lambda hf: {
        **_latent(hf),
        "attention.temperature_scale": hf["rope_parameters"]["llama_4_scaling_beta"],
    },
    "minicpm3": lambda hf: {
        "attention.q_lora_rank": hf["q_lora_rank"],
        "attention.kv_lora_rank": hf["kv_lora_rank"],
        "attention.key_length": hf["qk_nope_head_dim"] + hf["qk_rope_head_dim"],
        "rope.dimension_count": hf["qk_rope_head_dim"],
    },
    "mellum": lambda hf: {
        **_sliding(hf),
        "rope.freq_base_swa": hf["rope_parameters"]["sliding_attention"]["rope_theta"],
    },
    "hy_v3": lambda hf: {
        "expert_shared_feed_forward_length": hf["moe_intermediate_size"] * hf["num_shared_experts"],
        "expert_weights_norm": True,
        "expert_weights_scale": hf["router_scaling_factor"],
        "expert_gating_func": 2,
    },
    "cohere2_moe": _cohere2_moe,
    "afmoe": lambda hf: {
        "attention.sliding_window": hf["sliding_window"],
        "expert_shared_count": hf["num_shared_experts"],
        "expert_weights_scale": hf["route_scale"],
        "leading_dense_block_count": hf["num_dense_layers"],
    },
    "granitemoeshared": lambda hf: {
        **_granite(hf),
        "expert_shared_feed_forward_length": hf["shared_intermediate_size"],
    },
    "hunyuan_v1_moe": lambda hf: {
        "expert_used_count": hf["moe_topk"],
        "expert_feed_forward_length": hf["intermediate_size"],
    },
    "eurobert": lambda hf: {"attention.causal": False},
    "roberta": lambda hf: {"context_length": hf["max_position_embeddings"] - hf["pad_token_id"] - 1},
    "nomic_bert/moe": lambda hf: {
        "moe_every_n_layers": hf["moe_every_n_layers"],
        "expert_used_count": hf["moe_top_k"],
        "rope.freq_base": float(hf["rotary_emb_base"]),
    },
}
