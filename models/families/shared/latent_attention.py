"""Decoders with latent attention and, from some layer on, a mixture of experts (DeepSeek-V2 and later)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    FeedForwardConfig,
    LatentAttentionConfig,
    LayerConfig,
    MixtureOfExpertsConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    QueryScale,
    RopeConfig,
    RouterConfig,
)
from models.families.shared.fields import Fields
from models.families.shared.gguf import Settings, has_bias, num_experts, rms_eps, routed_experts, unstack
from models.families.shared.mixture_of_experts import rotary_expert_rules
from models.families.shared.rotary_decoder import gated_feed_forward
from weights.gguf.metadata import Metadata
from weights.gguf.rope import rope_scaling
from weights.rules import Drop, LayoutChange, Rename, Rule

_SIGMOID = 2
"""Value of `expert_gating_func` in GGUF files for routers with sigmoid scores."""
_DIGITS_OF_SCALE = 6
_LATENT_NORM = NormConfig("rms", 1e-6, bias=False)
"""Norm of the latent vectors. Its epsilon is fixed in the published code and does not follow `rms_norm_eps`."""


def latent_layers(
    fields: Fields,
    rope: RopeConfig,
    norm: NormConfig,
    router: RouterConfig,
    query_scale: QueryScale | None = None,
    *,
    default_query_rank: int,
) -> list[LayerConfig]:
    """All layers of a decoder. The first `first_k_dense_replace` layers are dense, later layers have experts.

    fields: settings with defaults for all sizes that `config.json` may leave out.
    rope: rotary positions of the part of queries and keys that has positions.
    norm: norm before each sublayer.
    router: router of the experts.
    query_scale: scale of queries by position, None for unscaled queries.
    default_query_rank: width of the latent vector of queries if the file has no `q_lora_rank`.
    """
    fields.refuse_unless("mlp_bias", False)
    dense_layers = fields.integer("first_k_dense_replace", least=0)
    attention = latent_attention(fields, rope, query_scale, default_query_rank=default_query_rank)
    dense = gated_feed_forward(fields)
    expert_size = fields.integer("moe_intermediate_size")
    shared = fields.integer("n_shared_experts")
    mixture = MixtureOfExpertsConfig(
        gated_feed_forward(fields, expert_size),
        num_experts=fields.integer("n_routed_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=router,
        shared=gated_feed_forward(fields, shared * expert_size),
    )
    norms = NormSlots(input=norm)

    def layer(feed_forward: FeedForwardConfig | MixtureOfExpertsConfig) -> LayerConfig:
        return LayerConfig(attention, norms, feed_forward, norms)

    layers = range(fields.integer("num_hidden_layers"))
    return [layer(dense if index < dense_layers else mixture) for index in layers]


def latent_attention(
    fields: Fields, rope: RopeConfig, query_scale: QueryScale | None = None, *, default_query_rank: int
) -> LatentAttentionConfig:
    """Configuration of latent attention, the same in every layer.

    fields: settings with defaults for all sizes that `config.json` may leave out.
    rope: rotary positions of the part of queries and keys that has positions.
    query_scale: scale of queries by position, None for unscaled queries.
    default_query_rank: width of the latent vector of queries if the file has no `q_lora_rank`. Null in the file means
        that queries are projected without a latent vector.
    """
    heads = fields.integer("num_attention_heads")
    # The published code computes keys and values for each query head.
    fields.refuse_unless("num_key_value_heads", heads)
    latent_dim, plain_dim = fields.integer("kv_lora_rank"), fields.integer("qk_nope_head_dim")
    bias = fields.flag("attention_bias", False)
    return LatentAttentionConfig(
        num_heads=heads,
        num_kv_heads=1,
        head_dim=rope.dim + latent_dim,
        scale=(plain_dim + rope.dim) ** -0.5 * _score_factor(fields),
        causal=True,
        query_bias=False,
        output_bias=bias,
        rope=rope,
        query_scale=query_scale,
        latent_dim=latent_dim,
        plain_dim=plain_dim,
        value_dim=fields.integer("v_head_dim"),
        query_rank=fields.optional_integer("q_lora_rank", absent=default_query_rank),
        norm=_LATENT_NORM,
        down_bias=bias,
    )


def _score_factor(fields: Fields) -> float:
    """Factor of the attention scores, from `mscale_all_dim`; 1 without scaled positions or without this setting.

    Source: published code of DeepSeek-V2.
    """
    settings = fields.raw("rope_scaling") or fields.raw("rope_parameters") or {}
    if settings.get("rope_type", settings.get("type", "default")) == "default" or not settings.get("mscale_all_dim"):
        return 1.0
    inner = Fields(settings)
    factor = inner.positive("factor")
    return 1.0 if factor <= 1 else (0.1 * inner.positive("mscale_all_dim") * math.log(factor) + 1.0) ** 2


def latent_rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    """Rules for a decoder with the tensor names of LLaMA, latent attention and, in some layers, experts."""
    assert model.decoder is not None
    attention = model.decoder.first_attention
    assert isinstance(attention, LatentAttentionConfig)
    heads = range(attention.num_heads)
    layer, ours = r"model\.layers\.(\d+)\.self_attn\.", r"decoder.layers.\1.attention."
    return (
        Rename(layer + r"q_a_proj\.(weight|bias)", ours + r"query_down.\2"),
        Rename(layer + r"q_a_layernorm\.weight", ours + "query_down_norm.weight"),
        Rename(layer + r"q_b_proj\.weight", ours + "query.weight"),
        Rename(layer + r"kv_a_proj_with_mqa\.(weight|bias)", ours + r"key_down.\2"),
        Rename(layer + r"kv_a_layernorm\.weight", ours + "key_norm.weight"),
        Rule(
            layer + r"kv_b_proj\.weight",
            tuple(f"{ours}{part}_heads.{head}.weight" for part in ("key", "value") for head in heads),
            (_by_head(attention.num_heads, attention.plain_dim, attention.value_dim),),
        ),
        *rotary_expert_rules(model, hf, architecture),
    )


def _by_head(heads: int, plain: int, value: int) -> LayoutChange:
    """Layout change that splits [heads * (plain + value), latent] into one key and one value matrix per head.

    First come the key matrices [latent, plain] of all heads, then the value matrices [value, latent].

    plain: width of the part of a key that has no positions. value: width of a value.
    """

    def step(tensors: Sequence[Any]) -> Sequence[Any]:
        (tensor,) = tensors
        keys, values = tensor.unflatten(0, (heads, plain + value)).split([plain, value], 1)
        parts = [[part.narrow(0, head, 1).flatten(0, 1) for head in range(heads)] for part in (keys, values)]
        return [*(key.transpose(0, 1) for key in parts[0]), *parts[1]]

    return step


def later_layers(model: ModelConfig, count: int) -> Rule:
    """Rule that drops the layers for multi-token prediction, which a checkpoint stores after its decoder layers.

    count: number of layers to drop.
    """
    assert model.decoder is not None
    first = len(model.decoder.layers)
    numbers = "|".join(str(first + index) for index in range(count))
    return Drop(rf"model\.layers\.(?:{numbers or 'none'})\..*")


# ---------------------------------------------------------------------------------------------------------- GGUF files


def latent_gguf_settings(of: Metadata, **more: Any) -> Settings:
    """Translate the metadata of a GGUF file to the settings of a `config.json`, for a decoder with latent attention.

    more: settings to add, or to replace those from the metadata.

    Newer files store the projections of keys and values in separate tensors. Their metadata describes one key-value
    head, as wide as the latent vector; the width of a real head is in the keys that end with `_mla`.
    """
    rank, rotating = of.integer("attention.kv_lora_rank"), of.integer("rope.dimension_count")
    keys = of.integer("attention.key_length_mla", of.integer("attention.key_length"))
    query_rank, heads = of.optional("attention.q_lora_rank"), of.integer("attention.head_count")
    values = of.gguf.tensors["blk.0.attn_output.weight"].shape[-1] // heads if of.has("blk.0.attn_output.weight") else 0
    scaling = rope_scaling(of)
    if scaling is not None and of.optional("rope.scaling.yarn_log_multiplier") is not None:
        # The file has a tenth of `mscale_all_dim`. `mscale` is the same in all published models.
        scale = round(10 * of.number("rope.scaling.yarn_log_multiplier"), _DIGITS_OF_SCALE)
        scaling = {**scaling, "mscale": scale, "mscale_all_dim": scale}
    return {
        "vocab_size": of.rows("token_embd.weight"),
        "hidden_size": of.integer("embedding_length"),
        "num_hidden_layers": of.layers,
        "intermediate_size": of.integer("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": of.integer("context_length"),
        "tie_word_embeddings": not of.has("output.weight"),
        "attention_bias": has_bias(of, "attn_kv_a_mqa"),
        "q_lora_rank": query_rank,
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rotating,
        "qk_nope_head_dim": keys - rotating,
        "v_head_dim": values,
        "rope_theta": of.number("rope.freq_base", 10000.0),
        **({"rope_scaling": scaling} if scaling else {}),
        **(routed_experts(of) if num_experts(of) else {}),
        **rms_eps(of),
        **more,
    }


def is_corrected(of: Metadata) -> bool:
    """Whether a GGUF file has the router of DeepSeek-V3.

    This router has sigmoid scores, and a correction per expert that affects only which experts are chosen.
    """
    sigmoid = of.optional("expert_gating_func") == _SIGMOID
    return num_experts(of) > 0 and (sigmoid or bool(of.layers_with("exp_probs_b.bias")))


def latent_gguf_rules(model: ModelConfig) -> Sequence[Rule]:
    """Rules for the tensors of latent attention in GGUF files."""
    assert model.decoder is not None
    attention = model.decoder.first_attention
    assert isinstance(attention, LatentAttentionConfig)
    heads, layer, ours = range(attention.num_heads), r"blk\.(\d+)\.attn_", r"decoder.layers.\1.attention."
    names = {part: tuple(f"{ours}{part}_heads.{head}.weight" for head in heads) for part in ("key", "value")}
    return (
        Rename(layer + r"q_a\.(weight|bias)", ours + r"query_down.\2"),
        Rename(layer + r"q_a_norm\.weight", ours + "query_down_norm.weight"),
        Rename(layer + r"q_b\.weight", ours + "query.weight"),
        Rename(layer + r"kv_a_mqa\.(weight|bias)", ours + r"key_down.\2"),
        Rename(layer + r"kv_a_norm\.weight", ours + "key_norm.weight"),
        Rule(layer + r"k_b\.weight", names["key"], (unstack(attention.num_heads),)),
        Rule(layer + r"v_b\.weight", names["value"], (unstack(attention.num_heads),)),
        Rule(
            layer + r"kv_b\.weight",
            (*names["key"], *names["value"]),
            (_by_head(attention.num_heads, attention.plain_dim, attention.value_dim),),
        ),
    )
