"""Tensor names of the layers of decoders that were trained with fairseq: OPT, XGLM, BioGPT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from weights.rules import Rename, Rule


def fairseq_layer_rules(decoder: str, norms: Literal["input", "residual"] = "input") -> Sequence[Rule]:
    """Rules for all layers of a decoder.

    decoder: regular expression, prefix of its tensors, without groups.
    norms: slot of the norm in each sublayer.
    """
    layer, ours = decoder + r"layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(layer + r"self_attn_layer_norm\.(weight|bias)", ours + rf"attention_norms.{norms}.\2"),
        Rename(layer + r"self_attn\.q_proj\.(weight|bias)", ours + r"attention.query.\2"),
        Rename(layer + r"self_attn\.k_proj\.(weight|bias)", ours + r"attention.key.\2"),
        Rename(layer + r"self_attn\.v_proj\.(weight|bias)", ours + r"attention.value.\2"),
        Rename(layer + r"self_attn\.out_proj\.(weight|bias)", ours + r"attention.output.\2"),
        Rename(layer + r"final_layer_norm\.(weight|bias)", ours + rf"feed_forward_norms.{norms}.\2"),
        Rename(layer + r"fc1\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"fc2\.(weight|bias)", ours + r"feed_forward.down.\2"),
    )
