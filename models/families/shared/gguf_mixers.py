"""Rules for the tensors of mixers in GGUF files: state spaces, gated delta rule, short convolutions.

Layouts: the package `conversion` of https://github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models.config import GatedDeltaConfig
from weights.rules import LayoutChange, Rename, Rule, Split

LAYER, OURS = r"blk\.(\d+)\.", r"decoder.layers.\1.mixer."


def as_log(tensors: Sequence[Any]) -> Sequence[Any]:
    """The logarithm of decays, of which the files have the negative."""
    return [(-tensor).log().flatten() for tensor in tensors]


def flat(tensors: Sequence[Any]) -> Sequence[Any]:
    """Join all dimensions. The files have columns or matrices for some vectors."""
    return [tensor.flatten() for tensor in tensors]


def as_kernel(tensors: Sequence[Any]) -> Sequence[Any]:
    """Kernels of a convolution, one per channel: [channels, width] to [channels, 1, width]."""
    return [tensor.unflatten(0, (tensor.shape[0], 1)) for tensor in tensors]


def convolution_rule(theirs: str) -> Rule:
    """Rule for the weight of a mixer's convolution.

    theirs: regular expression for the tensor's name in the file, between the prefix of the layer and `.weight`.
    """
    return Rule(LAYER + rf"{theirs}\.weight", (OURS + "convolution.weight",), (as_kernel,))


def gguf_state_space_rules() -> Sequence[Rule]:
    """Rules for selective state spaces (Mamba-2)."""
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
    """Rules for gated short convolutions (LFM2)."""
    return (
        Rename(LAYER + r"shortconv\.in_proj\.(weight|bias)", OURS + r"input.\2"),
        convolution_rule(r"shortconv\.conv"),
        Rename(LAYER + r"shortconv\.conv\.bias", OURS + "convolution.bias"),
        Rename(LAYER + r"shortconv\.out_proj\.(weight|bias)", OURS + r"output.\2"),
    )


def gguf_gated_delta_rules(mixer: GatedDeltaConfig, *, reordered: bool) -> Sequence[Rule]:
    """Rules for the gated delta rule.

    reordered: whether the value heads of the file are in the order of Qwen3.5. Several value heads share one key head.
        The checkpoint has the value heads of one key head next to each other. The file has the first value head of each
        key head, then the second one of each, and so on.
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
    """Put the rows of the value heads of each key head together.

    keys: number of key heads. values: value heads of each key head. width: width of a value head.
    """

    def step(tensors: Sequence[Any]) -> Sequence[Any]:
        (tensor,) = tensors
        return [tensor.unflatten(0, (values, keys, width)).transpose(0, 1).flatten(0, 2)]

    return step


def _grouped_columns(keys: int, values: int, width: int) -> LayoutChange:
    """Put the columns of the value heads of each key head together. Arguments: see `_grouped_heads`."""
    order = [value * keys + key for key in range(keys) for value in range(values)]

    def step(tensors: Sequence[Any]) -> Sequence[Any]:
        (tensor,) = tensors
        if hasattr(tensor, "with_inputs"):  # a quantized matrix, which stays quantized
            return [tensor.with_inputs(order, width)]
        return [tensor.unflatten(1, (values, keys, width)).transpose(1, 2).flatten(1, 3)]

    return step
