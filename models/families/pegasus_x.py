"""Pegasus-X (Phang et al. 2022, arXiv:2208.04347): Pegasus for long texts.

Encoder tokens attend to their block of the text and to additional global vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    ConfigError,
    FairseqSinusoidalPositions,
    FeedForwardConfig,
    GlobalVectorsLayerConfig,
    LanguageModelHead,
    ModelConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.bart_config import (
    NORM,
    bart_attention,
    bart_embedding,
    bart_fields,
    bart_model,
    bart_stack,
)
from models.families.shared.bart_rules import PREFIX, pre_norm_rules
from models.families.shared.family import Family
from weights.rules import Rename, Rule

_DEFAULTS = {"vocab_size": 96103, "layers": 16, "max_position_embeddings": 16384, "scale_embedding": True}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf, **_DEFAULTS)
    fields.refuse_unless("tie_word_embeddings", True)
    block, shifts = fields.integer("block_size", 512), fields.flag("stagger_local_blocks", True)
    if shifts and block % 2:
        raise ConfigError(f"'block_size': {block} is not supported, only even numbers")
    embedding = bart_embedding(fields, FairseqSinusoidalPositions(fields.integer("max_position_embeddings"), first=0))
    attention = bart_attention(fields, "encoder", causal=False, bias=False)
    norms = NormSlots(input=NORM)
    feed_forward = FeedForwardConfig(fields.integer("encoder_ffn_dim"), fields.activation("activation_function"))
    layers = tuple(
        GlobalVectorsLayerConfig(
            attention, norms, feed_forward, norms, block_size=block, shift=block // 2 if shifts and index % 2 else 0
        )
        for index in range(fields.integer("encoder_layers"))
    )
    vectors = fields.integer("num_global_tokens", 32)
    encoder = StackConfig(embedding, layers, final_norm=NORM, global_vectors=vectors)
    decoder = bart_stack(fields, "decoder", embedding, pre_norm=True, bias=False)
    return bart_model(fields, LanguageModelHead(tied=True), encoder, decoder)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        Rename(rf"{PREFIX}encoder\.embed_global\.weight", "encoder.global_vectors"),
        Rename(
            rf"{PREFIX}encoder\.layers\.(\d+)\.global_self_attn_layer_norm\.(weight|bias)",
            r"encoder.layers.\1.global_norm.\2",
        ),
        *pre_norm_rules(),
    )


FAMILY = Family(
    name="pegasus_x",
    model_types=("pegasus_x",),
    architectures={"PegasusXForConditionalGeneration": ("generate",), "PegasusXModel": ("generate",)},
    config=config,
    rules=rules,
)
