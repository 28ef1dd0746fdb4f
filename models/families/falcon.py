"""Falcon (Almazrouei et al. 2023, arXiv:2311.16867): parallel attention and feed-forward, few key and value heads.

One tensor holds the projections of queries, keys and values, group by group: the query heads of a group, then the key
head and the value head that they share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    KeyAlibiConfig,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.alibi import bloom_slopes
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.gguf import GgufFamily, Settings, layer_eps, rotary_settings
from models.families.shared.language_model import language_model, token_rules
from models.families.shared.megatron_layers import megatron_layer_rules
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config, scaled_max_positions
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule

_CODE = PublishedCode("tiiuae", "falcon", "Falcon")


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, published_code=_CODE, defaults={"rope_theta": 10000.0})
    hidden, heads = fields.integer("hidden_size", 4544), fields.integer("num_attention_heads", 71)
    head_dim, bias = head_width(hidden, heads), fields.flag("bias", False)
    newer, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    if newer:
        fields.refuse_unless("parallel_attn", True)
        kv_heads = fields.integer("num_kv_heads", heads)
    else:
        fields.refuse_unless("num_ln_in_parallel_attn", 1)
        kv_heads = 1 if fields.flag("multi_query", True) else heads
    fields.refuse_unless("num_ln_in_parallel_attn", 1, 2)
    own_norm = not parallel or (newer and fields.integer("num_ln_in_parallel_attn", 2) == 2)
    norm = NormConfig("layer", fields.number("layer_norm_epsilon", 1e-5))
    rope = None if fields.flag("alibi", False) else rope_config(fields, head_dim)
    layer = LayerConfig(
        attention=AttentionConfig(heads, kv_heads, head_dim, head_dim**-0.5, True, bias, bias, bias, bias, rope),
        attention_norms=NormSlots(input=norm),
        feed_forward=FeedForwardConfig(
            fields.integer("ffn_hidden_size", 4 * hidden), fields.activation("activation", "gelu"), bias=bias
        ),
        feed_forward_norms=NormSlots(input=norm if own_norm else None),
        parallel=parallel,
    )
    lines = None if rope is not None else KeyAlibiConfig(bloom_slopes(heads), head_dim**-0.5)
    decoder = StackConfig(
        EmbeddingConfig(fields.integer("vocab_size", 65024)),
        (layer,) * fields.integer("num_hidden_layers", 32),
        final_norm=norm,
        score_bias=lines,
    )
    positions = fields.integer("max_position_embeddings", 2048)
    max_positions = positions if rope is None else scaled_max_positions(rope, positions)
    return language_model(fields, hidden, decoder, max_positions, default_tied=True)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    layer, ours = r"transformer\.h\.(\d+)\.", r"decoder.layers.\1."
    return (
        *token_rules(model, r"transformer\.word_embeddings"),
        *megatron_layer_rules(layer, "self_attention", model.decoder.first_attention),
        Rename(layer + r"ln_attn\.(weight|bias)", ours + r"attention_norms.input.\2"),
        Rename(layer + r"ln_mlp\.(weight|bias)", ours + r"feed_forward_norms.input.\2"),
        Rename(r"transformer\.ln_f\.(weight|bias)", r"decoder.final_norm.\1"),
    )


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    The numbers of key heads and of norms tell the variants apart. Falcon 7B has one key head. Falcon 40B has several
    key heads and two norms per layer; Falcon 2 has several key heads and one norm per layer.
    """
    kv_heads = of.integer("attention.head_count_kv", 1)
    return rotary_settings(
        of,
        model_type="falcon",
        layer_norm_epsilon=layer_eps(of),
        new_decoder_architecture=kv_heads > 1,
        num_kv_heads=kv_heads,
        multi_query=True,
        ffn_hidden_size=of.integer("feed_forward_length"),
        bias=of.has("blk.0.attn_qkv.bias"),
        **({"num_ln_in_parallel_attn": 2 if of.has("blk.0.attn_norm_2.weight") else 1} if kv_heads > 1 else {}),
    )


def _gguf_rules(model: ModelConfig) -> Sequence[Rule]:
    """Rules for GGUF files of models with parallel layers that have two norms; none for other models.

    In these files `attn_norm` is the input norm of the feed-forward, and `attn_norm_2` the input norm of attention.
    """
    assert model.decoder is not None
    layer = model.decoder.layers[0]
    if not layer.parallel or layer.feed_forward_norms.input is None:
        return ()
    return (Rename(r"blk\.(\d+)\.attn_norm\.(weight|bias)", r"decoder.layers.\1.feed_forward_norms.input.\2"),)


FAMILY = decoder_family(
    "falcon",
    "Falcon",
    config,
    rules,
    prefix=r"transformer\.",
    gguf=GgufFamily({"falcon": gguf_settings}, rules=_gguf_rules),
)
