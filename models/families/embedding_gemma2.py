"""EmbeddingGemma 2 (Google 2026): Gemma 4 as an encoder. Checkpoints are served without their vision and audio parts.

The additional vector that each layer adds for a token is computed from the token's embedding alone. A window counts
tokens on each side of the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    LayerInputConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    PerLayerEmbeddingConfig,
    PoolingHead,
    QueryKeyNorm,
    StackConfig,
)
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.gemma4_text import head_shapes
from models.families.shared.rename_rules import renamed
from models.families.shared.rope import rope_config, scaled_max_positions, with_rope_of
from models.families.shared.rotary_decoder import gated_feed_forward, rms_norm, rotary_rules
from models.families.shared.text_part import text_settings
from models.families.shared.windows import patterned_windows
from weights.rules import Drop, Rename, Rule

_MULTIMODAL = "EmbeddingGemma2Model"
_DEFAULTS = {
    "vocab_size": 262144,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-06,
}


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    settings = text_settings(hf) if architecture == _MULTIMODAL else hf
    text = {**_DEFAULTS, **{name: value for name, value in settings.items() if value is not None}}
    Fields({"rope_scaling": text.get("rope_scaling")}).refuse_unless("rope_scaling")
    text["hidden_act"] = text["hidden_activation"]
    fields = Fields({**text, "rope_parameters": None, "rope_scaling": None})
    norm, bias = rms_norm(fields), fields.flag("attention_bias", False)
    # The last layer always has full attention.
    windows = [*patterned_windows(fields, fields.integer("sliding_window", 512) + 1, default=6)[:-1], None]
    input_width, hidden = fields.integer("hidden_size_per_layer_input", 512), fields.integer("hidden_size")
    shapes = head_shapes(fields, windows, fields.integer("num_global_key_value_heads", 1))
    feed_forward = gated_feed_forward(fields, fields.integer("intermediate_size"))

    def layer(window: int | None, head_dim: int, num_kv_heads: int) -> LayerInputConfig:
        kind, theta = ("full_attention", 1000000.0) if window is None else ("sliding_attention", 10000.0)
        attention = AttentionConfig(
            *(fields.integer("num_attention_heads"), num_kv_heads, head_dim, 1.0, False, bias, bias, bias, bias),
            rope=rope_config(Fields(with_rope_of(text, kind, theta)), head_dim),
            query_key_norm=QueryKeyNorm(norm),
            window=window,
            value_norm=NormConfig("rms_unscaled", norm.eps, bias=False),
        )
        norms = NormSlots(input=norm, output=norm)
        return LayerInputConfig(
            *(attention, norms, feed_forward, norms),
            input_width=input_width,
            activation=fields.activation("hidden_act"),
            input_norm=norm,
            output_scale=True,
        )

    layers = tuple(layer(window, *shape) for window, shape in zip(windows, shapes, strict=True))
    vocab, positions = fields.integer("vocab_size"), fields.integer("max_position_embeddings", 262144)
    ropes = [
        layer_config.attention.rope
        for layer_config in layers
        if layer_config.attention is not None and layer_config.attention.rope is not None
    ]
    return ModelConfig(
        hidden,
        vocab,
        PoolingHead(),
        encoder=StackConfig(
            EmbeddingConfig(vocab, hidden**0.5),
            layers,
            final_norm=norm,
            per_layer=PerLayerEmbeddingConfig(None, input_width, norm),
            output_width=fields.integer("embedding_dim", 768),
        ),
        max_positions=min(scaled_max_positions(rope, positions) for rope in ropes),
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"encoder.layers.\1."
    text = (
        Rename(layer + r"layer_scalar", ours + "output_scale"),
        Rename(layer + r"ple_block\.per_layer_input_gate\.weight", ours + "input_gate.weight"),
        Rename(layer + r"ple_block\.per_layer_projection\.weight", ours + "input_projection.weight"),
        Rename(layer + r"ple_block\.post_per_layer_input_norm\.weight", ours + "input_norm.weight"),
        Rename(r"model\.ple\.per_layer_model_projection\.weight", "encoder.per_layer.projection.weight"),
        Rename(r"model\.ple\.per_layer_projection_norm\.weight", "encoder.per_layer.norm.weight"),
        Rename(r"model\.embedding_projection\.weight", "encoder.output_projection.weight"),
        *rotary_rules(model, hf, architecture),
    )
    body = renamed(text, r"model\.", r"(?:model\.)?(?:language_model\.)?")
    return (*body, Drop(r"(?:model\.)?(?:vision_tower|audio_tower|embed_vision|embed_audio)\..*"))


FAMILY = Family(
    name="embedding_gemma2",
    model_types=("embedding_gemma2", "embedding_gemma2_text"),
    architectures={"EmbeddingGemma2TextModel": ("embed",), _MULTIMODAL: ("embed",)},
    config=_config,
    rules=_rules,
)
