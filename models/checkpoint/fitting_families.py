"""Find served families whose tensors a checkpoint has under another name, for the message that refuses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from models.checkpoint.expected_tensors import expected_tensors
from models.checkpoint.settings_files import read_settings
from models.config import ConfigError
from models.families import FAMILIES
from models.families.shared.family import Family
from models.transformer import Transformer
from weights.errors import WeightsError
from weights.load import plan_load
from weights.read import open_checkpoint
from weights.rules import Rule, first_match
from weights.stored import Stored

_MAX_NAMED = 3


def fitting_families(directory: Path) -> str:
    """The end of a message that names the families whose tensors a checkpoint has; empty without any.

    directory: directory of a checkpoint whose `model_type` is not served.
    A fit by names and shapes does not mean that the published code computes the same.
    """
    hf = read_settings(directory, "config.json")
    if hf is None:
        return ""
    try:
        with open_checkpoint(directory) as stored:
            found = list(_fitting(stored, hf))
    except (WeightsError, OSError):
        return ""
    if not found:
        return ""
    names = ", ".join(repr(kind) for kind in found[:_MAX_NAMED])
    more = f" and of {len(found) - _MAX_NAMED} more families" if len(found) > _MAX_NAMED else ""
    like = f"; its tensors have the names and shapes of {names}{more}"
    return f"{like}: write that 'model_type' if its code computes the same"


def _fitting(stored: Mapping[str, Stored], hf: Mapping[str, Any]) -> Iterator[str]:
    plain = {name: value for name, value in hf.items() if name not in ("auto_map", "architectures")}
    for kind, family in FAMILIES.items():
        architecture = _architecture(family, hf.get("architectures"))
        if architecture is not None and _fits(stored, {**plain, "model_type": kind}, family, architecture):
            yield kind


def _architecture(family: Family, named: Any) -> str | None:
    """The architecture with the head that a checkpoint names, or None; the first one if it names no head."""
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    _, found, head = first.rpartition("For")
    if not found:
        return next(iter(family.architectures))
    return next((name for name in family.architectures if name.rpartition("For")[1:] == (found, head)), None)


def _fits(stored: Mapping[str, Stored], hf: Mapping[str, Any], family: Family, architecture: str) -> bool:
    """Whether a model of an architecture has exactly these tensors. Reads no tensor."""
    try:
        config = family.config(hf, architecture)
        rules = family.rules(config, hf, architecture)
        if not _all_named(stored, rules):
            return False
        with torch.device("meta"):
            transformer = Transformer(config)
        expected = expected_tensors(transformer, family, rules, stored)
        plan = plan_load(stored, rules, expected.shapes)
    except (ConfigError, WeightsError):
        return False
    return not (plan.missing or plan.unexpected or plan.misshapen)


def _all_named(stored: Mapping[str, Stored], rules: Sequence[Rule]) -> bool:
    """Whether each tensor has a rule. Most families fail at the first name, before a model is built."""
    return all(first_match(rules, name) is not None for name in stored)
