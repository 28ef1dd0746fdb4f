"""Trinity (Arcee AI 2025): gated attention, norms before and after each sublayer, and mixtures of experts.

Layers with a sliding window have rotary positions. By default every fourth layer has full attention and no positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig, QueryKeyNorm, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, layer_types, rms_eps, rotary_settings
from models.families.shared.mixture_of_experts import rotary_expert_rules
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    llama_decoder,
    rms_norm,
)
from models.families.shared.windows import patterned_windows
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule

_PUBLISHED = PublishedCode("arcee-ai", "afmoe", "Afmoe")
_DEFAULTS = {
    "vocab_size": 200192,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "max_position_embeddings": 16384,
    "moe_intermediate_size": 1408,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "num_shared_experts": 2,
    "num_dense_layers": 1,
    "route_scale": 1.0,
    "global_attn_every_n_layers": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, _PUBLISHED, defaults=_DEFAULTS)
    # The gate of the attention has no bias, even where the other projections have one.
    fields.refuse_unless("attention_bias", False)
    # The published code has these settings, transformers has their only published values.
    for name, only in (("score_func", "sigmoid"), ("route_norm", True), ("n_group", 1), ("topk_group", 1)):
        fields.refuse_unless(name, only)
    head_dim = head_dim_of(fields, fields.raw("head_dim", 128))
    rope, width = rope_config(fields, head_dim), fields.integer("moe_intermediate_size")
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields, width),
        num_experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(
            normalized=True, score="sigmoid", correction=True, epsilon=1e-20, scale=fields.positive("route_scale")
        ),
        shared=gated_feed_forward(fields, width * fields.integer("num_shared_experts")),
    )
    dense, first_sparse = gated_feed_forward(fields), fields.integer("num_dense_layers", least=0)
    sliding = fields.optional_integer("sliding_window", absent=1024)
    windows = patterned_windows(fields, sliding, "global_attn_every_n_layers")
    return llama_decoder(
        fields,
        [experts if index >= first_sparse else dense for index in range(len(windows))],
        windows=windows,
        ropes=[None if window is None else rope for window in windows],
        rope=rope,
        head_dim=head_dim,
        embedding_scale=fields.integer("hidden_size") ** 0.5 if fields.flag("mup_enabled", False) else 1.0,
        query_key_norm=QueryKeyNorm(rms_norm(fields)),
        norm_slots=("input", "output"),
        output_gate=True,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(layer + r"self_attn\.gate_proj\.weight", ours + "attention.gate.weight"),
        Rename(layer + r"pre_mlp_layernorm\.weight", ours + "feed_forward_norms.input.weight"),
        Rename(layer + r"post_mlp_layernorm\.weight", ours + "feed_forward_norms.output.weight"),
        Rename(layer + r"mlp\.router\.gate\.weight", ours + "feed_forward.router.weight"),
        Rename(layer + r"mlp\.expert_bias", ours + "feed_forward.router.correction"),
        *rotary_expert_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    The file does not state `mup_enabled`, which multiplies embeddings by the square root of their width. It is set to
    true, as in all published models.
    """
    return rotary_settings(
        of,
        model_type="afmoe",
        mup_enabled=True,
        sliding_window=of.integer("attention.sliding_window"),
        layer_types=layer_types(of),
        num_experts=of.integer("expert_count"),
        num_experts_per_tok=of.integer("expert_used_count"),
        num_shared_experts=of.integer("expert_shared_count"),
        moe_intermediate_size=of.integer("expert_feed_forward_length"),
        num_dense_layers=of.integer("leading_dense_block_count", 0),
        route_scale=of.number("expert_weights_scale", 1.0),
        **rms_eps(of),
    )


def _gguf_rules(model: ModelConfig) -> Sequence[Rule]:
    return (Rename(r"blk\.(\d+)\.attn_gate\.weight", r"decoder.layers.\1.attention.gate.weight"),)


FAMILY = decoder_family(
    "afmoe",
    "Afmoe",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"afmoe": gguf_settings}, rules=_gguf_rules),
)
