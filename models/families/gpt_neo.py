"""GPT-Neo (Black et al. 2021): GPT-2 with a sliding window in every other layer.

Attention scores are not divided by the square root of the head width.
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
    StackConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.language_model import language_model, token_rules
from weights.rules import Drop, Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    hidden, heads = fields.integer("hidden_size", 2048), fields.integer("num_heads", 16)
    norm = NormConfig("layer", fields.number("layer_norm_epsilon", 1e-5))
    window = fields.integer("window_size", 256)
    feed_forward = FeedForwardConfig(
        fields.integer("intermediate_size", 4 * hidden), fields.activation("activation_function", "gelu_new")
    )

    def layer(local: bool) -> LayerConfig:
        attention = AttentionConfig(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=head_width(hidden, heads),
            scale=1.0,
            causal=True,
            query_bias=False,
            key_bias=False,
            value_bias=False,
            window=window if local else None,
        )
        return LayerConfig(attention, NormSlots(input=norm), feed_forward, NormSlots(input=norm))

    positions = fields.integer("max_position_embeddings", 2048)
    embedding = EmbeddingConfig(fields.integer("vocab_size", 50257), positions=LearnedPositions(positions))
    kinds = _kinds(hf.get("attention_types"), fields.integer("num_layers", 24))
    decoder = StackConfig(embedding, tuple(layer(kind == "local") for kind in kinds), final_norm=norm)
    return language_model(fields, hidden, decoder, positions, default_tied=True)


def _kinds(types: Any, layers: int) -> list[str]:
    """The attention type of each layer, `global` or `local`.

    types: patterns and how often each repeats, such as `[[["global", "local"], 12]]` for 24 layers, the default.
    Raises ConfigError unless the patterns cover exactly `layers` layers with these two types.
    """
    if types is None:
        types = [[["global", "local"], 12]]
    kinds: list[str] = []
    try:
        for pattern, times in types:
            kinds += list(pattern) * min(times, layers + 1)
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != layers or any(kind not in ("global", "local") for kind in kinds):
        raise ConfigError(f"'attention_types' must name global or local attention for each of {layers} layers")
    return kinds


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"transformer\.h\.(\d+)\.", r"decoder.layers.\1."
    return (
        *token_rules(model, r"transformer\.wte"),
        Rename(r"transformer\.wpe\.weight", "decoder.embedding.positions.weight"),
        Rename(layer + r"ln_1\.(weight|bias)", ours + r"attention_norms.input.\2"),
        Rename(layer + r"attn\.attention\.q_proj\.weight", ours + "attention.query.weight"),
        Rename(layer + r"attn\.attention\.k_proj\.weight", ours + "attention.key.weight"),
        Rename(layer + r"attn\.attention\.v_proj\.weight", ours + "attention.value.weight"),
        Rename(layer + r"attn\.attention\.out_proj\.(weight|bias)", ours + r"attention.output.\2"),
        Drop(layer + r"attn\.attention\.(?:bias|masked_bias)"),
        Rename(layer + r"ln_2\.(weight|bias)", ours + r"feed_forward_norms.input.\2"),
        Rename(layer + r"mlp\.c_fc\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.c_proj\.(weight|bias)", ours + r"feed_forward.down.\2"),
        Rename(r"transformer\.ln_f\.(weight|bias)", r"decoder.final_norm.\1"),
    )


FAMILY = decoder_family(
    "gpt_neo",
    "GPTNeo",
    config,
    rules,
    prefix=r"transformer\.",
)
