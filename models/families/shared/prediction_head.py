"""Heads for multi-token prediction: their configuration, and the rules for their tensors.

A checkpoint stores such a head as an additional layer after the decoder layers (DeepSeek-V3, GLM-4.5), or under names
that start with `mtp` (Qwen3-Next). Both compute the same. Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from models.config import ModelConfig
from models.config.draft_head import PredictionHeadConfig
from models.families.shared.fields import Fields
from weights.rules import Drop, Rename, Rule, Split

LAYER = r"model\.layers\.(\d+)\."
"""Start of the patterns in a family's rules for layers. Its only group matches the index of the layer."""
Rules = Callable[[ModelConfig, Mapping[str, Any], str], Sequence[Rule]]


@dataclass(frozen=True)
class PredictionHead:
    """The head for multi-token prediction of a checkpoint.

    marker: name of a tensor in the checkpoint. A checkpoint without this tensor has no head.
    rules: rules for the tensors of the head. They ignore all other tensors.
    """

    config: PredictionHeadConfig
    marker: str
    rules: tuple[Rule, ...]


def layer_after_the_last(
    rules: Rules, output_norm: str = r"shared_head\.norm"
) -> Callable[[ModelConfig, Mapping[str, Any], str], PredictionHead | None]:
    """Return a function that describes a head which a checkpoint stores as a layer after the last decoder layer.

    rules: the family's rules for its layers. output_norm: regular expression for the name of the norm after the layer.
    """

    def head(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> PredictionHead | None:
        assert model.decoder is not None
        prefix = rf"model\.layers\.{len(model.decoder.layers)}\."
        names = {"enorm": "token_norm", "hnorm": "state_norm"}
        return _head(model, rules(model, hf, architecture), prefix, prefix, names, "eh_proj", output_norm)

    return head


def named_mtp(rules: Rules) -> Callable[[ModelConfig, Mapping[str, Any], str], PredictionHead | None]:
    """Return a function that describes a head whose tensor names start with `mtp`.

    The function raises ConfigError if the settings say that the head has a separate token table.

    rules: the family's rules for its layers.
    """

    def head(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> PredictionHead | None:
        own = hf.get("text_config") if isinstance(hf.get("text_config"), dict) else hf
        assert own is not None
        Fields({"mtp_use_dedicated_embeddings": own.get("mtp_use_dedicated_embeddings")}).refuse_unless(
            "mtp_use_dedicated_embeddings", False
        )
        names = {"pre_fc_norm_embedding": "token_norm", "pre_fc_norm_hidden": "state_norm"}
        # Multimodal checkpoints name their layers `model.language_model`, but not their heads.
        layers = [
            replace(rule, pattern=rule.pattern.replace(r"model\.language_model\.", r"model\.", 1))
            for rule in rules(model, hf, architecture)
        ]
        return _head(model, layers, r"mtp\.", r"mtp\.layers\.0\.", names, "fc", "norm")

    return head


def _head(
    model: ModelConfig,
    rules: Sequence[Rule],
    prefix: str,
    layer: str,
    norms: Mapping[str, str],
    projection: str,
    output_norm: str,
) -> PredictionHead | None:
    """Describe a head. Its layer is configured like the last layer of the model that has attention.

    Returns None for a model without attention, whose head cannot be known.

    rules: rules for the layers of the model.
    prefix: regular expression with which the names of the head's tensors start.
    layer: regular expression with which the names of the tensors in the head's layer start.
    norms: for the norms of token vectors and of hidden states, the name in the model by the name in the checkpoint.
    projection, output_norm: names in the checkpoint of the projection and of the norm after the layer.
    """
    assert model.decoder is not None and model.decoder.final_norm is not None
    last = next((layer for layer in reversed(model.decoder.layers) if layer.attention is not None), None)
    if last is None:
        return None
    config = PredictionHeadConfig(model.vocab_size, model.hidden_size, last, model.decoder.final_norm)
    ours = "decoder.inputs."
    return PredictionHead(
        config,
        re.sub(r"\\", "", prefix) + f"{projection}.weight",
        (
            *(Rename(rf"{prefix}{name}\.weight", f"{ours}{norm}.weight") for name, norm in norms.items()),
            Split(
                rf"{prefix}{projection}\.weight",
                [f"{ours}{name}_projection.weight" for name in ("token", "state")],
                dim=1,
            ),
            Rename(rf"{prefix}{output_norm}\.weight", "decoder.final_norm.weight"),
            *_of_layer(rules, layer),
            # The tensors of the model, further heads, and copies of the token table and of the output head.
            Drop(".*"),
        ),
    )


def _of_layer(rules: Sequence[Rule], layer: str) -> list[Rule]:
    """Turn rules for all layers of a model into rules for the only layer of a head.

    rules: rules of the model. Rules whose patterns do not start with `LAYER` are left out.
    layer: regular expression without groups for the start of the names in the head's layer.
    """
    found = []
    for rule in rules:
        if rule.pattern.startswith(LAYER) and rule.names:
            names = tuple(re.sub(r"\\(\d+)", _next_group, name) for name in rule.names)
            found.append(replace(rule, pattern=layer + rule.pattern.removeprefix(LAYER), names=names))
    return found


def _next_group(match: re.Match[str]) -> str:
    """Replacement for a reference to a group, such as `\\1`, in a name of a rule without a group for the layer.

    The reference to group 1, the index of the layer, becomes `0`. A reference to a later group becomes the reference to
    the group before it.
    """
    number = int(match[1])
    return "0" if number == 1 else rf"\{number - 1}"
