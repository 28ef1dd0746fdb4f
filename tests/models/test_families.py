"""Configurations that are not supported are refused by name; what families import stays free of torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from models.config import (
    AttentionConfig,
    BucketBiasConfig,
    ConfigError,
    DynamicScaling,
    FairseqSinusoidalPositions,
    FeedForwardConfig,
    LanguageModelHead,
    LinearScaling,
    LongScaling,
    MixtureConfig,
    NormConfig,
    RopeConfig,
    YarnScaling,
)
from models.families import FAMILIES, family_of, refused
from weights.rules import first_match

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
MISTRAL = {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
QWEN2 = {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_head": 4}
T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 32}
BART = {"model_type": "bart", "architectures": ["BartForConditionalGeneration"], "d_model": 32}
MARIAN = {"model_type": "marian", "architectures": ["MarianMTModel"], "d_model": 32}
WHISPER = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "d_model": 48}
QWEN3 = {**QWEN2, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
NEOX = {**LLAMA, "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}
OPT = {**LLAMA, "model_type": "opt", "architectures": ["OPTForCausalLM"]}
GPTJ = {**GPT2, "model_type": "gptj", "architectures": ["GPTJForCausalLM"], "rotary_dim": 4}
PHI = {**LLAMA, "model_type": "phi", "architectures": ["PhiForCausalLM"]}
PHI3 = {**LLAMA, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}
GEMMA = {**LLAMA, "model_type": "gemma", "architectures": ["GemmaForCausalLM"], "num_key_value_heads": 2}
GEMMA2 = {**GEMMA, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}
GEMMA3 = {**GEMMA, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
SMOLLM3 = {**LLAMA, "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"]}
OLMO2 = {**LLAMA, "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"]}
STABLELM = {**LLAMA, "model_type": "stablelm", "architectures": ["StableLmForCausalLM"], "num_key_value_heads": 2}
STARCODER2 = {**LLAMA, "model_type": "starcoder2", "architectures": ["Starcoder2ForCausalLM"]}
NEO = {"model_type": "gpt_neo", "architectures": ["GPTNeoForCausalLM"], "hidden_size": 32, "num_heads": 4}
OPENAI = {**GPT2, "model_type": "openai-gpt", "architectures": ["OpenAIGPTLMHeadModel"]}
BLOOM = {"model_type": "bloom", "architectures": ["BloomForCausalLM"], "hidden_size": 32, "n_head": 4}
MPT = {"model_type": "mpt", "architectures": ["MptForCausalLM"], "d_model": 32, "n_heads": 4}
FALCON = {**LLAMA, "model_type": "falcon", "architectures": ["FalconForCausalLM"]}
MT5 = {**T5, "model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"]}
UMT5 = {**T5, "model_type": "umt5", "architectures": ["UMT5ForConditionalGeneration"]}
MBART = {**BART, "model_type": "mbart", "architectures": ["MBartForConditionalGeneration"]}
M2M_100 = {**BART, "model_type": "m2m_100", "architectures": ["M2M100ForConditionalGeneration"]}
PEGASUS = {**BART, "model_type": "pegasus", "architectures": ["PegasusForConditionalGeneration"]}
BLENDERBOT = {**BART, "model_type": "blenderbot", "architectures": ["BlenderbotForConditionalGeneration"]}
BLENDERBOT_SMALL = {
    **BART,
    "model_type": "blenderbot-small",
    "architectures": ["BlenderbotSmallForConditionalGeneration"],
}
SEQ2SEQ = (T5, MT5, UMT5, BART, MARIAN, MBART, M2M_100, PEGASUS, BLENDERBOT, BLENDERBOT_SMALL)
OLDER = (OPENAI, GPT2, NEO, GPTJ, NEOX, OPT, BLOOM, MPT, FALCON)
MIXTRAL = {**LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_key_value_heads": 2}
QWEN2_MOE = {**QWEN2, "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"]}
QWEN3_MOE = {**QWEN2, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}
NEWER = (GEMMA3, SMOLLM3, MIXTRAL, QWEN2_MOE, QWEN3_MOE)
DECODERS = (*OLDER, LLAMA, MISTRAL, QWEN2, QWEN3, PHI, PHI3, GEMMA, GEMMA2, OLMO2, STABLELM, STARCODER2, *NEWER)
LONGFORMER = {"model_type": "longformer", "architectures": ["LongformerModel"], "hidden_size": 48}
BIG_BIRD = {"model_type": "big_bird", "architectures": ["BigBirdModel"], "hidden_size": 48}
LED = {"model_type": "led", "architectures": ["LEDForConditionalGeneration"], "d_model": 32}
LONGT5 = {"model_type": "longt5", "architectures": ["LongT5ForConditionalGeneration"], "d_model": 32}
BIGBIRD_PEGASUS = {"model_type": "bigbird_pegasus", "architectures": ["BigBirdPegasusModel"], "d_model": 32}
MODERNBERT = {"model_type": "modernbert", "architectures": ["ModernBertModel"], "hidden_size": 48}
SPARSE = (LONGFORMER, BIG_BIRD, LED, LONGT5, BIGBIRD_PEGASUS)
BASES = {base["model_type"]: base for base in (MODERNBERT, *SPARSE, *DECODERS, *SEQ2SEQ, WHISPER)}


def build(hf):
    family, architecture = family_of(hf)
    return family.config(hf, architecture)


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_the_bases_are_supported(base):
    config = build(base)
    family, architecture = family_of(base)
    assert family.rules(config, base, architecture)


ORIGINAL = "original_max_position_embeddings"
REFUSED = [
    (LLAMA, "auto_map", {"AutoModel": "modeling.Own"}),
    (LLAMA, "quantization_config", {"quant_method": "gptq"}),
    (LLAMA, "hidden_act", "mish"),
    (LLAMA, "hidden_act", ["silu"]),
    (LLAMA, "hidden_size", 30),
    (LLAMA, "hidden_size", "32"),
    (LLAMA, "hidden_size", True),
    (LLAMA, "num_hidden_layers", 0),
    (LLAMA, "num_key_value_heads", 3),
    (LLAMA, "rms_norm_eps", float("nan")),
    (LLAMA, "rms_norm_eps", 0.0),
    (LLAMA, "attention_bias", "no"),
    (LLAMA, "vocab_size", None),
    (LLAMA, "rope_scaling", {"type": "xpos", "factor": 2.0}),
    (LLAMA, "rope_scaling", {"type": "dynamic"}),
    (LLAMA, "rope_parameters", {"rope_type": "yarn", "factor": -2.0, "original_max_position_embeddings": 64}),
    (LLAMA, "rope_parameters", {"rope_type": "yarn", "beta_fast": -1, "factor": 2, ORIGINAL: 64}),
    (LLAMA, "rope_parameters", {"rope_type": "longrope", "short_factor": [1.0] * 3, "factor": 2, ORIGINAL: 64}),
    (LLAMA, "rope_parameters", {"rope_type": "longrope", "short_factor": [0] * 4, "factor": 2, ORIGINAL: 64}),
    (LLAMA, "rope_parameters", {"rope_type": "longrope", "short_factor": [1.0] * 4, "factor": 2, ORIGINAL: 64}),
    (LLAMA, "rope_parameters", {"rope_type": "linear"}),
    (LLAMA, "rope_parameters", {"rope_type": "linear", "factor": -2.0}),
    (LLAMA, "rope_parameters", {"rope_type": "llama3", "factor": 8.0}),
    (LLAMA, "rope_parameters", {"rope_type": ["linear"]}),
    (LLAMA, "rope_parameters", {"full_attention": {"rope_type": "default"}}),
    (LLAMA, "rope_parameters", "linear"),
    (LLAMA, "partial_rotary_factor", 0.5),
    (MISTRAL, "layer_types", ["full_attention"] * 4),
    (MISTRAL, "sliding_window", 0),
    (QWEN2, "layer_types", ["full_attention"] * 3),
    (QWEN2, "layer_types", [["full_attention"]] * 4),
    (QWEN2, "layer_types", ["sliding_attention"] * 4),
    (QWEN3, "layer_types", ["sliding_attention"] * 4),
    (NEOX, "partial_rotary_factor", 1.5),
    (NEOX, "rope_parameters", {"partial_rotary_factor": 0.0}),
    (NEOX, "rotary_pct", 0.4),
    (GPTJ, "rotary_dim", None),
    (BLOOM, "apply_residual_connection_post_layernorm", True),
    (MPT, "attn_config", ["alibi"]),
    (MPT, "no_bias", False),
    (MPT, "expansion_ratio", 3),
    (MPT, "logit_scale", "inv_sqrt_d_model"),
    (FALCON, "alibi", "yes"),
    (FALCON, "num_ln_in_parallel_attn", 2),
    (STABLELM, "qk_layernorm", 1),
    (STARCODER2, "sliding_window", -1),
    (OLMO2, "attention_bias", 1),
    (NEO, "attention_types", [[["global", "local"], 3]]),
    (NEO, "attention_types", [[["global", "strided"], 12]]),
    (NEO, "attention_types", "global"),
    (NEO, "attention_types", [[["global"], 10**12]]),
    (OPENAI, "afn", "gelu_pytorch_tanh"),
    (PHI, "qk_layernorm", "yes"),
    (PHI3, "rope_scaling", {"type": "yarn", "factor": 2.0}),
    (PHI3, "rope_parameters", {"rope_type": "dynamic", "factor": 2.0}),
    (PHI3, "rope_scaling", {"type": "su", "short_factor": [1.0], "factor": 2, ORIGINAL: 64}),
    (GEMMA, "use_bidirectional_attention", True),
    (GEMMA, "hidden_activation", "relu"),
    (GEMMA2, "use_bidirectional_attention", True),
    (GEMMA2, "attn_logit_softcapping", 0.0),
    (GEMMA2, "final_logit_softcapping", -30.0),
    (GEMMA2, "query_pre_attn_scalar", 0),
    (GEMMA2, "layer_types", ["chunked_attention"] * 4),
    (GEMMA3, "use_bidirectional_attention", True),
    (GEMMA3, "attn_logit_softcapping", 50.0),
    (GEMMA3, "sliding_window", None),
    (GEMMA3, "rope_parameters", {"rope_type": "default"}),
    (GEMMA3, "rope_parameters", {"full_attention": "linear"}),
    (GEMMA3, "layer_types", ["chunked_attention"] * 4),
    (SMOLLM3, "no_rope_layers", [1, 1, 1]),
    (SMOLLM3, "no_rope_layers", [1, 1, 1, 2]),
    (SMOLLM3, "layer_types", ["sliding_attention"] * 4),
    (MIXTRAL, "num_experts_per_tok", 9),
    (MIXTRAL, "layer_types", ["full_attention"] * 4),
    (QWEN2_MOE, "mlp_only_layers", "all"),
    (QWEN2_MOE, "layer_types", ["sliding_attention"] * 4),
    (QWEN3_MOE, "decoder_sparse_step", 0),
    (QWEN3_MOE, "norm_topk_prob", 1),
    (MODERNBERT, "sliding_window", 8),
    (OPT, "word_embed_proj_dim", 0),
    (OPT, "word_embed_proj_dim", "16"),
    (OPT, "layer_norm_elementwise_affine", False),
    (GPT2, "add_cross_attention", True),
    (GPT2, "activation_function", "swiglu"),
    (T5, "feed_forward_proj", "gated-gelu-wide"),
    (T5, "feed_forward_proj", "geglu"),
    (T5, "dense_act_fn", "mish"),
    (T5, "is_gated_act", "yes"),
    (T5, "relative_attention_num_buckets", 2),
    (T5, "relative_attention_max_distance", 8),
    (BART, "normalize_before", True),
    (BART, "add_final_layer_norm", True),
    (BART, "normalize_embedding", False),
    (BART, "static_position_embeddings", True),
    (BART, "tie_word_embeddings", False),
    (MBART, "normalize_before", False),
    (MBART, "add_final_layer_norm", False),
    (MBART, "tie_word_embeddings", False),
    (MBART, "normalize_embedding", False),
    (MBART, "static_position_embeddings", True),
    (M2M_100, "scale_embedding", "yes"),
    (M2M_100, "activation_function", "mish"),
    (PEGASUS, "add_bias_logits", True),
    (PEGASUS, "static_position_embeddings", False),
    (BLENDERBOT, "layernorm_variant", "xlm"),
    (BLENDERBOT_SMALL, "layernorm_variant", "prelayernorm"),
    (BLENDERBOT_SMALL, "do_blenderbot_90_layernorm", False),
    (BLENDERBOT_SMALL, "normalize_before", True),
    (UMT5, "feed_forward_proj", "gated-mish"),
    (MT5, "relative_attention_max_distance", 4),
    (MARIAN, "normalize_embedding", True),
    (MARIAN, "static_position_embeddings", False),
    (MARIAN, "tie_word_embeddings", False),
]
SAID_OTHERWISE = {
    "rms_norm_eps": "eps",
    "hidden_size": "hidden",
    "relative_attention_num_buckets": "buckets",
    "relative_attention_max_distance": "max_distance",
    "num_key_value_heads": "num_kv_heads",
    "num_experts_per_tok": "experts per token",
    "rotary_pct": "rope needs an even number",
}


@pytest.mark.parametrize(
    ("base", "name", "value"), REFUSED, ids=[f"{base['model_type']}-{name}-{value}" for base, name, value in REFUSED]
)
def test_unsupported_settings_are_refused_by_name(base, name, value):
    hf = {**base, name: value}
    inner = ["factor", "_factor", "rope_type", "type", "partial_rotary_factor", "beta_fast", "rope_scaling"]
    inner = inner if name.startswith("rope_") else []
    with pytest.raises(ConfigError) as error:
        build(hf)
    message = str(error.value)
    assert any(word in message for word in (name, SAID_OTHERWISE.get(name, name), *inner))
    assert "\n" not in message and len(message) < 300


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "no-such-model"},
        {"model_type": None},
        {"model_type": ["llama"]},
        {"architectures": ["LlamaForMaskedLM"]},
        {"architectures": ["LlamaForCausalLM", "LlamaModel"]},
        {"architectures": "LlamaForCausalLM"},
        {"architectures": [["LlamaForCausalLM"]]},
    ],
)
def test_unknown_models_are_refused_with_what_is_served(change):
    with pytest.raises(ConfigError, match=r"llama|LlamaForCausalLM"):
        family_of({**LLAMA, **change})


@pytest.mark.parametrize("kind", ["nllb-moe", "prophetnet", "xlm-prophetnet"])
def test_kinds_that_do_not_fit_are_refused_with_the_reason(kind):
    with pytest.raises(ConfigError, match=f"^'model_type': '{kind}' is not supported: its ") as error:
        family_of({**BART, "model_type": kind})
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


def test_neutral_settings_pass():
    build({**LLAMA, "rope_scaling": None, "auto_map": None, "pretraining_tp": 1, "partial_rotary_factor": 1.0})
    build({**BART, "normalize_before": False, "add_bias_logits": False, "normalize_embedding": True})
    norms_first = {"normalize_before": True, "add_final_layer_norm": True, "add_bias_logits": False}
    build({**MBART, **norms_first, "normalize_embedding": True, "static_position_embeddings": False})
    build({**PEGASUS, **norms_first, "normalize_embedding": False, "static_position_embeddings": True})
    build({**BLENDERBOT, **norms_first, "layernorm_variant": "prelayernorm", "extra_pos_embeddings": 0})
    build({**BLENDERBOT_SMALL, "layernorm_variant": "xlm", "do_blenderbot_90_layernorm": True})


@pytest.mark.parametrize("base", SEQ2SEQ, ids=lambda base: base["model_type"])
def test_null_is_what_the_family_has_where_nothing_is_said(base):
    for name in ("encoder_layers", "num_layers", "activation_function", "feed_forward_proj", "scale_embedding"):
        assert build({**base, name: None}) == build(base)


def test_older_and_newer_rope_settings_agree():
    older = build({**LLAMA, "rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2}})
    newer = build({**LLAMA, "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}})
    assert older == newer
    assert older.decoder.layers[0].attention.rope == RopeConfig(5000.0, 8, scaling=LinearScaling(2.0))


def test_how_much_of_a_head_rotates():
    older = build({**NEOX, "rotary_emb_base": 500, "rotary_pct": 0.5})
    newer = build({**NEOX, "rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}})
    assert older == newer
    assert older.decoder.layers[0].attention.rope == RopeConfig(500.0, 4)
    assert build(NEOX).decoder.layers[0].attention.rope == RopeConfig(10000.0, 2)


def test_scalings_that_grow_with_the_text():
    for base in (NEOX, PHI, STABLELM):
        pairs = build(base).decoder.layers[0].attention.rope.dim // 2
        factors = {"short_factor": [2.0] * pairs, "long_factor": [3.0] * pairs}
        long = {"rope_type": "longrope", **factors, "factor": 4.0, ORIGINAL: 128}
        model = build({**base, "rope_scaling": long, "max_position_embeddings": 512})
        assert (model.max_positions, model.keys_depend_on_length, model.restart_tokens) == (512, True, None)
    factors = {"short_factor": [1.0, 2, 3, 4], "long_factor": [5.0, 6, 7, 8]}
    model = build({**PHI3, ORIGINAL: 64, "max_position_embeddings": 4096, "rope_scaling": {"type": "su", **factors}})
    assert (model.max_positions, model.keys_depend_on_length, model.restart_tokens) == (4096, True, 64)
    scaling = LongScaling((1.0, 2.0, 3.0, 4.0), (5.0, 6.0, 7.0, 8.0), 64, 2**0.5, restarts=True)
    assert model.decoder.layers[0].attention.rope.scaling == scaling
    dynamic = build({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.5}, "max_position_embeddings": 64})
    assert (dynamic.max_positions, dynamic.keys_depend_on_length, dynamic.restart_tokens) == (160, True, None)
    assert dynamic.decoder.layers[0].attention.rope.scaling == DynamicScaling(2.5, 64)
    yarn = {"rope_type": "yarn", "factor": 2.0, ORIGINAL: 64}
    for base in (LLAMA, GPT2, T5, {**LLAMA, "rope_parameters": yarn, "max_position_embeddings": 128}):
        assert not build(base).keys_depend_on_length


def windows(hf):
    return [layer.attention.window for layer in build(hf).decoder.layers]


def test_sliding_windows():
    assert windows(MISTRAL) == [4096] * 4
    assert windows({**MISTRAL, "sliding_window": None}) == [None] * 4
    assert windows({**QWEN2, "sliding_window": 9}) == [None] * 4
    sliding = {**QWEN2, "sliding_window": 9, "use_sliding_window": True}
    assert windows({**sliding, "max_window_layers": 3}) == [None, None, None, 9]
    assert windows({**sliding, "max_window_layers": 0}) == [9] * 4
    kinds = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    assert windows({**sliding, "layer_types": kinds}) == [9, None, None, 9]


def test_gemma_2_windows_and_caps():
    assert windows(GEMMA2) == [4096, None, 4096, None]
    assert windows({**GEMMA2, "layer_types": ["full_attention"] * 4}) == [None] * 4
    capped, free = build(GEMMA2), build({**GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (capped.decoder.layers[0].attention.score_cap, capped.head.cap) == (50.0, 30.0)
    assert (free.decoder.layers[0].attention.score_cap, free.head.cap) == (None, None)


def test_gemma_3_before_and_after_transformers_5():
    kinds = ["sliding_attention", "full_attention"] * 2
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }
    older = {"rope_theta": 5e5, "rope_local_base_freq": 3e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    newer = build({**GEMMA3, "layer_types": kinds, "rope_parameters": ropes, "sliding_window": 9})
    assert newer == build({**GEMMA3, "sliding_window_pattern": 2, **older, "sliding_window": 9})
    assert [layer.attention.rope.theta for layer in newer.decoder.layers] == [3e4, 5e5] * 2
    assert windows({**GEMMA3, "num_hidden_layers": 7}) == [*[4096] * 5, None, 4096]


def test_gemma_3_with_pictures_is_its_text_part():
    both = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}
    assert build({**both, "text_config": GEMMA3}) == build(GEMMA3)
    for wrong in ({}, {"text_config": None}, {"text_config": GEMMA3, "quantization_config": {"bits": 4}}):
        with pytest.raises(ConfigError, match=r"text_config|quantization_config"):
            build({**both, **wrong})


def test_smollm3_layers_without_positions():
    def rotating(hf):
        return [layer.attention.rope is not None for layer in build(hf).decoder.layers]

    assert rotating(SMOLLM3) == [True, True, True, False]
    assert rotating({**SMOLLM3, "no_rope_layers": [0, 1, 1, 0, 1]}) == [False, True, True, False]
    assert build(SMOLLM3).decoder.layers[0].attention.rope.theta == 2e6


def test_which_layers_have_experts():
    def mixed(hf):
        return [isinstance(layer.feed_forward, MixtureConfig) for layer in build(hf).decoder.layers]

    assert mixed(MIXTRAL) == mixed(QWEN2_MOE) == [True] * 4
    assert mixed({**QWEN3_MOE, "decoder_sparse_step": 2}) == [False, True] * 2
    assert mixed({**QWEN2_MOE, "mlp_only_layers": [0, 3]}) == [False, True, True, False]
    switched = {**QWEN2_MOE, "use_sliding_window": True, "sliding_window": 9}
    assert windows({**switched, "max_window_layers": 3}) == [9, None, 9, None]
    assert windows({**QWEN2_MOE, "sliding_window": 9}) == [None] * 4
    newer = {**QWEN3_MOE, "num_local_experts": 16, "num_experts_per_tok": 2}
    assert build(newer) == build({**QWEN3_MOE, "num_experts": 16, "num_experts_per_tok": 2})


@pytest.mark.parametrize(
    ("name", "value"),
    [("alibi", False), ("alibi_bias_max", 5), ("clip_qkv", -6.0), ("qk_ln", True), ("prefix_lm", True)],
)
def test_mpt_scores_that_are_not_supported(name, value):
    with pytest.raises(ConfigError, match=name):
        build({**MPT, "attn_config": {name: value}})


PUBLISHED = {
    "phi": ("microsoft/phi-2", "phi", "Phi"),
    "phi3": ("microsoft/Phi-3-mini-4k-instruct", "phi3", "Phi3"),
    "mpt": ("mosaicml/mpt-7b", "mpt", "MPT"),
    "falcon": ("tiiuae/falcon-7b", "falcon", "Falcon"),
}


def published(kind, prefix=""):
    _, file, stem = PUBLISHED[kind]
    code = f"{prefix}modeling_{file}.{stem}"
    return {
        "AutoConfig": f"{prefix}configuration_{file}.{stem}Config",
        "AutoModel": f"{code}Model",
        "AutoModelForCausalLM": f"{code}ForCausalLM",
        "AutoModelForSequenceClassification": f"{code}ForSequenceClassification",
    }


@pytest.mark.parametrize("kind", PUBLISHED)
def test_published_code_is_known_and_no_other(kind):
    base, (repository, file, stem) = BASES[kind], PUBLISHED[kind]
    for known in (published(kind), published(kind, f"{repository}--")):
        assert build({**base, "auto_map": known}) == build(base)
    model = f"modeling_{file}.{stem}ForCausalLM"
    for name, code in (
        ("AutoModel", "modeling_own.Model"),
        ("AutoModelForCausalLM", f"modeling_{file}.{stem}WithLoopsForCausalLM"),
        ("AutoModelForCausalLM", f"modeling_{file}.Own"),
        ("AutoModelForCausalLM", f"somebody/{kind}--{model}"),
        ("AutoModelForCausalLM", f"modeling_{file}x.{stem}ForCausalLM"),
        ("AutoModelForCausalLM", [model]),
        ("AutoModelForCausalLM", f"configuration_{file}.{stem}Config"),
        ("AutoConfig", model),
        ("AutoConfig", f"configuration_{file}.OwnConfig"),
        ("AutoTokenizer", f"modeling_{file}.{stem}Model"),
        ("AutoTokenizer", ["tokenization_own.Tokenizer", None]),
    ):
        with pytest.raises(ConfigError, match="auto_map"):
            build({**base, "auto_map": {**published(kind), name: code}})
    for wrong in (["modeling"], "modeling", {"AutoModel": ["modeling"]}):
        with pytest.raises(ConfigError, match="auto_map"):
            build({**base, "auto_map": wrong})


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_code_of_the_checkpoint_s_own_is_refused_for_every_family(kind):
    """With the family's own class names as well, unless it was published that way; under each of its architectures."""
    family = FAMILIES[kind]
    for architecture in family.architectures:
        maps = [{"AutoModel": "modeling_own.Model"}, {"AutoConfig": "configuration_own.Config"}, ["modeling_own.Model"]]
        if kind not in PUBLISHED:
            maps.append({"AutoModel": f"modeling_{kind}.{architecture}"})
        for auto_map in maps:
            hf = {**BASES.get(kind, {}), "model_type": kind, "architectures": [architecture], "auto_map": auto_map}
            hf = {**hf, "text_config": BASES["gemma3_text"]}
            with pytest.raises(ConfigError, match="auto_map"):
                family.config(hf, architecture)


@pytest.mark.parametrize(
    ("base", "dropped", "renamed"),
    [
        (GPTJ, "transformer.h.0.attn.masked_bias", "transformer.wte.weight"),
        (NEOX, "gpt_neox.layers.3.attention.rotary_emb.inv_freq", "gpt_neox.embed_in.weight"),
        (NEO, "transformer.h.0.attn.attention.masked_bias", "transformer.wte.weight"),
        (OPENAI, "h.0.attn.bias", "tokens_embed.weight"),
        (OPT, "model.decoder.version", "decoder.embed_tokens.weight"),
        (PHI, "model.layers.0.self_attn.rotary_emb.inv_freq", "model.embed_tokens.weight"),
        (BLOOM, None, "word_embeddings.weight"),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_names_of_first_releases(base, dropped, renamed):
    family, architecture = family_of(base)
    rules = family.rules(build(base), base, architecture)
    assert dropped is None or first_match(rules, dropped)[1] == ()
    assert first_match(rules, renamed)[1] == ("decoder.embedding.tokens.weight",)


@pytest.mark.parametrize("base", [BART, MBART, M2M_100, PEGASUS, BLENDERBOT, BLENDERBOT_SMALL])
def test_names_of_first_seq2seq_releases(base):
    """Every table of tokens stood in the files, tied or not, and what is computed stood there as well."""
    family, architecture = family_of(base)
    rules = family.rules(build(base), base, architecture)
    for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens"):
        for prefix in ("", "model."):
            assert first_match(rules, f"{prefix}{name}.weight")[1] == ("encoder.embedding.tokens.weight",)
    assert first_match(rules, "lm_head.weight")[1] == ("encoder.embedding.tokens.weight",)
    assert first_match(rules, "model.decoder.version")[1] == ()
    if base in (M2M_100, PEGASUS):
        assert first_match(rules, "model.encoder.embed_positions.weight")[1] == ()
    assert base is not M2M_100 or first_match(rules, "model.decoder.embed_positions.weights")[1] == ()


def test_bloom_has_two_names_for_each_size():
    older = {"n_embed": 48, "num_attention_heads": 6, "num_hidden_layers": 3}
    newer = {"hidden_size": 48, "n_head": 6, "n_layer": 3}
    assert build({**BLOOM, **older}) == build({**BLOOM, **newer})
    assert build({**BLOOM, "seq_length": 2048}).max_positions == 2048 and build(BLOOM).max_positions is None


def test_falcon_newer_layers_are_never_in_turn():
    with pytest.raises(ConfigError, match="parallel_attn"):
        build({**FALCON, "new_decoder_architecture": True, "parallel_attn": False})


def test_seq2seq_defaults_are_the_published_kinds():
    scales = {kind["model_type"]: build(kind).encoder.embedding.scale for kind in SEQ2SEQ}
    assert scales["m2m_100"] == 32**0.5 and scales["mbart"] == scales["pegasus"] == 1.0
    assert build(M2M_100).encoder.layers[0].feed_forward.activation == "relu"
    assert build(M2M_100).encoder.embedding.positions == FairseqSinusoidalPositions(1024, first=2)
    assert len(build(MT5).encoder.layers) == 8 and build(MT5).head == LanguageModelHead(tied=False)
    assert build(UMT5).head.scale == 32**-0.5 and build({**UMT5, "tie_word_embeddings": False}).head.scale == 1.0
    deep = {name: value for name, value in BLENDERBOT.items() if name != "d_model"}
    assert (len(build(deep).encoder.layers), len(build(deep).decoder.layers)) == (2, 24)
    said = FAMILIES["blenderbot"].generation
    assert (said.decoder_start_token_ids, said.forced_eos_token_id, said.encoder_no_repeat_ngram_size) == ((1,), 2, 3)
    assert FAMILIES["mbart"].generation.decoder_start_token_ids == ()


def test_t5_versions():
    assert build(T5).head == LanguageModelHead(tied=True, scale=32**-0.5)
    assert build({**T5, "tie_word_embeddings": False}).head == LanguageModelHead(tied=False)
    assert build({**T5, "feed_forward_proj": "gated-gelu"}).decoder.layers[0].feed_forward == FeedForwardConfig(
        2048, "gelu_tanh", gated=True, bias=False
    )
    said_twice = build({**T5, "feed_forward_proj": "relu", "dense_act_fn": "silu", "is_gated_act": True})
    assert said_twice.decoder.layers[0].feed_forward == FeedForwardConfig(2048, "silu", gated=True, bias=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: NormConfig("layer", 0.0),
        lambda: RopeConfig(10000.0, 7),
        lambda: RopeConfig(-1.0, 8),
        lambda: RopeConfig(1.0, 8, scaling=YarnScaling(2.0, 64, 32.0, 1.0, True, 1.0)),
        lambda: RopeConfig(10000.0, 8, scaling=LongScaling((1.0,) * 4, (1.0,), 64, 1.0)),
        lambda: RopeConfig(10000.0, 2, scaling=DynamicScaling(2.0, 64)),
        lambda: AttentionConfig(4, 4, 8, 1.0, True, score_cap=0.0),
        lambda: LanguageModelHead(tied=True, cap=-1.0),
        lambda: AttentionConfig(4, 3, 8, 1.0, True),
        lambda: AttentionConfig(4, 4, 8, 1.0, True, rope=RopeConfig(10000.0, 16)),
        lambda: AttentionConfig(4, 4, 8, 1.0, True, window=0),
        lambda: FeedForwardConfig(0, "relu"),
        lambda: MixtureConfig(FeedForwardConfig(8, "relu"), 4, 5, normalized=True),
        lambda: BucketBiasConfig(32, 8, bidirectional=True),
    ],
)
def test_parts_validate_themselves(make):
    with pytest.raises(ConfigError):
        make()


def test_every_family_is_listed_under_its_types():
    for kind, family in FAMILIES.items():
        assert kind in family.model_types and family.architectures


def test_families_are_free_of_torch():
    code = "import sys, models.families; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


NOT_IN_TRANSFORMERS = {"performer", "linformer", "transfo-xl", "xlm-prophetnet"}


@pytest.mark.parametrize("kind", refused.REFUSED)
def test_known_architectures_are_refused_with_a_reason(kind):
    """Each name is one that `config.json` files have, and none is a family that is served."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert kind not in FAMILIES
    assert kind in CONFIG_MAPPING_NAMES or kind in NOT_IN_TRANSFORMERS
    with pytest.raises(ConfigError) as error:
        family_of({"model_type": kind, "architectures": ["AnyForCausalLM"]})
    assert kind in str(error.value) and refused.REFUSED[kind] in str(error.value) and "\n" not in str(error.value)
    assert len(str(error.value)) < 200
