"""Every family refuses an unsupported setting that would change its results, and names it; none is ignored silently."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import transformers

from models.config import ConfigError, ModelConfig
from models.families import FAMILIES, family_of
from tests.parity import lara_mini
from tests.parity.test_native import settings as native

MODEL_TYPES = sorted(FAMILIES)
ROPE = {"rope_type": "stranger", "factor": 2.0, "rope_theta": 10000.0}
UNKNOWN_VALUES = {
    "auto_map": {"AutoModel": "modeling_stranger.StrangerModel"},
    "rope_scaling": ROPE,
    "rope_parameters": ROPE,
}
TRAINING = ("dropout", "pdrop", "_drop", "layerdrop", "initializer", "init_", "router_", "gradient", "sparse_pred")
OUTPUT = ("return_dict", "output_", "use_cache", "chunk_size", "architectures", "_name", "problem_type", "dtype")
UNRELATED = (
    "token_id",
    "token_index",
    "num_labels",
    "classifier",
    "summary_",
    "transformers_version",
    "mask_",
    "is_decoder",
    "is_encoder_decoder",
)
CTC = "apply_spec_augment ctc_loss_reduction ctc_zero_infinity use_weighted_layer_sum"
CODEBOOK = (
    "codevector_dim contrastive_logits_temperature diversity_loss_weight num_codevector_groups "
    "num_codevectors_per_group num_negatives proj_codevector_dim"
)
"""Settings of encoders with a CTC head that are used only in training or by heads that are not served."""
HARMLESS = {
    "afmoe": "global_attn_every_n_layers",
    "albert": "tie_word_embeddings",
    "bamba": "attention_bias num_logits_to_keep z_loss_coefficient",
    "bert": "tie_word_embeddings",
    "big_bird": "tie_word_embeddings",
    "biogpt": "layer_norm_eps",
    "blenderbot": "encoder_no_repeat_ngram_size",
    "bloom": "slow_but_exact pretraining_tp",
    "camembert": "tie_word_embeddings",
    "cohere2_moe": "norm_topk_prob prefix_dense_intermediate_size prefix_dense_sliding_window_pattern "
    "sliding_window_pattern rope_theta",
    "convbert": "tie_word_embeddings num_attention_heads num_groups",
    "cwm": "pretraining_tp",
    "data2vec-text": "tie_word_embeddings",
    "deberta": "tie_word_embeddings legacy relative_attention max_relative_positions",
    "deberta-v2": "tie_word_embeddings legacy relative_attention max_relative_positions",
    "deepseek_v2": "n_group topk_group pretraining_tp head_dim qk_head_dim intermediate_size",
    "deepseek_v3": "pretraining_tp head_dim qk_head_dim num_mtp_layers num_nextn_predict_layers",
    "distilbert": "tie_word_embeddings sinusoidal_pos_embds",
    "electra": "tie_word_embeddings",
    "ernie4_5_moe": "moe_layer_end_index",
    "ernie": "tie_word_embeddings task_type_vocab_size",
    "embedding_gemma2": "audio_config vision_config",
    "eurobert": "pretraining_tp tie_word_embeddings",
    "exaone4": "sliding_window_pattern",
    "exaone": "pretraining_tp",
    "jina_bert": "tie_word_embeddings",
    "llama_bidirec": "pretraining_tp tie_word_embeddings",
    "bidirectional_pplx_qwen3": "max_window_layers sliding_window use_sliding_window tie_word_embeddings",
    "olmo_hybrid": "linear_a_log_max linear_a_log_min linear_dt_max linear_dt_min",
    "jina_embeddings_v5": "max_window_layers sliding_window use_sliding_window tie_word_embeddings",
    "voyage_qwen3": "max_window_layers sliding_window use_sliding_window tie_word_embeddings",
    "openai_privacy_filter": "tie_word_embeddings",
    "ultrabert": "prediction_head_size tie_word_embeddings",
    "falcon": "num_kv_heads num_ln_in_parallel_attn",
    "gemma3": "mm_tokens_per_image",
    "gemma3_text": "_sliding_window_pattern",
    "gemma3n": "audio_soft_tokens_per_image vision_soft_tokens_per_image",
    "gemma3n_text": "altup_coef_clip",
    "gemma4": "vision_config audio_config",
    "gemma4_text": "num_experts top_k_experts moe_intermediate_size use_double_wide_mlp",
    "gemma4_unified": "vision_config audio_config",
    "gemma4_unified_text": "use_double_wide_mlp",
    "glm4_moe": "topk_group num_mtp_layers num_nextn_predict_layers",
    "glm4_moe_lite": "pretraining_tp head_dim qk_head_dim topk_group",
    "minicpm3": "pretraining_tp head_dim qk_head_dim",
    "youtu": "head_dim qk_head_dim",
    "fsmt": "early_stopping length_penalty max_length num_beams",
    "falcon_h1": "mamba_expand num_logits_to_keep",
    "gpt2": "reorder_and_upcast_attn",
    "granitemoehybrid": "attention_bias attention_multiplier num_key_value_heads",
    "lfm2": "conv_L_cache conv_bias intermediate_size",
    "mamba2": "rescale_prenorm_residual residual_in_fp32 time_step_floor time_step_max time_step_min time_step_rank",
    "nemotron_h": "expand mamba_proj_bias moe_shared_expert_overlap n_shared_experts num_logits_to_keep "
    "num_nextn_predict_layers rescale_prenorm_residual residual_in_fp32 time_step_floor time_step_max "
    "use_mamba_kernels",
    "qwen3_next": "intermediate_size",
    "gpt_bigcode": "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 num_key_value_heads",
    "gte": "tie_word_embeddings",
    "hunyuan_v1_moe": "pretraining_tp",
    "hy_v3": "enable_moe_fp32_combine",
    "hunyuan_v1_dense": "pretraining_tp eod_token_id",
    "jina_embeddings_v3": "tie_word_embeddings",
    "llama": "pretraining_tp",
    "llama4_text": "interleave_moe_layer_step no_rope_layer_interval intermediate_size_mlp",
    "longformer": "tie_word_embeddings onnx_export",
    "longt5": "global_block_size",
    "marian": "decoder_vocab_size",
    "mistral4": "pretraining_tp head_dim qk_head_dim intermediate_size",
    "mellum": "intermediate_size sliding_window mtp_layer_types mtp_mlp_layer_types num_mtp_layers "
    "num_nextn_predict_layers",
    "megatron-bert": "tie_word_embeddings",
    "mobilebert": "tie_word_embeddings layer_norm_eps",
    "modernbert": "tie_word_embeddings decoder_bias deterministic_flash_attn local_attention",
    "modernbert-decoder": "local_attention",
    "modernvbert": "classifier_pooling initializer_cutoff_factor pixel_shuffle_factor tie_word_embeddings",
    "mpnet": "tie_word_embeddings",
    "mpt": "embedding_fraction learned_pos_emb",
    "mt5": "tie_word_embeddings",
    "moonshine": "pad_head_dim_to_multiple_of",
    "moonshine_streaming": "pad_head_dim_to_multiple_of",
    "parakeet_ctc": "ctc_loss_reduction ctc_zero_infinity",
    "mvp": "prompt_length prompt_mid_dim",
    "new": "tie_word_embeddings",
    "phi3": "original_max_position_embeddings",
    "phimoe": "input_jitter_noise",
    "qwen2": "max_window_layers sliding_window use_sliding_window",
    "qwen2_moe": "max_window_layers sliding_window intermediate_size",
    "qwen3": "max_window_layers sliding_window use_sliding_window",
    "qwen3_moe": "sliding_window use_sliding_window intermediate_size",
    "rembert": "tie_word_embeddings output_embedding_size",
    "roberta": "tie_word_embeddings",
    "roberta-prelayernorm": "tie_word_embeddings",
    "roformer": "tie_word_embeddings",
    "seed_oss": "pretraining_tp residual_dropout",
    "smollm3": "no_rope_layer_interval sliding_window use_sliding_window pretraining_tp",
    "squeezebert": "tie_word_embeddings post_attention_groups",
    "switch_transformers": "num_sparse_encoder_layers num_sparse_decoder_layers add_cross_attention",
    "t5gemma": "vocab_size",
    "t5gemma2": "vocab_size",
    "hubert": CTC,
    "unispeech": f"{CTC} {CODEBOOK} num_ctc_classes replace_prob",
    "unispeech-sat": f"{CTC} {CODEBOOK} num_clusters",
    "wav2vec2": f"{CTC} {CODEBOOK} adapter_kernel_size adapter_stride num_adapter_layers",
    "wavlm": f"{CTC} {CODEBOOK} adapter_kernel_size adapter_stride num_adapter_layers num_ctc_classes "
    "output_hidden_size",
    "whisper": "apply_spec_augment median_filter_width suppress_tokens use_weighted_layer_sum",
    "xlm-roberta": "tie_word_embeddings",
    "xlm-roberta-xl": "tie_word_embeddings",
}
"""Settings that families may ignore, because alone they change no result of the family's first architecture.

transformers does not use them, or they need another setting to have an effect (an unused window, an absent head).
"""


PUBLISHED_WITH_CODE: dict[str, tuple[str, dict[str, Any]]] = {
    "exaone": ("llama", {}),
    "llama_bidirec": ("llama", {}),
    "bidirectional_pplx_qwen3": ("qwen3", {"use_bidirectional_attention": True}),
    "voyage_qwen3": ("qwen3", {}),
    "jina_embeddings_v5": ("qwen3", {}),
    "jina_bert": ("bert", {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}),
}
"""For each family without a class in transformers: a family that has the same settings, and further settings."""


NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
}
"""Settings that the test adds, because these families' defaults in transformers are not a valid model."""


def settings(kind: str) -> dict[str, Any]:
    """The `config.json` that transformers writes for a family, with all defaults."""
    if kind == "triptych":
        return native("TriptychForCausalLM")
    if kind in PUBLISHED_WITH_CODE:
        like, more = PUBLISHED_WITH_CODE[kind]
        return {**settings(like), **more, "model_type": kind}
    if kind == "lara_mini":  # transformers has it since 5.24
        return {**lara_mini.oracle()["defaults"], "architectures": None}
    if kind == "new":
        return {**settings("gte"), "model_type": kind}
    return {**transformers.AutoConfig.for_model(kind, **NEEDED.get(kind, {})).to_dict(), "architectures": None}


def build(hf: dict[str, Any]) -> ModelConfig:
    family, architecture = family_of(hf)
    return family.config(hf, architecture)


@pytest.mark.parametrize("name", UNKNOWN_VALUES)
@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_unknown_values_are_refused_by_name(kind, name):
    hf = settings(kind)
    build(hf)
    with pytest.raises(ConfigError, match=name if not name.startswith("rope") else "rope_"):
        build(hf | {name: UNKNOWN_VALUES[name]})


def other_values(value: Any) -> tuple[Any, ...]:
    """Values for a setting that differ from `value`, with the same type if possible."""
    match value:
        case bool():
            return (not value,)
        case str():
            return ("stranger",)
        case int():
            return (value + 1 if value % 2 == 0 else value * 2,)
        case float():
            return (value * 1.5 + 0.1,)
        case None:
            return (3, True)
    return ()


def ignored_settings(kind: str) -> set[str]:
    """Names of the settings of a family that can be changed without changing the model and without being refused."""
    hf = settings(kind)
    usual, found = build(hf), set()
    for name in hf:
        for value in other_values(hf[name]):
            try:
                same = build(hf | {name: value}) == usual
            except ConfigError:
                continue
            if same and name != "architectures":
                found.add(name)
    return {name for name in found if not any(word in name for word in TRAINING + OUTPUT + UNRELATED)}


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_every_setting_changes_the_model_or_is_refused_or_is_harmless(kind):
    assert ignored_settings(kind) <= set(HARMLESS.get(kind, "").split())


def test_an_ignored_setting_is_noticed(monkeypatch):
    """Negative control: the test finds a family that ignores a setting."""
    family = FAMILIES["llama"]
    forgetful = replace(family, config=lambda hf, architecture: family.config(hf | {"mlp_bias": False}, architecture))
    monkeypatch.setattr("models.families.FAMILIES", {**FAMILIES, "llama": forgetful})
    assert ignored_settings("llama") - set(HARMLESS["llama"].split()) == {"mlp_bias"}
