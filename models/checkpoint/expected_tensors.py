"""The tensors that a checkpoint must have for a model. Some may be absent, if the family has a default for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from models.families.shared.family import Family
from models.transformer import Transformer
from weights.rules import Rule, first_match


@dataclass(frozen=True)
class ExpectedTensors:
    """The parameters of a model, divided by where their values come from.

    shapes: shape of each parameter that the checkpoint must have.
    zero: shape of each parameter that is filled with zeros, because the checkpoint does not have it.
    tied: parameters that the checkpoint does not have; each name maps to the parameter with which it shares its tensor.
    """

    shapes: Mapping[str, tuple[int, ...]]
    zero: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]


def expected_tensors(
    transformer: Transformer, family: Family, rules: Sequence[Rule], stored: Iterable[str]
) -> ExpectedTensors:
    """Find out where the values of a model's parameters come from, by the names of the tensors in a checkpoint.

    transformer: may be on the meta device.
    rules: rules from the names in the checkpoint to the names in the model.
    stored: names in the checkpoint.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in transformer.named_parameters()}
    optional = family.zero_if_absent | family.tied_if_absent.keys()
    matches = [first_match(rules, name) for name in stored] if optional & shapes.keys() else []
    found = {target for match in matches if match is not None for target in match[1]}
    zero = {name: shapes.pop(name) for name in family.zero_if_absent & shapes.keys() - found}
    tied = {name: family.tied_if_absent[name] for name in family.tied_if_absent.keys() & shapes.keys() - found}
    for name in tied:
        del shapes[name]
    return ExpectedTensors(shapes, zero, tied)
