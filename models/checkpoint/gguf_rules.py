"""Rules that map the tensor names of GGUF files to the names of the model. Most families share them. Imports no torch.

Sources: `gguf/constants.py` for the names, and `convert_hf_to_gguf.py` for the layouts, both of
https://github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from models.config import (
    FeedForwardSumConfig,
    LanguageModelHead,
    MixtureOfExpertsConfig,
    ModelConfig,
    QueryKeyNorm,
    StackConfig,
)
from models.families.shared.gguf import GgufFamily, fused_gate_rules, unstack
from weights.rules import Drop, LayoutChange, Rename, Rule, first_match, split

_FUSED = re.compile(r"blk\.(\d+)\.attn_qkv\.(weight|bias)")


def gguf_rules(model: ModelConfig, family: GgufFamily, stored: Collection[str]) -> Sequence[Rule]:
    """Rules for all tensors of a model in a GGUF file.

    family: its rules precede the common rules, and replace them for the tensor names that they match.
    stored: names of the tensors in the file.
    """
    stack, ours = (model.encoder, "encoder") if model.encoder is not None else (model.decoder, "decoder")
    assert stack is not None
    tokens = f"{ours}.embedding.tokens.weight"
    layer = rf"{ours}.layers.\1."
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    from_one = stack.final_norm is not None and stack.final_norm.kind == "rms_from_one"

    def norm(theirs: str, name: str) -> Rule:
        return Rule(theirs, (name,), (_minus_one,) if from_one else ())

    def block(theirs: str, name: str) -> Rule:
        return Rename(rf"blk\.(\d+)\.{theirs}\.(weight|bias)", rf"{layer}{name}.\2")

    names = {
        "attn_norm": "attention_norms.input",
        "attn_norm_2": "attention_norms.input",
        "ffn_norm": "feed_forward_norms.input",
        "post_attention_norm": "attention_norms.output",
        "post_ffw_norm": "feed_forward_norms.output",
        "attn_output_norm": "attention_norms.residual",
        "layer_output_norm": "feed_forward_norms.residual",
        **family.norms,
    }
    rules = (
        *family.rules(model),
        *(fused_gate_rules(model) if family.fused_gate and "blk.0.ffn_gate.weight" not in stored else ()),
        Rename(r"token_embd\.weight", tokens),
        Rename(r"position_embd\.weight", f"{ours}.embedding.positions.weight"),
        Rule(r"token_types\.weight", (f"{ours}.embedding.token_types.weight",), (_as_row,)),
        Rename(r"token_embd_norm\.(weight|bias)", rf"{ours}.embedding.norm.\1"),
        norm(r"output_norm\.(weight|bias)", rf"{ours}.final_norm.\1"),
        Rename(r"output\.weight", tokens if tied else "head.weight"),
        Rename(r"output\.bias", "head.bias"),
        *(norm(rf"blk\.(\d+)\.{theirs}\.(weight|bias)", rf"{layer}{name}.\2") for theirs, name in names.items()),
        block("attn_q", "attention.query"),
        block("attn_k", "attention.key"),
        block("attn_v", "attention.value"),
        *_rules_of_heads(stack, layer, norm),
        block("attn_output", "attention.output"),
        Rename(r"blk\.(\d+)\.attn_sinks\.weight", f"{layer}attention.sinks"),
        block("ffn_gate", "feed_forward.gate"),
        block("ffn_up", "feed_forward.up"),
        block("ffn_down", "feed_forward.down"),
        *_expert_rules(model, layer),
        Drop(r"rope_freqs\.weight|rope_factors_(?:long|short)\.weight|blk\.\d+\.attn_rot_embd\..*"),
    )
    return (*_fused_projection_rules(rules, stack, stored), *rules)


def _minus_one(tensors: Sequence[Any]) -> Sequence[Any]:
    """Subtract one from a norm's weight. Gemma's norms multiply by `1 + weight`, and GGUF files store that sum."""
    return [tensor - 1 for tensor in tensors]


def _fused_projection_rules(rules: Sequence[Rule], stack: StackConfig, stored: Collection[str]) -> Sequence[Rule]:
    """Rules for fused projections: tensors with the rows of the query, key and value projections of a layer, in order.

    Other files have three separate tensors instead. The rule of a fused tensor splits it and applies to each part the
    layout changes of the separate tensor, for example a new order of heads. The converter always fuses for some
    families, and with `--fuse-qkv` for others.

    rules: rules for the separate tensors. stored: names of the tensors in the file.
    """
    found: list[Rule] = []
    for name in stored:
        match = _FUSED.fullmatch(name)
        number = len(stack.layers) if match is None else int(match[1])
        attention = stack.layers[number].attention if number < len(stack.layers) else None
        if match is None or attention is None:
            continue
        parts = [first_match(rules, f"blk.{number}.attn_{part}.{match[2]}") for part in ("q", "k", "v")]
        names = [name for part in parts if part is not None for name in part[1]]
        changes = [part[0].changes for part in parts if part is not None]
        width, kv_width = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
        # The query rows may include the rows of an output gate, which is a separate parameter of the model.
        sizes = ((len(names) - 2) * width, kv_width, kv_width)
        found.append(Rule(re.escape(name), tuple(names), (_change_parts(sizes, changes),)))
    return found


def _change_parts(sizes: Sequence[int], changes: Sequence[Sequence[LayoutChange]]) -> LayoutChange:
    """Layout change that splits a tensor into parts with `sizes` rows, and applies each part's own layout changes."""

    def change(tensors: Sequence[Any]) -> Sequence[Any]:
        results: list[Any] = []
        for part, steps in zip(split(sizes)(tensors), changes, strict=True):
            changed: Sequence[Any] = [part]
            for step in steps:
                changed = step(changed)
            results += changed
        return results

    return change


def _rules_of_heads(stack: StackConfig, layer: str, norm: Callable[[str, str], Rule]) -> Sequence[Rule]:
    """Rules for the norms of queries and keys, which depend on the number of attention heads.

    Returns no rules for a stack in which no layer has attention.
    """
    attention = next(
        (layer_config.attention for layer_config in stack.layers if layer_config.attention is not None), None
    )
    if attention is None:
        return ()
    return (
        *_head_norms(layer, "attn_q_norm", "query_norm", attention.num_heads, attention.query_key_norm, norm),
        *_head_norms(layer, "attn_k_norm", "key_norm", attention.num_kv_heads, attention.query_key_norm, norm),
    )


def _head_norms(
    layer: str, theirs: str, ours: str, heads: int, config: QueryKeyNorm | None, norm: Callable[[str, str], Rule]
) -> Sequence[Rule]:
    """Rules for the norm of queries or keys.

    Either all heads share one weight, or the file's tensor has a row of weights for each head.
    theirs, ours: name of the norm in the file, and in the model. heads: number of heads.
    """
    if config is None or config.over != "own_head":
        return (norm(rf"blk\.(\d+)\.{theirs}\.(weight|bias)", rf"{layer}attention.{ours}.\2"),)
    names = tuple(rf"{layer}attention.{ours}.heads.{head}.weight" for head in range(heads))
    return (Rule(rf"blk\.(\d+)\.{theirs}\.weight", names, (_unbound,)),)


def _expert_rules(model: ModelConfig, layer: str) -> Sequence[Rule]:
    """Rules for mixtures of experts.

    A tensor contains the matrices of all experts of a layer; old files have one tensor per expert.
    """
    stack = model.decoder or model.encoder
    assert stack is not None
    kinds = [layer_config.feed_forward for layer_config in stack.layers]
    mixed = [kind.parts[1][0] for kind in kinds if isinstance(kind, FeedForwardSumConfig)]
    experts = next((kind.num_experts for kind in (*mixed, *kinds) if isinstance(kind, MixtureOfExpertsConfig)), 0)
    inside = f"{layer}feed_forward.{'parts.1.' if mixed else ''}"
    block, parts = r"blk\.(\d+)\.", ("gate", "up", "down")

    def stacked(name: str, names: Sequence[str], field: str, *steps: LayoutChange) -> Rule:
        """Rule for a tensor that contains a matrix, or a vector, of every expert for each of some parts."""
        ours = [f"{inside}experts.{expert}.{part}.{field}" for part in names for expert in range(experts)]
        return Rule(rf"{block}ffn_{name}_exps\.{field}", tuple(ours), steps)

    return (
        Rename(block + r"ffn_gate_inp\.(weight|bias)", inside + r"router.\2"),
        Rule(block + r"exp_probs_b(?:\.bias)?", (inside + "router.correction",), (_as_vector,)),
        Rule(block + r"ffn_gate_inp_shexp\.weight", (inside + "shared_gate.weight",), (_as_row,)),
        *(Rename(block + rf"ffn_{part}_shexp\.(weight|bias)", rf"{inside}shared.{part}.\2") for part in parts),
        *(Rename(block + rf"ffn_{part}\.(\d+)\.weight", rf"{inside}experts.\2.{part}.weight") for part in parts),
        *(stacked(part, (part,), "weight", unstack(experts)) for part in parts),
        *(stacked(part, (part,), "bias", _unbound) for part in parts),
        stacked("gate_up", ("gate", "up"), "weight", split(2, dim=1), unstack(experts)),
    )


def _unbound(tensors: Sequence[Any]) -> Sequence[Any]:
    """Divide a tensor into the entries of its first dimension."""
    return list(tensors[0].unbind(0))


def _as_vector(tensors: Sequence[Any]) -> Sequence[Any]:
    """Flatten tensors to vectors: some files store a vector as a matrix with one row."""
    return [tensor.flatten() for tensor in tensors]


def _as_row(tensors: Sequence[Any]) -> Sequence[Any]:
    """Reshape vectors to matrices with one row: GGUF files drop the first dimension of such a matrix."""
    return [tensor.unflatten(0, (1, -1)) if len(tensor.shape) == 1 else tensor for tensor in tensors]
