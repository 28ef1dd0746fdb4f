"""Rules for the tensor names of GGUF files, which most families share. Imports no torch.

Names: `gguf/constants.py` of https://github.com/ggml-org/llama.cpp. Layouts: its `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from models.config import LanguageModelHead, MixtureOfExpertsConfig, ModelConfig, QueryKeyNorm
from models.families.shared.gguf import GgufFamily
from weights.rules import Drop, LayoutChange, Rename, Rule, Split


def gguf_rules(model: ModelConfig, family: GgufFamily) -> Sequence[Rule]:
    """Rules for a model. family: its rules come first, so that they replace those of the same names."""
    stack, ours = (model.encoder, "encoder") if model.encoder is not None else (model.decoder, "decoder")
    assert stack is not None
    tokens = f"{ours}.embedding.tokens.weight"
    attention, layer = stack.first_attention, rf"{ours}.layers.\1."
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    width, kv_width = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
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
    }
    parts = [rf"{layer}attention.{part}" for part in ("query", "key", "value")]
    return (
        *family.rules(model),
        Rename(r"token_embd\.weight", tokens),
        Rename(r"position_embd\.weight", f"{ours}.embedding.positions.weight"),
        Rename(r"token_types\.weight", f"{ours}.embedding.token_types.weight"),
        Rename(r"token_embd_norm\.(weight|bias)", rf"{ours}.embedding.norm.\1"),
        norm(r"output_norm\.(weight|bias)", rf"{ours}.final_norm.\1"),
        Rename(r"output\.weight", tokens if tied else "head.weight"),
        Rename(r"output\.bias", "head.bias"),
        *(norm(rf"blk\.(\d+)\.{theirs}\.(weight|bias)", rf"{layer}{name}.\2") for theirs, name in names.items()),
        *_head_norms(layer, "attn_q_norm", "query_norm", attention.num_heads, attention.query_key_norm, norm),
        *_head_norms(layer, "attn_k_norm", "key_norm", attention.num_kv_heads, attention.query_key_norm, norm),
        block("attn_q", "attention.query"),
        block("attn_k", "attention.key"),
        block("attn_v", "attention.value"),
        *(
            Split(
                rf"blk\.(\d+)\.attn_qkv\.{part}", [f"{name}.{part}" for name in parts], 0, (width, kv_width, kv_width)
            )
            for part in ("weight", "bias")
        ),
        block("attn_output", "attention.output"),
        block("ffn_gate", "feed_forward.gate"),
        block("ffn_up", "feed_forward.up"),
        block("ffn_down", "feed_forward.down"),
        *_expert_rules(model, layer),
        Drop(r"rope_freqs\.weight|rope_factors_(?:long|short)\.weight|blk\.\d+\.attn_rot_embd\..*"),
    )


def _minus_one(tensors: Sequence[Any]) -> Sequence[Any]:
    """Subtract one: Gemma's norms multiply by one plus their weights, and GGUF files have the sum."""
    return [tensor - 1 for tensor in tensors]


def _head_norms(
    layer: str, theirs: str, ours: str, heads: int, config: QueryKeyNorm | None, norm: Callable[[str, str], Rule]
) -> Sequence[Rule]:
    """Rules for the norm of queries or keys: one weight, or a row of weights for each head."""
    if config is None or config.over != "own_head":
        return (norm(rf"blk\.(\d+)\.{theirs}\.(weight|bias)", rf"{layer}attention.{ours}.\2"),)
    names = tuple(rf"{layer}attention.{ours}.heads.{head}.weight" for head in range(heads))
    return (Rule(rf"blk\.(\d+)\.{theirs}\.weight", names, (lambda tensors: tensors[0].unbind(0),)),)


def _expert_rules(model: ModelConfig, layer: str) -> Sequence[Rule]:
    """Rules for mixtures of experts. One tensor holds a matrix of all experts; the first files had one per expert."""
    stack = model.decoder or model.encoder
    assert stack is not None
    kinds = (one.feed_forward for one in stack.layers)
    experts = next((kind.num_experts for kind in kinds if isinstance(kind, MixtureOfExpertsConfig)), 0)
    block, inside, parts = r"blk\.(\d+)\.", f"{layer}feed_forward.", ("gate", "up", "down")
    return (
        Rename(block + r"ffn_gate_inp\.(weight|bias)", inside + r"router.\2"),
        Rename(block + r"exp_probs_b(?:\.bias)?", inside + "router.correction"),
        Rule(block + r"ffn_gate_inp_shexp\.weight", (inside + "shared_gate.weight",), (_as_row,)),
        *(Rename(block + rf"ffn_{part}_shexp\.weight", f"{inside}shared.{part}.weight") for part in parts),
        *(Rename(block + rf"ffn_{part}\.(\d+)\.weight", rf"{inside}experts.\2.{part}.weight") for part in parts),
        *(
            Rule(
                block + rf"ffn_{part}_exps\.weight",
                tuple(f"{inside}experts.{expert}.{part}.weight" for expert in range(experts)),
                (_unstack(experts),),
            )
            for part in parts
        ),
    )


def _unstack(experts: int) -> LayoutChange:
    """Split [experts, out, in] into matrices [out, in]."""

    def step(tensors: Sequence[Any]) -> Sequence[Any]:
        (tensor,) = tensors
        if len(tensor.shape) != 3 or tensor.shape[0] != experts:
            raise ValueError("the first dimension is not the number of experts")
        return tensor.flatten(0, 1).split([tensor.shape[1]] * experts, 0)  # type: ignore[no-any-return]

    return step


def _as_row(tensors: Sequence[Any]) -> Sequence[Any]:
    """Reshape to a matrix: GGUF drops the first dimension of a matrix with one row."""
    return [tensor.unflatten(0, (1, -1)) if len(tensor.shape) == 1 else tensor for tensor in tensors]
