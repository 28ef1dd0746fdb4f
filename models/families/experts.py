"""What families with a mixture of experts share: which layers have one, and the two ways its tensors are stored."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from models.config import ConfigError, FeedForwardConfig, LayerConfig, MixtureOfExpertsConfig, ModelConfig
from models.families.fields import Fields
from weights.rules import Rename, Rule, Step


def with_experts(model: ModelConfig, mixture: MixtureOfExpertsConfig, layers: Collection[int]) -> ModelConfig:
    """The same model, with a mixture in place of the feed-forward of some layers."""
    assert model.decoder is not None

    def mixed(index: int, layer: LayerConfig) -> LayerConfig:
        return replace(layer, feed_forward=mixture) if index in layers else layer

    changed = tuple(mixed(index, layer) for index, layer in enumerate(model.decoder.layers))
    return replace(model, decoder=replace(model.decoder, layers=changed))


def sparse_layers(fields: Fields, dense: Any, layers: int) -> list[int]:
    """Qwen's choice: every `decoder_sparse_step`-th layer but those that `mlp_only_layers` (`dense`) names."""
    step, dense = fields.integer("decoder_sparse_step", 1), [] if dense is None else dense
    if not isinstance(dense, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in dense):
        raise ConfigError("'mlp_only_layers' must be numbers of layers")
    return [index for index in range(layers) if (index + 1) % step == 0 and index not in dense]


def expert_rules(model: ModelConfig, part: str, gate: str, up: str, down: str) -> Sequence[Rule]:
    """Router and experts of every layer.

    part: what a layer calls its mixture, a regular expression. gate, up, down: the matrices of one expert, where each
    has tensors of its own; transformers keeps those of all experts in two, which its files may have as well.
    """
    assert model.decoder is not None
    mixtures = [
        layer.feed_forward for layer in model.decoder.layers if isinstance(layer.feed_forward, MixtureOfExpertsConfig)
    ]
    layer, ours = rf"model\.layers\.(\d+)\.{part}\.", r"decoder.layers.\1.feed_forward."
    experts = range(mixtures[0].num_experts if mixtures else 0)
    return (
        Rename(layer + r"gate\.weight", ours + "router.weight"),
        *(
            Rename(layer + rf"experts\.(\d+)\.{theirs}\.weight", ours + rf"experts.\2.{name}.weight")
            for theirs, name in ((gate, "gate"), (up, "up"), (down, "down"))
        ),
        Rule(
            layer + "experts\\.gate_up_proj",
            tuple(f"{ours}experts.{expert}.{name}.weight" for expert in experts for name in ("gate", "up")),
            (_apart(len(experts), 2),),
        ),
        Rule(
            layer + "experts\\.down_proj",
            tuple(f"{ours}experts.{expert}.down.weight" for expert in experts),
            (_apart(len(experts), 1),),
        ),
    )


def _apart(experts: int, matrices: int) -> Step:
    """[experts, matrices * out, in] to `experts * matrices` of [out, in]."""

    def step(tensors: Sequence[Any]) -> Sequence[Any]:
        (tensor,) = tensors
        if len(tensor.shape) != 3 or tensor.shape[0] != experts or tensor.shape[1] % matrices:
            raise ValueError("not one matrix for each expert")
        return [one for expert in tensor.unbind(0) for one in expert.chunk(matrices, 0)]

    return step


def gated_experts(fields: Fields, width: int) -> FeedForwardConfig:
    """One expert: gated, without biases."""
    return FeedForwardConfig(width, fields.activation("hidden_act", "silu"), gated=True, bias=False)
