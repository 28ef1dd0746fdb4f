"""Settings have the same meaning as in the reference implementation: defaults, old and new names, layer types."""

from __future__ import annotations

import pytest

from models.config import (
    ConfigError,
    DynamicScaling,
    FairseqSinusoidalPositions,
    FeedForwardConfig,
    LanguageModelHead,
    LinearScaling,
    LongScaling,
    MixtureOfExpertsConfig,
    RopeConfig,
)
from models.families import FAMILIES
from tests.models.family_bases import (
    BART,
    BLENDERBOT,
    BLENDERBOT_SMALL,
    BLOOM,
    GEMMA2,
    GEMMA3,
    GPT2,
    LLAMA,
    M2M_100,
    MBART,
    MISTRAL,
    MIXTRAL,
    MT5,
    NEOX,
    ORIGINAL,
    PEGASUS,
    PHI,
    PHI3,
    QWEN2,
    QWEN2_MOE,
    QWEN3_MOE,
    SEQ2SEQ,
    SMOLLM3,
    STABLELM,
    T5,
    UMT5,
    build,
)


def test_settings_without_effect_are_accepted():
    build({**LLAMA, "rope_scaling": None, "auto_map": None, "pretraining_tp": 1, "partial_rotary_factor": 1.0})
    build({**BART, "normalize_before": False, "add_bias_logits": False, "normalize_embedding": True})
    norms_first = {"normalize_before": True, "add_final_layer_norm": True, "add_bias_logits": False}
    build({**MBART, **norms_first, "normalize_embedding": True, "static_position_embeddings": False})
    build({**PEGASUS, **norms_first, "normalize_embedding": False, "static_position_embeddings": True})
    build({**BLENDERBOT, **norms_first, "layernorm_variant": "prelayernorm", "extra_pos_embeddings": 0})
    build({**BLENDERBOT_SMALL, "layernorm_variant": "xlm", "do_blenderbot_90_layernorm": True})


@pytest.mark.parametrize("base", (*SEQ2SEQ, MIXTRAL, QWEN2_MOE, QWEN3_MOE), ids=lambda base: base["model_type"])
def test_null_means_the_default_of_the_family(base):
    base = {**base, "head_dim": 8}
    sizes = ("vocab_size", "hidden_size", "num_attention_heads", "d_model", "encoder_layers", "num_layers")
    for name in (*sizes, "activation_function", "feed_forward_proj", "scale_embedding", "rope_theta"):
        assert build({**base, name: None}) == build({other: base[other] for other in base if other != name})


def test_older_and_newer_rope_settings_agree():
    older = build({**LLAMA, "rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2}})
    newer = build({**LLAMA, "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}})
    assert older == newer
    assert older.decoder.layers[0].attention.rope == RopeConfig(5000.0, 8, scaling=LinearScaling(2.0))


def test_partial_rotation_of_heads():
    older = build({**NEOX, "rotary_emb_base": 500, "rotary_pct": 0.5})
    newer = build({**NEOX, "rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}})
    assert older == newer
    assert older.decoder.layers[0].attention.rope == RopeConfig(500.0, 4)
    assert build(NEOX).decoder.layers[0].attention.rope == RopeConfig(10000.0, 2)


def test_rope_scalings_that_depend_on_the_length():
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


def test_multimodal_gemma_3_builds_its_text_part():
    both = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}
    assert build({**both, "text_config": GEMMA3}) == build(GEMMA3)
    for wrong in ({}, {"text_config": None}):
        with pytest.raises(ConfigError, match="text_config"):
            build({**both, **wrong})


def test_smollm3_layers_without_positions():
    def rotating(hf):
        return [layer.attention.rope is not None for layer in build(hf).decoder.layers]

    assert rotating(SMOLLM3) == [True, True, True, False]
    assert rotating({**SMOLLM3, "no_rope_layers": [0, 1, 1, 0, 1]}) == [False, True, True, False]
    assert build(SMOLLM3).decoder.layers[0].attention.rope.theta == 2e6


def test_layers_with_experts():
    def mixed(hf):
        return [isinstance(layer.feed_forward, MixtureOfExpertsConfig) for layer in build(hf).decoder.layers]

    assert mixed(MIXTRAL) == mixed(QWEN2_MOE) == [True] * 4
    assert mixed({**QWEN3_MOE, "decoder_sparse_step": 2}) == [False, True] * 2
    assert mixed({**QWEN2_MOE, "mlp_only_layers": [0, 3]}) == [False, True, True, False]
    switched = {**QWEN2_MOE, "use_sliding_window": True, "sliding_window": 9}
    assert windows({**switched, "max_window_layers": 3}) == [9, None, 9, None]
    assert windows({**QWEN2_MOE, "sliding_window": 9}) == [None] * 4
    newer = {**QWEN3_MOE, "num_local_experts": 16, "num_experts_per_tok": 2}
    assert build(newer) == build({**QWEN3_MOE, "num_experts": 16, "num_experts_per_tok": 2})


def test_bloom_has_two_names_for_each_size():
    older = {"n_embed": 48, "num_attention_heads": 6, "num_hidden_layers": 3}
    newer = {"hidden_size": 48, "n_head": 6, "n_layer": 3}
    assert build({**BLOOM, **older}) == build({**BLOOM, **newer})
    assert build({**BLOOM, "seq_length": 2048}).max_positions == 2048 and build(BLOOM).max_positions is None


def test_seq2seq_defaults_equal_those_of_the_published_models():
    scales = {kind["model_type"]: build(kind).encoder.embedding.scale for kind in SEQ2SEQ}
    assert scales["m2m_100"] == 32**0.5 and scales["mbart"] == scales["pegasus"] == 1.0
    assert build(M2M_100).encoder.layers[0].feed_forward.activation == "relu"
    assert build(M2M_100).encoder.embedding.positions == FairseqSinusoidalPositions(1024, first=2)
    assert len(build(MT5).encoder.layers) == 8 and build(MT5).head == LanguageModelHead(tied=False)
    assert build(UMT5).head.scale == 32**-0.5 and build({**UMT5, "tie_word_embeddings": False}).head.scale == 1.0
    deep = {name: value for name, value in BLENDERBOT.items() if name != "d_model"}
    assert (len(build(deep).encoder.layers), len(build(deep).decoder.layers)) == (2, 24)
    assert [name for name, family in FAMILIES.items() if family.decoder_start == "language"] == ["mbart"]


def test_t5_versions():
    assert build(T5).head == LanguageModelHead(tied=True, scale=32**-0.5)
    assert build({**T5, "tie_word_embeddings": False}).head == LanguageModelHead(tied=False)
    assert build({**T5, "feed_forward_proj": "gated-gelu"}).decoder.layers[0].feed_forward == FeedForwardConfig(
        2048, "gelu_tanh", gated=True, bias=False
    )
    both_names = build({**T5, "feed_forward_proj": "relu", "dense_act_fn": "silu", "is_gated_act": True})
    assert both_names.decoder.layers[0].feed_forward == FeedForwardConfig(2048, "silu", gated=True, bias=False)
