"""Tensor names in decoders that were trained with Megatron: BLOOM, Falcon, GPT-NeoX, Persimmon, StarCoder."""

from __future__ import annotations

from collections.abc import Sequence

from models.config import AttentionConfig
from weights.rules import Rename, Rule, Split


def fused_projection_rules(fused: str, ours: str, attention: AttentionConfig) -> Sequence[Rule]:
    """Rules for one tensor that holds the projections of queries, keys and values.

    The tensor has one key-value head after another, each preceded by the query heads that use it.

    fused: regular expression for the tensor's name, without `.weight`. ours: name of the attention in the model.
    """
    queries = attention.num_heads // attention.num_kv_heads * attention.head_dim
    return tuple(
        Split(
            rf"{fused}\.{part}",
            [f"{ours}.{name}.{part}" for name in ("query", "key", "value")],
            sizes=(queries, attention.head_dim, attention.head_dim),
            groups=attention.num_kv_heads,
        )
        for part in ("weight", "bias")
    )


def megatron_layer_rules(layer: str, module: str, attention: AttentionConfig) -> Sequence[Rule]:
    """Rules for the layer tensors of a decoder with the names of Megatron.

    layer: regular expression for the prefix of a layer's tensor names. Its only group is the index of the layer.
    module: name of the attention in the checkpoint.
    attention: configuration of attention. Its numbers of heads tell how to split the fused projection.
    """
    ours = r"decoder.layers.\1."
    return (
        Rename(layer + r"input_layernorm\.(weight|bias)", ours + r"attention_norms.input.\2"),
        *fused_projection_rules(layer + rf"{module}\.query_key_value", ours + "attention", attention),
        Rename(layer + rf"{module}\.dense\.(weight|bias)", ours + r"attention.output.\2"),
        Rename(layer + r"post_attention_layernorm\.(weight|bias)", ours + r"feed_forward_norms.input.\2"),
        Rename(layer + r"mlp\.dense_h_to_4h\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.dense_4h_to_h\.(weight|bias)", ours + r"feed_forward.down.\2"),
    )
