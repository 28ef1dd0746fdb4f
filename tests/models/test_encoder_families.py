"""Settings of well-known encoder checkpoints, copied from their `config.json`, give the right configuration."""

from __future__ import annotations

import pytest

from models.config import ClassificationHead, ConvolutionLayerConfig, DisentangledConfig, ModelConfig, PoolingHead
from models.families import family_of

NOMIC = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "auto_map": {
        "AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig",
        "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel",
    },
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "pad_vocab_size_multiple": 64,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_weights": True,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
DEBERTA_V3 = {
    "model_type": "deberta-v2",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "layer_norm_eps": 1e-7,
    "max_relative_positions": -1,
    "position_biased_input": False,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 0,
    "vocab_size": 128100,
}
XLARGE = {
    **DEBERTA_V3,
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "attention_head_size": 64,
    "intermediate_size": 6144,
    "conv_kernel_size": 3,
    "conv_act": "gelu",
}


def _read(hf: dict) -> ModelConfig:
    family, architecture = family_of(hf)
    return family.config(hf, architecture)


def test_nomic_embed_text():
    model = _read(NOMIC)
    assert (model.max_positions, model.vocab_size, model.head) == (8192, 30528, PoolingHead())
    layer = model.encoder.layers[0]
    assert layer.attention.rope.theta == 1000 and layer.feed_forward.gated and not layer.attention.query_bias
    assert _read({**NOMIC, "rotary_scaling_factor": 2}).max_positions == 2048


def test_modernbert_base():
    model = _read({"model_type": "modernbert", "architectures": ["ModernBertModel"], "num_hidden_layers": 22})
    windows = [layer.attention.window for layer in model.encoder.layers]
    assert windows == [None if index % 3 == 0 else 65 for index in range(22)]
    assert {layer.attention.window: layer.attention.rope.theta for layer in model.encoder.layers} == {
        None: 160_000.0,
        65: 10_000.0,
    }
    assert [layer.attention_norms.input is None for layer in model.encoder.layers] == [True] + [False] * 21
    assert model.max_positions == 8192 and not model.encoder.final_norm.bias


def test_deberta_v3_base():
    model = _read({**DEBERTA_V3, "architectures": ["DebertaV2ForSequenceClassification"], "num_labels": 3})
    attention = model.encoder.layers[0].attention
    assert isinstance(attention, DisentangledConfig) and not attention.own_projections
    assert attention.scale == pytest.approx((3 * 64) ** -0.5)
    assert (model.encoder.distances.span, model.encoder.distances.max_distance) == (256, 512)
    assert model.encoder.embedding.positions is None and model.encoder.embedding.num_token_types == 0
    assert model.head == ClassificationHead(3, dense="gelu")


def test_deberta_v2_xlarge():
    first, second, *_ = _read(XLARGE).encoder.layers
    assert isinstance(first, ConvolutionLayerConfig) and not isinstance(second, ConvolutionLayerConfig)
    assert (first.kernel_size, first.groups, first.activation) == (3, 1, "gelu")


def test_albert_base_and_electra_small():
    albert = {"model_type": "albert", "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    stack = _read({**albert, "num_hidden_layers": 12, "num_hidden_groups": 1}).encoder
    assert stack.sharing == (0,) * 12 and stack.embedding.width == 128
    electra = {"model_type": "electra", "architectures": ["ElectraForPreTraining"]}
    model = _read({**electra, "embedding_size": 128, "hidden_size": 256})
    assert model.encoder.embedding.width == 128 and model.head == PoolingHead()
    assert _read({**electra, "embedding_size": 256, "hidden_size": 256}).encoder.embedding.width is None
