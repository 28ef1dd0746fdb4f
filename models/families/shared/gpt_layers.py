"""Rules for the layer tensors of GPT and GPT-2.

One tensor holds the projections of queries, keys and values. Matrices have the shape [in, out].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from weights.rules import Drop, Rename, Rule, Split, Transpose, split, transpose


def layer_rules(norms: Literal["input", "residual"]) -> Sequence[Rule]:
    """Rules for the layer tensors of GPT and GPT-2.

    norms: slot of `NormSlots` with the norms: `input` for pre-norm (GPT-2), `residual` for post-norm (GPT).
    """
    layer, ours = r"(?:transformer\.)?h\.(\d+)\.", r"decoder.layers.\1."
    fused = [rf"{ours}attention.{part}" for part in ("query", "key", "value")]
    return (
        Rename(layer + r"ln_1\.(weight|bias)", ours + rf"attention_norms.{norms}.\2"),
        Rule(layer + r"attn\.c_attn\.weight", tuple(f"{name}.weight" for name in fused), (transpose, split(3))),
        Split(layer + r"attn\.c_attn\.bias", [f"{name}.bias" for name in fused]),
        Transpose(layer + r"attn\.c_proj\.weight", ours + "attention.output.weight"),
        Rename(layer + r"attn\.c_proj\.bias", ours + "attention.output.bias"),
        Rename(layer + r"ln_2\.(weight|bias)", ours + rf"feed_forward_norms.{norms}.\2"),
        Transpose(layer + r"mlp\.c_fc\.weight", ours + "feed_forward.up.weight"),
        Rename(layer + r"mlp\.c_fc\.bias", ours + "feed_forward.up.bias"),
        Transpose(layer + r"mlp\.c_proj\.weight", ours + "feed_forward.down.weight"),
        Rename(layer + r"mlp\.c_proj\.bias", ours + "feed_forward.down.bias"),
        Drop(layer + r"attn\.(?:bias|masked_bias)"),
    )
