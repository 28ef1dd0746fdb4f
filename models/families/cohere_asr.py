"""Cohere Transcribe (Cohere Labs 2026): a FastConformer encoder and a decoder. The prompt states the language.

Published checkpoints have the tensor names of NVIDIA NeMo; checkpoints that transformers saves have its own names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelHead,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.config.samples import SAMPLE_RATE
from models.families.shared.family import Family
from models.families.shared.fast_conformer import embedding_config, encoder_fields, encoder_rules, layer_configs
from models.families.shared.fields import Fields, head_width
from weights.rules import Drop, Rename, Rule

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 16384,
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "hidden_act": "relu",
    "max_position_embeddings": 1024,
    "attention_bias": True,
    "tie_word_embeddings": False,
}
_ENCODER_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 1280,
    "num_hidden_layers": 48,
    "num_attention_heads": 8,
    "intermediate_size": 5120,
    "hidden_act": "silu",
    "attention_bias": True,
    "convolution_bias": True,
    "conv_kernel_size": 9,
    "subsampling_factor": 8,
    "subsampling_conv_channels": 256,
    "num_mel_bins": 128,
    "subsampling_conv_kernel_size": 3,
    "scale_input": False,
}
_DITHER = 1e-5
"""Standard deviation of the noise that the feature extractor adds to samples (`dither`).

`server.text.speech` refuses a checkpoint whose file states another value."""
_LONGEST_SECONDS = 35
"""Longest recording in seconds, `max_audio_clip_s` of the feature extractor. Longer recordings are cut."""
_NORM = NormConfig("layer", 1e-5)
_MODEL = r"(?:model\.)?"
_DECODER = _MODEL + r"(?:decoder|transf_decoder\._decoder)\."
_LINEAR = r"\.(weight|bias)"
_PROJECTIONS = (("q_proj", "query_net", "query"), ("k_proj", "key_net", "key"), ("v_proj", "value_net", "value"),
                ("o_proj", "out_projection", "output"))  # fmt: skip
_ATTENTIONS = (("self_attn", "first_sub_layer", "attention"), ("encoder_attn", "second_sub_layer", "cross_attention"))
_NORMS = (
    ("input_layernorm", "layer_norm_1", "attention_norms"),
    ("post_attention_layernorm", "layer_norm_2", "cross_attention_norms"),
    ("final_layernorm", "layer_norm_3", "feed_forward_norms"),
)


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields, encoder = Fields(hf, defaults=_DEFAULTS), encoder_fields(hf, _ENCODER_DEFAULTS)
    hidden_size, source_size = fields.integer("hidden_size"), encoder.integer("hidden_size")
    vocab_size, positions = fields.integer("vocab_size"), fields.integer("max_position_embeddings")
    embedding, norms = embedding_config(encoder, _DITHER), NormSlots(input=_NORM)
    layer = LayerConfig(
        _attention(fields, causal=True),
        norms,
        FeedForwardConfig(fields.integer("intermediate_size"), fields.activation("hidden_act"), bias=True),
        norms,
        _attention(fields, causal=False),
        norms,
    )
    return ModelConfig(
        hidden_size,
        vocab_size,
        LanguageModelHead(tied=fields.flag("tie_word_embeddings"), bias=True),
        encoder=StackConfig(embedding, layer_configs(encoder), output_width=hidden_size, output_bias=True),
        decoder=StackConfig(
            EmbeddingConfig(vocab_size, positions=LearnedPositions(positions), norm=_NORM),
            (layer,) * fields.integer("num_hidden_layers"),
            final_norm=_NORM,
        ),
        max_positions=positions,
        max_source_positions=-(-_LONGEST_SECONDS * SAMPLE_RATE // embedding.samples_per_token),
        source_size=None if source_size == hidden_size else source_size,
    )


def _attention(fields: Fields, *, causal: bool) -> AttentionConfig:
    heads, bias = fields.integer("num_attention_heads"), fields.flag("attention_bias")
    kv_heads = fields.optional_integer("num_key_value_heads") or heads
    head_dim = fields.optional_integer("head_dim") or head_width(fields.integer("hidden_size"), heads)
    return AttentionConfig(heads, kv_heads, head_dim, head_dim**-0.5, causal, bias, bias, bias, bias)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = _DECODER + r"layers\.(\d+)\.", r"decoder.layers.\1."
    words, tokens = _MODEL + r"transf_decoder\._embedding\.", "decoder.embedding.tokens.weight"
    assert isinstance(model.head, LanguageModelHead)
    return (
        *encoder_rules(model.encoder, _MODEL),
        Rename(_MODEL + r"(?:decoder\.proj|encoder_decoder_proj)" + _LINEAR, r"encoder.output_projection.\1"),
        Rename(rf"(?:{_MODEL}decoder\.embed_tokens|{words}token_embedding)\.weight", tokens),
        Rename(
            rf"(?:{_MODEL}decoder\.pos_emb\.weight|{words}position_embedding\.pos_enc)",
            "decoder.embedding.positions.weight",
        ),
        Rename(rf"(?:{_MODEL}decoder\.embedding_layernorm|{words}layer_norm)" + _LINEAR, r"decoder.embedding.norm.\1"),
        *(
            Rename(layer + rf"(?:{block}\.{short}|{nemo_block}\.{nemo}){_LINEAR}", ours + rf"{name}.{part}.\2")
            for block, nemo_block, name in _ATTENTIONS
            for short, nemo, part in _PROJECTIONS
        ),
        *(
            Rename(layer + rf"(?:{theirs}|{nemo}){_LINEAR}", ours + rf"{name}.input.\2")
            for theirs, nemo, name in _NORMS
        ),
        Rename(layer + r"(?:mlp\.fc1|third_sub_layer\.dense_in)" + _LINEAR, ours + r"feed_forward.up.\2"),
        Rename(layer + r"(?:mlp\.fc2|third_sub_layer\.dense_out)" + _LINEAR, ours + r"feed_forward.down.\2"),
        Rename(_DECODER + r"(?:norm|final_layer_norm)" + _LINEAR, r"decoder.final_norm.\1"),
        Rename(r"(?:proj_out|log_softmax\.mlp\.layer0)\.weight", tokens if model.head.tied else "head.weight"),
        Rename(r"(?:proj_out|log_softmax\.mlp\.layer0)\.bias", "head.bias"),
        Drop(r"preprocessor\.featurizer\..*"),
    )


FAMILY = Family(
    name="cohere_asr",
    model_types=("cohere_asr",),
    architectures={"CohereAsrForConditionalGeneration": ("transcribe",)},
    config=config,
    rules=rules,
)
