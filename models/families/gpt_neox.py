"""GPT-NeoX (Black et al. 2022, arXiv:2204.06745) and Pythia: parallel attention and feed-forward.

Rotary positions apply to a part of each head. One tensor holds the projections of queries, keys and values, head by
head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.gguf import GgufFamily, Settings, layer_eps, partly_rotary_settings
from models.families.shared.language_model import language_model, token_rules
from models.families.shared.megatron_layers import megatron_layer_rules
from models.families.shared.rope import rope_config, scaled_max_positions
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    # Before transformers 5, this family had its own names for these two settings.
    older = {"rope_theta": hf.get("rotary_emb_base"), "partial_rotary_factor": hf.get("rotary_pct")}
    fields = Fields(
        {**hf, **{name: value for name, value in older.items() if value is not None}}, defaults={"rope_theta": 10000.0}
    )
    hidden, heads = fields.integer("hidden_size", 6144), fields.integer("num_attention_heads", 64)
    head_dim = head_width(hidden, heads)
    bias = fields.flag("attention_bias", True)
    rope = rope_config(fields, head_dim, default_share=0.25)
    norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-5))
    layer = LayerConfig(
        AttentionConfig(heads, heads, head_dim, head_dim**-0.5, True, bias, bias, bias, bias, rope),
        NormSlots(input=norm),
        FeedForwardConfig(fields.integer("intermediate_size", 24576), fields.activation("hidden_act", "gelu")),
        NormSlots(input=norm),
        parallel=fields.flag("use_parallel_residual", True),
    )
    embedding = EmbeddingConfig(fields.integer("vocab_size", 50432))
    decoder = StackConfig(embedding, (layer,) * fields.integer("num_hidden_layers", 44), final_norm=norm)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 2048))
    return language_model(fields, hidden, decoder, max_positions, default_tied=False)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    layer = r"gpt_neox\.layers\.(\d+)\."
    return (
        *token_rules(model, r"gpt_neox\.embed_in", "embed_out"),
        *megatron_layer_rules(layer, "attention", model.decoder.first_attention),
        Rename(r"gpt_neox\.final_layer_norm\.(weight|bias)", r"decoder.final_norm.\1"),
        Drop(layer + r"attention\.(?:bias|masked_bias|rotary_emb\.inv_freq)"),
    )


def gguf_settings(of: Metadata) -> Settings:
    return partly_rotary_settings(
        of,
        model_type="gpt_neox",
        layer_norm_eps=layer_eps(of),
        use_parallel_residual=bool(of.optional("use_parallel_residual")),
    )


FAMILY = decoder_family(
    "gpt_neox",
    "GPTNeoX",
    config,
    rules,
    prefix=r"gpt_neox\.",
    gguf=GgufFamily({"gptneox": gguf_settings}),
)
