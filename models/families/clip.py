"""The text side of CLIP (Radford et al. 2021, arXiv:2103.00020): a causal transformer with an output projection.

The vector of a text is the projected hidden state at the end token, which the tokenizer adds. The image side is not
loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    ConfigError,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    NormConfig,
    NormSlots,
    PoolingHead,
    StackConfig,
)
from models.families.shared.family import Family
from models.families.shared.fields import Fields, head_width, short
from weights.rules import Drop, Rename, Rule

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "projection_dim": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
_TEXT = r"(?:text_model\.)?"


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    Fields(hf)  # refuses code from the checkpoint, and unknown positions
    text = hf
    if hf.get("model_type") == "clip":
        # The first releases have `text_config_dict`. As in transformers, it replaces `text_config`.
        name = "text_config" if hf.get("text_config_dict") is None else "text_config_dict"
        text = {} if hf.get(name) is None else hf[name]
        if not isinstance(text, dict):
            raise ConfigError(f"{name!r} must be an object, not {short(text)}")
        # The width of the projection is a setting of the whole model, because both sides have the same.
        text = {**text, "projection_dim": hf.get("projection_dim", 512)}
    fields = Fields(text, defaults=_DEFAULTS)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim, norm = head_width(hidden, heads), NormConfig("layer", fields.number("layer_norm_eps"))
    positions = fields.integer("max_position_embeddings")
    layer = LayerConfig(
        AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal=True),
        NormSlots(input=norm),
        FeedForwardConfig(fields.integer("intermediate_size"), fields.activation("hidden_act")),
        NormSlots(input=norm),
    )
    embedding = EmbeddingConfig(fields.integer("vocab_size"), positions=LearnedPositions(positions))
    return ModelConfig(
        hidden,
        embedding.vocab_size,
        PoolingHead(),
        decoder=StackConfig(
            embedding,
            (layer,) * fields.integer("num_hidden_layers"),
            final_norm=norm,
            output_width=None if architecture == "CLIPTextModel" else fields.integer("projection_dim"),
        ),
        max_positions=positions,
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours, linear = rf"{_TEXT}encoder\.layers\.(\d+)\.", r"decoder.layers.\1.", r"\.(weight|bias)"
    return (
        Drop(r"(?:vision_model|visual_projection)\..*|logit_scale"),
        Rename(rf"{_TEXT}embeddings\.token_embedding\.weight", "decoder.embedding.tokens.weight"),
        Rename(rf"{_TEXT}embeddings\.position_embedding\.weight", "decoder.embedding.positions.weight"),
        Drop(rf"{_TEXT}embeddings\.position_ids"),
        *(
            Rename(layer + rf"self_attn\.{theirs}{linear}", ours + rf"attention.{name}.\2")
            for theirs, name in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "output"))
        ),
        Rename(layer + "layer_norm1" + linear, ours + r"attention_norms.input.\2"),
        Rename(layer + r"mlp\.fc1" + linear, ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.fc2" + linear, ours + r"feed_forward.down.\2"),
        Rename(layer + "layer_norm2" + linear, ours + r"feed_forward_norms.input.\2"),
        Rename(rf"{_TEXT}final_layer_norm{linear}", r"decoder.final_norm.\1"),
        *(
            (Drop(r"text_projection\.weight"),)
            if architecture == "CLIPTextModel"
            else (Rename(r"text_projection\.weight", "decoder.output_projection.weight"),)
        ),
    )


FAMILY = Family(
    name="clip",
    model_types=("clip", "clip_text_model"),
    architectures={
        "CLIPModel": ("embed",),
        "CLIPTextModelWithProjection": ("embed",),
        "CLIPTextModel": ("embed",),
    },
    config=_config,
    rules=_rules,
)
