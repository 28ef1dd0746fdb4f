"""Unsupported settings and architectures are refused by name; known architectures also with a reason."""

from __future__ import annotations

import pytest

from models.config import ConfigError
from models.families import FAMILIES, family_of
from models.families.shared import refused
from tests.models.family_bases import BART, BASES, FALCON, LLAMA, MPT, ORIGINAL, build

REFUSED = [
    ("llama", "auto_map", {"AutoModel": "modeling.Own"}),
    ("llama", "hidden_act", "mish"),
    ("llama", "hidden_act", ["silu"]),
    ("llama", "hidden_size", 30),
    ("llama", "hidden_size", "32"),
    ("llama", "hidden_size", True),
    ("llama", "num_hidden_layers", 0),
    ("llama", "num_key_value_heads", 3),
    ("llama", "rms_norm_eps", float("nan")),
    ("llama", "rms_norm_eps", 0.0),
    ("llama", "attention_bias", "no"),
    ("llama", "vocab_size", 0),
    ("llama", "rope_scaling", {"type": "xpos", "factor": 2.0}),
    ("llama", "rope_scaling", {"type": "dynamic"}),
    ("llama", "rope_parameters", {"rope_type": "yarn", "factor": -2.0, "original_max_position_embeddings": 64}),
    ("llama", "rope_parameters", {"rope_type": "yarn", "beta_fast": -1, "factor": 2, ORIGINAL: 64}),
    ("llama", "rope_parameters", {"rope_type": "longrope", "short_factor": [1.0] * 3, "factor": 2, ORIGINAL: 64}),
    ("llama", "rope_parameters", {"rope_type": "longrope", "short_factor": [0] * 4, "factor": 2, ORIGINAL: 64}),
    ("llama", "rope_parameters", {"rope_type": "longrope", "short_factor": [1.0] * 4, "factor": 2, ORIGINAL: 64}),
    ("llama", "rope_parameters", {"rope_type": "linear"}),
    ("llama", "rope_parameters", {"rope_type": "linear", "factor": -2.0}),
    ("llama", "rope_parameters", {"rope_type": "llama3", "factor": 8.0}),
    ("llama", "rope_parameters", {"rope_type": ["linear"]}),
    ("llama", "rope_parameters", {"full_attention": {"rope_type": "default"}}),
    ("llama", "rope_parameters", "linear"),
    ("llama", "partial_rotary_factor", 0.5),
    ("mistral", "layer_types", ["full_attention"] * 4),
    ("mistral", "sliding_window", 0),
    ("qwen2", "layer_types", ["full_attention"] * 3),
    ("qwen2", "layer_types", [["full_attention"]] * 4),
    ("qwen2", "layer_types", ["sliding_attention"] * 4),
    ("qwen3", "layer_types", ["sliding_attention"] * 4),
    ("gpt_neox", "partial_rotary_factor", 1.5),
    ("gpt_neox", "rope_parameters", {"partial_rotary_factor": 0.0}),
    ("gpt_neox", "rotary_pct", 0.4),
    ("gptj", "rotary_dim", None),
    ("bloom", "apply_residual_connection_post_layernorm", True),
    ("mpt", "attn_config", ["alibi"]),
    ("mpt", "no_bias", False),
    ("mpt", "expansion_ratio", 3),
    ("mpt", "logit_scale", "inv_sqrt_d_model"),
    ("falcon", "alibi", "yes"),
    ("falcon", "num_ln_in_parallel_attn", 2),
    ("stablelm", "qk_layernorm", 1),
    ("starcoder2", "sliding_window", -1),
    ("olmo2", "attention_bias", 1),
    ("gpt_neo", "attention_types", [[["global", "local"], 3]]),
    ("gpt_neo", "attention_types", [[["global", "strided"], 12]]),
    ("gpt_neo", "attention_types", "global"),
    ("gpt_neo", "attention_types", [[["global"], 10**12]]),
    ("openai-gpt", "afn", "gelu_pytorch_tanh"),
    ("phi", "qk_layernorm", "yes"),
    ("phi3", "rope_scaling", {"type": "yarn", "factor": 2.0}),
    ("phi3", "rope_parameters", {"rope_type": "dynamic", "factor": 2.0}),
    ("phi3", "rope_scaling", {"type": "su", "short_factor": [1.0], "factor": 2, ORIGINAL: 64}),
    ("gemma", "use_bidirectional_attention", True),
    ("gemma", "hidden_activation", "relu"),
    ("gemma2", "use_bidirectional_attention", True),
    ("gemma2", "attn_logit_softcapping", 0.0),
    ("gemma2", "final_logit_softcapping", -30.0),
    ("gemma2", "query_pre_attn_scalar", 0),
    ("gemma2", "layer_types", ["chunked_attention"] * 4),
    ("gemma3_text", "use_bidirectional_attention", True),
    ("gemma3_text", "attn_logit_softcapping", 50.0),
    ("gemma3_text", "sliding_window", None),
    ("gemma3_text", "rope_parameters", {"rope_type": "default"}),
    ("gemma3_text", "rope_parameters", {"full_attention": "linear"}),
    ("gemma3_text", "layer_types", ["chunked_attention"] * 4),
    ("smollm3", "no_rope_layers", [1, 1, 1]),
    ("smollm3", "no_rope_layers", [1, 1, 1, 2]),
    ("smollm3", "layer_types", ["sliding_attention"] * 4),
    ("mixtral", "num_experts_per_tok", 9),
    ("mixtral", "layer_types", ["full_attention"] * 4),
    ("qwen2_moe", "mlp_only_layers", "all"),
    ("qwen2_moe", "layer_types", ["sliding_attention"] * 4),
    ("qwen3_moe", "decoder_sparse_step", 0),
    ("qwen3_moe", "norm_topk_prob", 1),
    ("granite", "residual_multiplier", 0),
    ("granite", "logits_scaling", -8.0),
    ("granitemoe", "num_experts_per_tok", 9),
    ("cohere", "use_qk_norm", "yes"),
    ("cohere2", "head_dim", 16),
    ("cohere2", "layer_types", ["chunked_attention"] * 4),
    ("glm", "partial_rotary_factor", 1.5),
    ("glm4", "attention_bias", "yes"),
    ("glm4_moe", "n_group", 3),
    ("glm4_moe", "topk_group", 2),
    ("glm4_moe", "first_k_dense_replace", -1),
    ("exaone4", "sliding_window_pattern", "LLLG"),
    ("ernie4_5", "use_bias", "no"),
    ("ernie4_5_moe", "moe_norm_min", 0),
    ("ernie4_5_moe", "moe_layer_interval", 0),
    ("olmo", "clip_qkv", -8.0),
    ("olmo3", "rope_parameters", {"rope_type": "default"}),
    ("olmo3", "sliding_window_pattern", 3),
    ("olmoe", "clip_qkv", 8.0),
    ("nemotron", "hidden_act", "mish"),
    ("helium", "mlp_bias", 1),
    ("arcee", "hidden_act", "mish"),
    ("hunyuan_v1_dense", "rope_parameters", {"rope_type": "dynamic", "alpha": -1.0}),
    ("seed_oss", "attention_out_bias", "no"),
    ("apertus", "hidden_act", "mish"),
    ("phimoe", "num_experts_per_tok", 3),
    ("phimoe", "router_jitter_noise", -0.1),
    ("phimoe", "rope_scaling", {"type": "linear", "factor": 2.0}),
    ("phimoe", "rope_scaling", {"type": "longrope", "short_factor": [1.0] * 4, ORIGINAL: 64}),
    ("ministral3", "layer_types", ["full_attention"] * 4),
    ("ministral3", "rope_parameters", {"rope_type": "default", ORIGINAL: 64}),
    ("cwm", "layer_types", ["chunked_attention"] * 4),
    ("cwm", "attention_bias", True),
    ("internlm3", "qkv_bias", True),
    ("iquestcoder", "clip_qkv", 8.0),
    ("iquestcoder", "use_sliding_window", True),
    ("vaultgemma", "query_pre_attn_scalar", 0),
    ("vaultgemma", "use_bidirectional_attention", True),
    ("granite_swa", "layer_rope_theta", [0, 500.0]),
    ("granite_swa", "layer_rope_theta", [0, 500.0, -1, 0]),
    ("granite_swa", "layer_types", ["sliding_attention"] * 3),
    ("jais2", "hidden_act", "mish"),
    ("granitemoeshared", "shared_intermediate_size", -1),
    ("youtu", "num_key_value_heads", 2),
    ("minicpm3", "scale_depth", 0),
    ("minicpm3", "scale_emb", -1.0),
    ("glm4_moe_lite", "mlp_layer_types", ["dense"] * 3),
    ("glm4_moe_lite", "n_group", 3),
    ("granitemoe_swa", "layer_rope_theta", "10000"),
    ("mellum", "mlp_layer_types", ["moe"] * 4),
    ("mellum", "rope_parameters", {"rope_type": "default"}),
    ("cohere2_moe", "expert_selection_fn", "tanh"),
    ("cohere2_moe", "shared_expert_combination_strategy", "product"),
    ("cohere2_moe", "layer_types", ["chunked_attention"] * 4),
    ("hunyuan_v1_moe", "num_experts", [2, 2, 2, 4]),
    ("hunyuan_v1_moe", "moe_topk", [1, 1]),
    ("hunyuan_v1_moe", "num_shared_expert", [1, 1, 1, 2]),
    ("hunyuan_v1_moe", "moe_intermediate_size", 24),
    ("mvp", "use_prompt", True),
    ("mvp", "tie_word_embeddings", False),
    ("olmo_hybrid", "hidden_act", "gelu"),
    ("olmo_hybrid", "layer_types", ["conv"] * 4),
    ("olmo_hybrid", "linear_num_value_heads", 6),
    ("t5gemma2", "tie_word_embeddings", False),
    ("t5gemma2", "decoder", {"hidden_size": 48}),
    ("t5gemma2", "decoder", {"hidden_size": 32, "vocab_size": 8}),
    ("openai_privacy_filter", "swiglu_limit", 0),
    ("openai_privacy_filter", "sliding_window", 0),
    ("hy_v3", "num_shared_experts", 0),
    ("hy_v3", "router_scaling_factor", 0),
    ("afmoe", "attention_bias", True),
    ("afmoe", "score_func", "softmax"),
    ("afmoe", "route_norm", False),
    ("hyperclovax", "logits_scaling", -0.5),
    ("hyperclovax", "use_post_norm", 1),
    ("bamba", "attn_layer_indices", "all"),
    ("bamba", "mamba_d_head", 16),
    ("bamba", "hidden_act", "relu"),
    ("qwen3_next", "hidden_act", "gelu"),
    ("qwen3_next", "linear_num_value_heads", 20),
    ("qwen3_next", "layer_types", ["full_attention"] * 3),
    ("qwen3_next", "layer_types", ["sliding_attention"] * 4),
    ("qwen3_next", "decoder_sparse_step", 0),
    ("qwen3_5_text", "hidden_act", "relu"),
    ("qwen3_5_text", "linear_conv_kernel_dim", 1),
    ("qwen3_5_text", "full_attention_interval", 0),
    ("qwen3_5_text", "partial_rotary_factor", 1.5),
    ("qwen3_5", "text_config", None),
    ("qwen3_5_moe_text", "num_experts_per_tok", 300),
    ("qwen3_5_moe_text", "layer_types", "linear_attention"),
    ("lfm2", "conv_L_cache", 1),
    ("lfm2", "full_attn_idxs", "all"),
    ("lfm2", "block_multiple_of", 0),
    ("lfm2", "layer_types", ["mamba"] * 4),
    ("lfm2_moe", "layer_types", None),
    ("lfm2_moe", "routed_scaling_factor", 0),
    ("lfm2_moe", "num_dense_layers", -1),
    ("lfm3", "attention_bias", True),
    ("lfm3", "layer_types", ["chunked_attention"] * 4),
    ("lfm3", "sliding_window", 0),
    ("lfm3", "rope_parameters", {"rope_type": "default"}),
    ("granitemoehybrid", "position_embedding_type", "alibi"),
    ("granitemoehybrid", "hidden_act", "relu"),
    ("granitemoehybrid", "mamba_d_head", 16),
    ("granitemoehybrid", "mamba_n_groups", 3),
    ("granitemoehybrid", "time_step_limit", [0.5, 0.1]),
    ("granitemoehybrid", "logits_scaling", 0),
    ("granitemoehybrid", "layer_types", ["moe"] * 4),
    ("falcon_h1", "ssm_multipliers", [1.0] * 4),
    ("falcon_h1", "mlp_multipliers", [1.0, "1"]),
    ("falcon_h1", "mamba_d_head", 9),
    ("falcon_h1", "mamba_d_ssm", 66),
    ("granitemoehybrid", "mamba_n_heads", 7),
    ("falcon_h1", "hidden_act", "gelu"),
    ("nemotron_h", "attention_bias", True),
    ("nemotron_h", "tie_word_embeddings", True),
    ("nemotron_h", "sliding_window", 8),
    ("nemotron_h", "mamba_hidden_act", "gelu"),
    ("nemotron_h", "hybrid_override_pattern", "M-X"),
    ("nemotron_h", "layers_block_type", ["conv"]),
    ("nemotron_h", "layers_block_type", "M-"),
    ("mamba2", "expand", 3),
    ("mamba2", "n_groups", 3),
    ("mamba2", "hidden_act", "gelu"),
    ("mamba2", "time_step_limit", [0.0]),
    ("modernbert", "sliding_window", 8),
    ("opt", "word_embed_proj_dim", 0),
    ("opt", "word_embed_proj_dim", "16"),
    ("opt", "layer_norm_elementwise_affine", False),
    ("gpt2", "add_cross_attention", True),
    ("gpt2", "activation_function", "swiglu"),
    ("t5", "feed_forward_proj", "gated-gelu-wide"),
    ("t5", "feed_forward_proj", "geglu"),
    ("t5", "dense_act_fn", "mish"),
    ("t5", "is_gated_act", "yes"),
    ("t5", "relative_attention_num_buckets", 2),
    ("t5", "relative_attention_max_distance", 8),
    ("bart", "normalize_before", True),
    ("bart", "add_final_layer_norm", True),
    ("bart", "normalize_embedding", False),
    ("bart", "static_position_embeddings", True),
    ("bart", "tie_word_embeddings", False),
    ("mbart", "normalize_before", False),
    ("mbart", "add_final_layer_norm", False),
    ("mbart", "tie_word_embeddings", False),
    ("mbart", "normalize_embedding", False),
    ("mbart", "static_position_embeddings", True),
    ("m2m_100", "scale_embedding", "yes"),
    ("m2m_100", "activation_function", "mish"),
    ("pegasus", "add_bias_logits", True),
    ("pegasus", "static_position_embeddings", False),
    ("blenderbot", "layernorm_variant", "xlm"),
    ("blenderbot-small", "layernorm_variant", "prelayernorm"),
    ("blenderbot-small", "do_blenderbot_90_layernorm", False),
    ("blenderbot-small", "normalize_before", True),
    ("umt5", "feed_forward_proj", "gated-mish"),
    ("mt5", "relative_attention_max_distance", 4),
    ("fsmt", "normalize_before", True),
    ("fsmt", "static_position_embeddings", False),
    ("fsmt", "scale_embedding", "yes"),
    ("fsmt", "src_vocab_size", 0),
    ("marian", "normalize_embedding", True),
    ("marian", "static_position_embeddings", False),
    ("marian", "tie_word_embeddings", False),
    ("gpt_bigcode", "add_cross_attention", True),
    ("gpt_bigcode", "attention_softmax_in_fp32", "yes"),
    ("xglm", "add_cross_attention", True),
    ("xglm", "pad_token_id", 5),
    ("biogpt", "hidden_act", "mish"),
    ("persimmon", "partial_rotary_factor", 0.0),
    ("modernbert-decoder", "sliding_window", 8),
    ("modernbert-decoder", "layer_types", ["chunked_attention"] * 4),
    ("gemma3n_text", "num_kv_shared_layers", 4),
    ("gemma3n_text", "intermediate_size", [48, 48]),
    ("gemma3n_text", "activation_sparsity_pattern", [0.5, 1.5, 0.0, 0.0]),
    ("gemma3n_text", "altup_active_idx", 4),
    ("gemma4_text", "use_bidirectional_attention", "all"),
    ("gemma4_text", "enable_moe_block", "yes"),
    ("gemma4_text", "num_kv_shared_layers", 4),
    ("gemma4_text", "vocab_size_per_layer_input", 40),
    ("gemma4_text", "per_layer_config", {"1": {"num_attention_heads": 2}}),
    ("gemma4_text", "per_layer_config", {"9": {"head_dim": 8}}),
    ("gemma4_text", "rope_parameters", {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0}}),
    ("gemma4_unified_text", "layer_types", ["chunked_attention"] * 4),
    ("gemma4_unified_text", "use_bidirectional_attention", "all"),
    ("gpt_oss", "swiglu_alpha", 1.5),
    ("gpt_oss", "swiglu_limit", 0.0),
    ("gpt_oss", "hidden_act", "gelu"),
    ("gpt_oss", "sliding_window", None),
    ("deepseek_v2", "norm_topk_prob", True),
    ("deepseek_v2", "topk_method", "noaux_tc"),
    ("deepseek_v2", "mlp_bias", True),
    ("deepseek_v2", "num_key_value_heads", 2),
    ("deepseek_v3", "topk_method", "greedy"),
    ("deepseek_v3", "scoring_func", "softmax"),
    ("deepseek_v3", "n_group", 7),
    ("mistral4", "num_key_value_heads", 2),
    ("mistral4", "rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.25}),
    ("mobilebert", "trigram_input", False),
    ("mobilebert", "use_bottleneck", False),
    ("mobilebert", "normalization_type", "layer_norm"),
    ("mobilebert", "key_query_shared_bottleneck", False),
    ("mobilebert", "embedding_size", 512),
    ("mobilebert", "true_hidden_size", 64),
    ("convbert", "conv_kernel_size", 4),
    ("convbert", "num_groups", 5),
    ("switch_transformers", "router_dtype", "bfloat16"),
    ("switch_transformers", "is_gated_act", True),
    ("switch_transformers", "expert_capacity", 0),
    ("pegasus_x", "block_size", 7),
    ("pegasus_x", "tie_word_embeddings", False),
    ("llama4_text", "no_rope_layers", [1, 0, 2, 1]),
    ("llama4_text", "layer_types", ["sliding_attention"] * 4),
    ("llama4_text", "attention_chunk_size", 0),
    ("llama4_text", "moe_layers", "all"),
]
NAME_IN_MESSAGE = {
    "swiglu_limit": "limit",
    "altup_active_idx": "stream",
    "n_group": "groups",
    "attention_chunk_size": "attention chunk",
    "rms_norm_eps": "eps",
    "hidden_size": "hidden",
    "relative_attention_num_buckets": "buckets",
    "relative_attention_max_distance": "max_distance",
    "num_key_value_heads": "num_kv_heads",
    "num_experts_per_tok": "experts_per_token",
    "n_groups": "num_groups",
    "mamba_n_groups": "num_groups",
    "linear_num_value_heads": "num_value_heads",
    "layers_block_type": "layer_types",
    "topk_group": "groups_per_token",
    "router_jitter_noise": "tolerance",
    "rotary_pct": "rope needs an even number",
}


@pytest.mark.parametrize(
    ("kind", "name", "value"), REFUSED, ids=[f"{kind}-{name}-{value}" for kind, name, value in REFUSED]
)
def test_unsupported_settings_are_refused_by_name(kind, name, value):
    hf = {**BASES[kind], name: value}
    inner = ["factor", "_factor", "rope_type", "type", "partial_rotary_factor", "beta_fast", "rope_scaling"]
    inner += ["alpha", "short_mscale", "llama_4_scaling_beta"]
    inner = inner if name.startswith("rope_") else []
    with pytest.raises(ConfigError) as error:
        build(hf)
    message = str(error.value)
    assert any(word in message for word in (name, NAME_IN_MESSAGE.get(name, name), *inner))
    assert "\n" not in message and len(message) < 300


@pytest.mark.parametrize(
    ("name", "value"),
    [("alibi", False), ("alibi_bias_max", 5), ("clip_qkv", -6.0), ("qk_ln", True), ("prefix_lm", True)],
)
def test_unsupported_mpt_attention_settings_are_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        build({**MPT, "attn_config": {name: value}})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ({"text_config": {"hidden_size": 32, "attn_logit_softcapping": 3.0}}, "attn_logit_softcapping"),
        ({"text_config": {"hidden_size": 32, "sliding_window": 1}}, "window"),
        ({"hidden_size": 32}, "text_config"),
    ],
)
def test_unsupported_settings_of_the_encoder_of_t5gemma2_are_refused(text, named):
    with pytest.raises(ConfigError, match=named):
        build({**BASES["t5gemma2"], "encoder": text})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tie_encoder_decoder": True}, "tie_encoder_decoder"),
        ({"encoder": {"model_type": "gpt2"}}, "gpt2"),
        ({"encoder": "bert"}, "'encoder' must be an object"),
        ({"decoder": {**BASES["encoder-decoder"]["decoder"], "hidden_size": 48}}, "hidden_size"),
        ({"decoder": {**BASES["encoder-decoder"]["decoder"], "add_cross_attention": False}}, "add_cross_attention"),
    ],
)
def test_unsupported_pairs_are_refused(change, named):
    with pytest.raises(ConfigError, match=named):
        build({**BASES["encoder-decoder"], **change})


def test_a_factor_of_the_attention_input_excludes_biases():
    with pytest.raises(ConfigError, match="attention_in_multiplier"):
        build({**BASES["falcon_h1"], "attention_bias": True, "attention_in_multiplier": 0.5})


def test_newer_falcon_layers_must_be_parallel():
    with pytest.raises(ConfigError, match="parallel_attn"):
        build({**FALCON, "new_decoder_architecture": True, "parallel_attn": False})


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "no-such-model"},
        {"model_type": ["llama"]},
        {"architectures": ["LlamaForMaskedLM"]},
        {"architectures": ["LlamaForCausalLM", "LlamaModel"]},
        {"architectures": "LlamaForCausalLM"},
        {"architectures": [["LlamaForCausalLM"]]},
    ],
)
def test_the_refusal_of_unknown_models_lists_supported_ones(change):
    with pytest.raises(ConfigError, match=r"llama|LlamaForCausalLM"):
        family_of({**LLAMA, **change})


def test_a_type_that_is_no_text_is_refused():
    with pytest.raises(ConfigError, match="'model_type': None is not supported: it must be the name of a family"):
        family_of({**LLAMA, "model_type": None})


@pytest.mark.parametrize("kind", ["nllb-moe", "prophetnet", "xlm-prophetnet"])
def test_refused_architectures_have_a_reason(kind):
    with pytest.raises(ConfigError, match=f"^'model_type': '{kind}' is not supported: its ") as error:
        family_of({**BART, "model_type": kind})
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


NOT_IN_TRANSFORMERS = {"performer", "linformer", "transfo-xl", "xlm-prophetnet"}


@pytest.mark.parametrize("kind", refused.REFUSED)
def test_known_architectures_are_refused_with_a_reason(kind):
    """Each name in the list of refused types is a published `model_type` that no supported family has."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert kind not in FAMILIES
    assert kind in CONFIG_MAPPING_NAMES or kind in NOT_IN_TRANSFORMERS
    with pytest.raises(ConfigError) as error:
        family_of({"model_type": kind, "architectures": ["AnyForCausalLM"]})
    assert kind in str(error.value) and refused.REFUSED[kind] in str(error.value) and "\n" not in str(error.value)
    assert len(str(error.value)) < 200
