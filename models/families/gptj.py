"""GPT-J (Wang and Komatsuzaki 2021): attention and feed-forward run in parallel after one norm.

Rotary positions apply to the first dimensions of each head, in pairs of neighbours.
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
    ModelConfig,
    NormConfig,
    NormSlots,
    RopeConfig,
    StackConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.language_model import language_model, token_rules
from weights.rules import Constant, Drop, Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    hidden, heads = fields.integer("n_embd", 4096), fields.integer("n_head", 16)
    head_dim = head_width(hidden, heads)
    if hf.get("rotary_dim", 64) is None:
        raise ConfigError("'rotary_dim': null is not supported, only an integer")
    norm = NormConfig("layer", fields.number("layer_norm_epsilon", 1e-5))
    layer = LayerConfig(
        attention=AttentionConfig(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            causal=True,
            query_bias=False,
            key_bias=False,
            value_bias=False,
            output_bias=False,
            rope=RopeConfig(10000.0, fields.integer("rotary_dim", 64), "interleaved"),
        ),
        attention_norms=NormSlots(input=norm),
        feed_forward=FeedForwardConfig(
            fields.integer("n_inner", 4 * hidden), fields.activation("activation_function", "gelu_new")
        ),
        feed_forward_norms=NormSlots(),
        parallel=True,
    )
    embedding = EmbeddingConfig(fields.integer("vocab_size", 50400))
    decoder = StackConfig(embedding, (layer,) * fields.integer("n_layer", 28), final_norm=norm)
    positions = fields.integer("n_positions", 2048)
    return language_model(fields, hidden, decoder, positions, default_tied=False, logit_bias=True)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"transformer\.h\.(\d+)\.", r"decoder.layers.\1."
    return (
        *token_rules(model, r"transformer\.wte"),
        Rename(layer + r"ln_1\.(weight|bias)", ours + r"attention_norms.input.\2"),
        Rename(layer + r"attn\.q_proj\.weight", ours + "attention.query.weight"),
        Rename(layer + r"attn\.k_proj\.weight", ours + "attention.key.weight"),
        Rename(layer + r"attn\.v_proj\.weight", ours + "attention.value.weight"),
        Rename(layer + r"attn\.out_proj\.weight", ours + "attention.output.weight"),
        Constant(layer + r"attn\.embed_positions", "decoder.rotation"),
        Drop(layer + r"attn\.(?:bias|masked_bias)"),
        Rename(layer + r"mlp\.fc_in\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.fc_out\.(weight|bias)", ours + r"feed_forward.down.\2"),
        Rename(r"transformer\.ln_f\.(weight|bias)", r"decoder.final_norm.\1"),
    )


FAMILY = decoder_family(
    "gptj",
    "GPTJ",
    config,
    rules,
    tokens=False,
    prefix=r"transformer\.",
)
