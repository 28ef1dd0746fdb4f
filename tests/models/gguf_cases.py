"""Architectures and configurations of models whose GGUF files are compared with their checkpoints."""

from __future__ import annotations

import transformers

from tests.parity.decoder_cases import MORE_CASES
from tests.parity.encoder_cases import MODERN, SMALL
from tests.parity.further_decoder_cases import FURTHER_CASES
from tests.parity.hybrid_cases import HYBRIDS
from tests.parity.newer_decoder_cases import NEWER_CASES
from tests.parity.recent_decoder_cases import RECENT_CASES
from tests.parity.recent_encoder_cases import BOTH_WAYS, GEMMA

_KNOWN = {**MORE_CASES, **FURTHER_CASES, **HYBRIDS, **RECENT_CASES, **NEWER_CASES}
_T5 = {
    "vocab_size": 97,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 56,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_MSCALE = 1.243163121016122
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 4.0],
    "long_factor": [2.0, 3.0, 5.0, 9.0],
    "original_max_position_embeddings": 48,
    "short_mscale": _MSCALE,
    "long_mscale": _MSCALE,
}


def _with(case: str, **settings: object) -> tuple[str, transformers.PretrainedConfig]:
    """A case of the parity tests, with some settings replaced because a GGUF file cannot have them."""
    architecture, config = _KNOWN[case]
    return architecture, type(config)(**{**config.to_dict(), **settings})


_SAME = (
    "qwen3_5",
    "qwen3_5-equal-heads-tied",
    "qwen3_5_moe",
    "qwen3_next",
    "gemma4",
    "gemma4-values-of-keys-capped",
    "gemma4-experts",
    "lfm2",
    "lfm2_moe",
    "granite",
    "granite-biases-tied",
    "granitemoe",
    "granitemoehybrid",
    "deepseek-v3",
    "glm4",
    "glm4-moe",
    "glm4-moe-groups-two-shared-experts",
    "olmo",
    "olmo2",
    "olmo3-scaled-gqa-biases-tied",
    "olmoe",
    "cohere",
    "cohere2",
    "seed-oss",
    "seed-oss-other-biases-tied",
    "hunyuan",
    "ernie4_5",
    "ernie4_5-moe",
    "ernie4_5-moe-some-layers-biases",
    "nemotron",
    "nemotron_h",
    "nemotron_h-experts-last",
    "nemotron_h-latent-experts",
    "mamba2",
    "mamba2-biases-tied",
    "mpt",
    "mpt-clipped",
    "gpt-bigcode",
    "arcee",
    "arcee-biases-tied",
    "youtu",
    "glm4-moe-lite",
    "jais2",
    "jais2-no-biases-tied",
    "granitemoeshared",
    "hunyuan-moe",
    "hy-v3",
    "cohere2-moe-sigmoid-plain-shares",
    "granite-swa-other-layers-biases-untied",
    "granitemoe-swa-shared-expert-biases-tied",
)
FURTHER = {
    **{case: _KNOWN[case] for case in _SAME},
    "gpt-oss": _with(
        "gpt-oss",
        swiglu_limit=7.0,
        rope_parameters={**_YARN, "truncate": False},
    ),
    "gemma3n": _with("gemma3n", vocab_size_per_layer_input=97),
    "deepseek-v2": _with("deepseek-v2", rope_parameters={**_YARN, "mscale": 0.7, "mscale_all_dim": 0.7}),
    "glm": _with("glm", head_dim=8),
    "llama4": _with(
        "llama4",
        attention_chunk_size=8192,
        attn_scale=0.1,
        floor_scale=8192,
        no_rope_layers=[1, 1, 1],
        layer_types=["chunked_attention"] * 3,
    ),
    "exaone4": _with("exaone4", rope_parameters=_LLAMA3),
    "exaone4-full-attention": _with("exaone4-full-attention-tied"),
    "apertus": _with("apertus", rope_parameters=_LLAMA3),
    "phimoe": _with("phimoe", rope_parameters=_LONG, sliding_window=20, lm_head_bias=True, attention_bias=True),
    "falcon-h1": _with(
        "falcon_h1-gate-before-norm",
        key_multiplier=1.0,
        attention_in_multiplier=1.0,
        attention_out_multiplier=1.0,
        ssm_in_multiplier=1.0,
        ssm_out_multiplier=1.0,
        ssm_multipliers=[1.0] * 5,
        mlp_multipliers=[1.0, 1.0],
        embedding_multiplier=1.0,
        lm_head_multiplier=1.0,
    ),
    "bloom": _with("bloom", seq_length=64),
    "minicpm3": _with("minicpm3", scale_emb=12.0, scale_depth=1.4, dim_model_base=256),
    "granite-swa": _with("granite-swa", layer_rope_theta=[0, 10000.0, 10000.0]),
    "granitemoe-swa": _with("granitemoe-swa", layer_rope_theta=[10000.0, 10000.0, 0]),
    "hy-v3-other-layers-biases": _with("hy-v3-other-layers-biases-tied", tie_word_embeddings=False),
    "mellum": _with("mellum", norm_topk_prob=True),
    "mellum-scaled": _with(
        "mellum-dense-layer-scaled-biases-tied", norm_topk_prob=True, mlp_layer_types=["sparse"] * 3
    ),
    "cohere2-moe": _with("cohere2-moe"),
    "cohere2-moe-rms-biases": _with(
        "cohere2-moe-sigmoid-rms-sum-biases-untied",
        shared_expert_combination_strategy="average",
        prefix_dense_sliding_window_pattern=1,
    ),
    "afmoe": _with("afmoe", layer_types=["sliding_attention"] * 3),
    "mistral4": _with(
        "mistral4",
        rope_parameters={**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
    ),
    "ministral3": _with(
        "ministral3",
        rope_parameters={**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
    ),
    "t5": ("T5ForConditionalGeneration", transformers.T5Config(**_T5, num_decoder_layers=3)),
    "t5-version-1.1": (
        "T5ForConditionalGeneration",
        transformers.T5Config(**_T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    ),
    "modernbert": (
        "ModernBertModel",
        transformers.ModernBertConfig(**{**MODERN, "num_hidden_layers": 4, "local_attention": 8}),
    ),
    "eurobert": ("EuroBertModel", transformers.EuroBertConfig(**{**BOTH_WAYS, "is_causal": False})),
    "embedding-gemma": (
        "Gemma3TextModel",
        transformers.Gemma3TextConfig(
            **{**GEMMA, "use_bidirectional_attention": True, "num_hidden_layers": 7, "query_pre_attn_scalar": 8}
        ),
    ),
    "jina-v3": ("JinaEmbeddingsV3Model", transformers.JinaEmbeddingsV3Config(**SMALL)),
}
