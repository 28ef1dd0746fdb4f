"""Mixtures of experts of Granite, with an optional shared expert, which processes every token."""

from __future__ import annotations

from collections.abc import Sequence

from models.config import MixtureOfExpertsConfig, ModelConfig, RouterConfig
from models.families.shared.fields import Fields
from models.families.shared.mixture_of_experts import stacked_expert_rules
from models.families.shared.rotary_decoder import gated_feed_forward
from weights.rules import Rename, Rule, Split


def granite_experts(fields: Fields) -> MixtureOfExpertsConfig:
    """The mixture of experts of every layer. It has no shared expert if `shared_intermediate_size` is 0.

    fields: settings with defaults for all sizes that `config.json` may leave out.
    """
    shared = fields.integer("shared_intermediate_size", least=0)
    return MixtureOfExpertsConfig(
        gated_feed_forward(fields),
        num_experts=fields.integer("num_local_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=RouterConfig(normalized=True),
        shared=gated_feed_forward(fields, shared) if shared else None,
    )


def granite_expert_rules(model: ModelConfig) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1.feed_forward."
    return (
        Split(layer + r"shared_mlp\.input_linear\.weight", (ours + "shared.gate.weight", ours + "shared.up.weight")),
        Rename(layer + r"shared_mlp\.output_linear\.weight", ours + "shared.down.weight"),
        # Published files have the first names, the modules of transformers the second.
        Rename(layer + r"block_sparse_moe\.router\.(?:layer\.)?weight", ours + "router.weight"),
        *stacked_expert_rules(
            model,
            "block_sparse_moe",
            gate_up=r"(?:input_linear\.weight|experts\.gate_up_proj)",
            down=r"(?:output_linear\.weight|experts\.down_proj)",
        ),
    )
