"""Find served families that could load a checkpoint of an unknown type, for the message that refuses the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from models.checkpoint.expected_tensors import expected_tensors
from models.checkpoint.settings_files import read_settings
from models.config import ConfigError, MixtureOfExpertsConfig, ModelConfig
from models.families import FAMILIES
from models.families.shared.family import Family
from models.transformer import Transformer
from weights.errors import WeightsError
from weights.load import plan_load
from weights.read import open_checkpoint
from weights.rules import Rule, first_match
from weights.stored import Stored

_MAX_NAMED = 3
_MAX_BUILT = 12
"""Largest number of models that are built for one message. A build takes up to 0.1 s, and a refusal at most a few
seconds."""


def fitting_families(directory: Path) -> str:
    """The end of an error message, which names the families whose tensors have the names and shapes of a checkpoint.

    directory: directory of a checkpoint whose `model_type` is not served.
    Returns an empty text if no family fits. A family that fits may still compute something else than the checkpoint's
    published code.
    """
    hf = read_settings(directory, "config.json")
    if hf is None:
        return ""
    try:
        with open_checkpoint(directory) as stored:
            found = list(islice(_fitting(stored, hf), _MAX_NAMED + 1))
    except (WeightsError, OSError):
        return ""
    if not found:
        return ""
    names = ", ".join(repr(kind) for kind in found[:_MAX_NAMED])
    more = " and of more families" if len(found) > _MAX_NAMED else ""
    like = f"; its tensors have the names and shapes of {names}{more}"
    return f"{like}: write that 'model_type' if its code computes the same"


def _fitting(stored: Mapping[str, Stored], hf: Mapping[str, Any]) -> Iterator[str]:
    """Yield the types of the families that fit. Only the first `_MAX_BUILT` with a rule for each tensor are tried."""
    plain = {name: value for name, value in hf.items() if name not in ("auto_map", "architectures")}
    built = 0
    for kind, family in FAMILIES.items():
        architecture = _architecture(family, hf.get("architectures"))
        if architecture is None:
            continue
        named = _named(stored, {**plain, "model_type": kind}, family, architecture)
        if named is None:
            continue
        if _fits(stored, *named, family):
            yield kind
        built += 1
        if built == _MAX_BUILT:
            return


def _architecture(family: Family, named: Any) -> str | None:
    """The architecture of a family with the same head as the checkpoint's architecture; None if the family has none.

    named: `architectures` of the checkpoint's `config.json`. If it names no head, the family's first architecture is
        returned.
    """
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    _, found, head = first.rpartition("For")
    if not found:
        return next(iter(family.architectures))
    return next((name for name in family.architectures if name.rpartition("For")[1:] == (found, head)), None)


def _named(
    stored: Mapping[str, Stored], hf: Mapping[str, Any], family: Family, architecture: str
) -> tuple[ModelConfig, Sequence[Rule]] | None:
    """The configuration and the rules of an architecture that has a rule for each tensor of a checkpoint; else None.

    For most families the first tensor name already has no rule. A family with experts also does not fit a checkpoint
    without experts.
    """
    try:
        config = family.config(hf, architecture)
        rules = family.rules(config, hf, architecture)
    except (ConfigError, WeightsError):
        return None
    names: list[str] = []
    for name in stored:
        match = first_match(rules, name)
        if match is None:
            return None
        names += match[1]
    return (config, rules) if _has_experts(config) is any(".experts" in name for name in names) else None


def _has_experts(config: ModelConfig) -> bool:
    """Whether a layer has a mixture of experts. A model with experts takes long to build."""
    layers = [layer for stack in (config.encoder, config.decoder) if stack is not None for layer in stack.layers]
    return any(isinstance(getattr(layer, "feed_forward", None), MixtureOfExpertsConfig) for layer in layers)


def _fits(stored: Mapping[str, Stored], config: ModelConfig, rules: Sequence[Rule], family: Family) -> bool:
    """Whether a model with this configuration has exactly the stored tensors, by names and shapes. Reads no tensor."""
    try:
        with torch.device("meta"):
            transformer = Transformer(config)
        expected = expected_tensors(transformer, family, rules, stored)
        plan = plan_load(stored, rules, expected.shapes)
    except (ConfigError, WeightsError):
        return False
    return not (plan.missing or plan.unexpected or plan.misshapen)
