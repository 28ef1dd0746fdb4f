"""Rules for the mixers of GGUF files, which replace attention: state spaces, gated delta rules, short convolutions.

Source of the layouts: the package `conversion` of https://github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models.config import GatedDeltaConfig
from weights.rules import LayoutChange, Rename, Rule, Split

LAYER, OURS = r"blk\.(\d+)\.", r"decoder.layers.\1.mixer."


def as_log(tensors: Sequence[Any]) -> Sequence[Any]:
    """Turn the stored negative decays into the logarithms of the decays, as a vector."""
    return [(-tensor).log().flatten() for tensor in tensors]


def flat(tensors: Sequence[Any]) -> Sequence[Any]:
    """Flatten tensors to vectors, because the files store some vectors as columns or matrices."""
    return [tensor.flatten() for tensor in tensors]


def as_kernel(tensors: Sequence[Any]) -> Sequence[Any]:
    """Reshape the kernels of a depthwise convolution from [channels, width] to [channels, 1, width]."""
    return [tensor.unflatten(0, (tensor.shape[0], 1)) for tensor in tensors]


def convolution_rule(theirs: str) -> Rule:
    """Rule for the weight of a mixer's convolution.

    theirs: regular expression for the part of the tensor's name between the layer's prefix and `.weight`.
    """
    return Rule(LAYER + rf"{theirs}\.weight", (OURS + "convolution.weight",), (as_kernel,))


def gguf_state_space_rules() -> Sequence[Rule]:
    """Rules for the tensors of selective state spaces (Mamba-2)."""
    return (
        Rename(LAYER + r"ssm_in\.(weight|bias)", OURS + r"input.\2"),
        convolution_rule("ssm_conv1d"),
        Rename(LAYER + r"ssm_conv1d\.bias", OURS + "convolution.bias"),
        Rule(LAYER + "ssm_a", (OURS + "log_decay",), (as_log,)),
        Rename(LAYER + r"ssm_dt\.bias", OURS + "time_step_bias"),
        Rule(LAYER + "ssm_d", (OURS + "skip",), (flat,)),
        Rule(LAYER + r"ssm_norm\.weight", (OURS + "norm.weight",), (flat,)),
        Rename(LAYER + r"ssm_out\.(weight|bias)", OURS + r"output.\2"),
    )


def gguf_short_convolution_rules() -> Sequence[Rule]:
    """Rules for the tensors of gated short convolutions (LFM2)."""
    return (
        Rename(LAYER + r"shortconv\.in_proj\.(weight|bias)", OURS + r"input.\2"),
        convolution_rule(r"shortconv\.conv"),
        Rename(LAYER + r"shortconv\.conv\.bias", OURS + "convolution.bias"),
        Rename(LAYER + r"shortconv\.out_proj\.(weight|bias)", OURS + r"output.\2"),
    )


def gguf_gated_delta_rules(mixer: GatedDeltaConfig, *, reordered: bool) -> Sequence[Rule]:
    """Rules for the tensors of the gated delta rule.

    Several value heads share one key head. In the model, the value heads of one key head are next to each other.

    mixer: configuration of the gated delta rule.
    reordered: whether the file has the first value head of every key head, then the second value head of every key
        head, and so on (Qwen3.5). If false, the file has the order of the model.
    """
    keys, values = mixer.num_key_heads, mixer.num_value_heads // mixer.num_key_heads
    width, qk = mixer.value_head_dim, 2 * mixer.key_width

    def heads(size: int) -> tuple[LayoutChange, ...]:
        return (_grouped_heads(keys, values, size),) if reordered and values > 1 else ()

    def inputs_and_values(tensors: Sequence[Any]) -> Sequence[Any]:
        (tensor,) = tensors
        query, key, value = tensor.split([mixer.key_width, mixer.key_width, mixer.value_width], 0)
        for step in heads(width):
            (value,) = step([value])
        return query, key, value

    def kernels(tensors: Sequence[Any]) -> Sequence[Any]:
        (tensor,) = tensors
        if not heads(width):
            return tensors
        (value,) = heads(width)[0]([tensor.narrow(0, qk, tensor.shape[0] - qk)])
        joined = tensor.clone()
        joined[qk:] = value
        return [joined]

    columns = (_grouped_columns(keys, values, width),) if reordered and values > 1 else ()
    return (
        Rule(
            LAYER + r"attn_qkv\.weight",
            tuple(f"{OURS}{part}.weight" for part in ("query", "key", "value")),
            (inputs_and_values,),
        ),
        Rule(LAYER + r"attn_gate\.weight", (OURS + "gate.weight",), heads(width)),
        Rule(LAYER + r"ssm_beta\.weight", (OURS + "beta.weight",), heads(1)),
        Rule(LAYER + r"ssm_alpha\.weight", (OURS + "decay.weight",), heads(1)),
        Split(LAYER + r"ssm_ba\.weight", (OURS + "beta.weight", OURS + "decay.weight"), groups=keys),
        Rule(LAYER + r"ssm_conv1d\.weight", (OURS + "convolution.weight",), (kernels, as_kernel)),
        Rule(LAYER + "ssm_a", (OURS + "log_decay",), (as_log, *heads(1))),
        Rule(LAYER + r"ssm_dt\.bias", (OURS + "decay_bias",), heads(1)),
        Rename(LAYER + r"ssm_norm\.weight", OURS + "norm.weight"),
        Rule(LAYER + r"ssm_out\.weight", (OURS + "output.weight",), columns),
    )


def _grouped_heads(keys: int, values: int, width: int) -> LayoutChange:
    """Layout change that reorders rows so that the value heads of each key head are next to each other.

    keys: number of key heads. values: number of value heads per key head. width: number of rows per value head.
    """

    def step(tensors: Sequence[Any]) -> Sequence[Any]:
        (tensor,) = tensors
        return [tensor.unflatten(0, (values, keys, width)).transpose(0, 1).flatten(0, 2)]

    return step


def _grouped_columns(keys: int, values: int, width: int) -> LayoutChange:
    """Layout change that reorders columns so that the value heads of each key head are next to each other.

    keys: number of key heads. values: number of value heads per key head. width: number of columns per value head.
    """
    order = [value * keys + key for key in range(keys) for value in range(values)]

    def step(tensors: Sequence[Any]) -> Sequence[Any]:
        (tensor,) = tensors
        if hasattr(tensor, "with_inputs"):  # a quantized matrix, which stays quantized
            return [tensor.with_inputs(order, width)]
        return [tensor.unflatten(1, (values, keys, width)).transpose(1, 2).flatten(1, 3)]

    return step
