"""Mixtures of experts: which layers have one, and rules for the two ways in which checkpoints store the experts.

A checkpoint has either three matrices per expert, or two tensors per layer that stack the matrices of all experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ConfigError, FeedForwardConfig, MixtureOfExpertsConfig, ModelConfig, RouterConfig
from models.families.shared.fields import Fields
from models.families.shared.rotary_decoder import rotary_rules
from weights.rules import LayoutChange, Rename, Rule


def sparse_layers(fields: Fields) -> list[bool]:
    """Whether each layer of a Qwen model has experts.

    Every `decoder_sparse_step`-th layer has experts, unless `mlp_only_layers` lists the layer's index.
    """
    step, dense = fields.integer("decoder_sparse_step"), fields.integers("mlp_only_layers") or []
    layers = range(fields.integer("num_hidden_layers"))
    return [(index + 1) % step == 0 and index not in dense for index in layers]


def typed_feed_forwards(
    fields: Fields, dense: FeedForwardConfig, experts: MixtureOfExpertsConfig, dense_layers: int
) -> list[FeedForwardConfig | MixtureOfExpertsConfig]:
    """The feed-forward of each layer, by `mlp_layer_types`.

    dense: feed-forward of layers of type `dense`. experts: mixture of layers of type `sparse`.
    dense_layers: without the setting, the first `dense_layers` layers are dense and the others sparse.
    Raises ConfigError unless the setting has one of these types for each layer.
    """
    layers, types = fields.integer("num_hidden_layers"), fields.raw("mlp_layer_types")
    if types is None:
        types = ["dense" if index < dense_layers else "sparse" for index in range(layers)]
    if not isinstance(types, list) or len(types) != layers or any(kind not in ("dense", "sparse") for kind in types):
        raise ConfigError(f"'mlp_layer_types' must name dense or sparse for each of {layers} layers")
    return [experts if kind == "sparse" else dense for kind in types]


def corrected_router(fields: Fields) -> RouterConfig:
    """The router of DeepSeek-V3 (DeepSeek-AI 2024, arXiv:2412.19437).

    It has sigmoid scores and a correction per expert that affects only the choice. It first chooses some groups of
    experts, then experts from these groups.
    """
    groups = fields.integer("n_group")
    return RouterConfig(
        normalized=fields.flag("norm_topk_prob", True),
        score="sigmoid",
        correction=True,
        groups=groups,
        groups_per_token=fields.integer("topk_group"),
        group_members=1 if groups == 1 else 2,
        epsilon=1e-20,
        scale=fields.positive("routed_scaling_factor"),
    )


def rotary_expert_rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    """Rules for the tensor names of LLaMA, with mixtures of experts in the place of feed-forward networks."""
    return (*expert_rules(model), *rotary_rules(model, hf, architecture))


def mixtral_rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    """Rules for the tensor names of Mixtral, which names the matrices of an expert w1 (gate), w3 (up) and w2 (down)."""
    experts = expert_rules(model, r"(?:block_sparse_moe|mlp)", ("w1", "w3", "w2"))
    return (*experts, *rotary_rules(model, hf, architecture))


def expert_rules(
    model: ModelConfig, part: str = "mlp", matrices: Sequence[str] = ("gate_proj", "up_proj", "down_proj")
) -> Sequence[Rule]:
    """Rules for the tensors of the router, the experts and the shared expert.

    The experts may be stored as three matrices per expert, or as two tensors per layer that stack them.

    part: regular expression for the name of a layer's mixture of experts.
    matrices: names of an expert's matrices (gate, up, down) in files with one tensor per matrix.
    """
    layer, ours = rf"model\.layers\.(\d+)\.{part}\.", r"decoder.layers.\1.feed_forward."
    return (
        Rename(layer + r"(?:gate|router)\.(weight|bias)", ours + r"router.\2"),
        Rename(layer + r"gate\.e_score_correction_bias", ours + "router.correction"),
        Rename(layer + r"shared_experts?\.(gate|up|down)_proj\.(weight|bias)", ours + r"shared.\2.\3"),
        Rename(layer + r"shared_expert_gate\.weight", ours + "shared_gate.weight"),
        *(
            Rename(layer + rf"experts\.(\d+)\.{theirs}\.weight", ours + rf"experts.\2.{name}.weight")
            for theirs, name in zip(matrices, ("gate", "up", "down"), strict=True)
        ),
        *stacked_expert_rules(model, part, gate_up=r"experts\.gate_up_proj", down=r"experts\.down_proj"),
    )


def stacked_expert_rules(model: ModelConfig, part: str, gate_up: str, down: str) -> Sequence[Rule]:
    """Rules for two tensors per layer that stack the matrices of all experts: one with gate and up, one with down.

    part: regular expression for the name of a layer's mixture of experts.
    gate_up, down: regular expressions for the names of the two tensors inside it.
    """
    assert model.decoder is not None
    mixtures = [
        layer.feed_forward for layer in model.decoder.layers if isinstance(layer.feed_forward, MixtureOfExpertsConfig)
    ]
    layer, ours = rf"model\.layers\.(\d+)\.{part}\.", r"decoder.layers.\1.feed_forward."
    experts = range(mixtures[0].num_experts if mixtures else 0)
    return (
        Rule(
            layer + gate_up,
            tuple(f"{ours}experts.{expert}.{name}.weight" for expert in experts for name in ("gate", "up")),
            (unstack(len(experts), 2),),
        ),
        Rule(
            layer + down,
            tuple(f"{ours}experts.{expert}.down.weight" for expert in experts),
            (unstack(len(experts), 1),),
        ),
    )


def unstack(experts: int, matrices: int) -> LayoutChange:
    """Layout change that splits a tensor [experts, matrices * out, in] into experts * matrices tensors [out, in].

    The results are ordered by expert, then by matrix.
    """

    def step(tensors: Sequence[Any]) -> Sequence[Any]:
        (tensor,) = tensors
        if len(tensor.shape) != 3 or tensor.shape[0] != experts or tensor.shape[1] % matrices:
            raise ValueError("the first dimension is not the number of experts")
        rows = tensor.shape[1] // matrices
        return list(tensor.flatten(0, 1).split([rows] * (experts * matrices), 0))

    return step
