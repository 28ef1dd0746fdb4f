"""Rules for experts whose matrices are in two tensors per layer, of shape [experts, in, out] (GPT-OSS, Llama 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig
from weights.rules import LayoutChange, Rule


def transposed_expert_rules(model: ModelConfig, part: str, *, interleaved: bool) -> Sequence[Rule]:
    """Rules that split the tensors of all experts into one matrix, and one bias, for each expert.

    MXFP4 checkpoints store the matrices as [experts, out, in], under names that end with `_blocks`.

    part: regular expression for the name of a layer's mixture of experts.
    interleaved: whether the output features of the gate matrix and of the up matrix alternate. If false, all output
        features of the gate matrix come first.
    """

    def change(experts: int, matrices: int, ending: str) -> LayoutChange:
        return by_expert(experts, matrices, transposed=ending == "", interleaved=interleaved)

    return _expert_rules(model, part, {"": "weight", "_blocks": "weight", "_bias": "bias"}, change)


def either_way_expert_rules(model: ModelConfig, part: str) -> Sequence[Rule]:
    """Rules for tensors that may be either [experts, in, out], as in published files, or [experts, out, in].

    The dimension that equals the hidden size tells the two layouts apart.

    part: regular expression for the name of a layer's mixture of experts.
    """

    def change(experts: int, matrices: int, ending: str) -> LayoutChange:
        # Gate and up matrix read the hidden states, the down matrix writes them.
        hidden_axis = 1 if matrices == 2 else 2

        def step(tensors: Sequence[Any]) -> Sequence[Any]:
            transposed = tensors[0].shape[hidden_axis] == model.hidden_size
            return by_expert(experts, matrices, transposed=transposed)(tensors)

        return step

    return _expert_rules(model, part, {"": "weight"}, change)


def _expert_rules(
    model: ModelConfig, part: str, endings: Mapping[str, str], change: Callable[[int, int, str], LayoutChange]
) -> Sequence[Rule]:
    """Rules for the two tensors with the matrices of a layer's experts, or for the two tensors with their biases.

    part: regular expression for the name of a layer's mixture of experts.
    endings: `weight` or `bias`, by the ending of the tensor's name.
    change: returns the layout change for a tensor. Its arguments are the number of experts, the number of matrices per
        expert in the tensor, and the ending of the tensor's name.
    """
    stack, side = (model.encoder, "encoder") if model.decoder is None else (model.decoder, "decoder")
    assert stack is not None
    mixtures = [layer.feed_forward for layer in stack.layers if isinstance(layer.feed_forward, MixtureOfExpertsConfig)]
    experts = mixtures[0].num_experts if mixtures else 0
    layer, ours = rf"model\.layers\.(\d+)\.{part}\.experts\.", rf"{side}.layers.\1.feed_forward.experts."
    return tuple(
        Rule(
            layer + name + ending,
            tuple(f"{ours}{expert}.{matrix}.{kind}" for matrix in matrices for expert in range(experts)),
            (change(experts, len(matrices), ending),),
        )
        for name, matrices in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",)))
        for ending, kind in endings.items()
    )


def by_expert(experts: int, matrices: int, *, transposed: bool = False, interleaved: bool = False) -> LayoutChange:
    """Layout change that splits [experts, matrices * out, ...] into one tensor [out, ...] per matrix and expert.

    The results are ordered by matrix, then by expert.

    transposed: whether the tensor is [experts, in, matrices * out] instead.
    interleaved: whether the output features of the matrices alternate.
    """

    def step(tensors: Sequence[Any]) -> Sequence[Any]:
        (tensor,) = tensors
        if transposed:
            tensor = tensor.transpose(1, 2)
        out, left_over = divmod(tensor.shape[1], matrices)
        if tensor.shape[0] != experts or left_over:
            raise ValueError("the first dimension is not the number of experts")
        if interleaved and matrices > 1:
            parts = [part.flatten(1, 2) for part in tensor.unflatten(1, (out, matrices)).split([1] * matrices, 2)]
        else:
            parts = list(tensor.split([out] * matrices, 1))
        return [part.narrow(0, expert, 1).flatten(0, 1) for part in parts for expert in range(experts)]

    return step
