"""The tensors that a checkpoint must have for a model. A family has defaults for some that may be absent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from models.families.shared.family import Family
from models.transformer import Transformer
from weights.rules import Rule, first_match


@dataclass(frozen=True)
class ExpectedTensors:
    """The parameters of a model by where they come from.

    shapes: shape of each parameter that the checkpoint must have.
    zero: shape of each parameter that is zero, because the checkpoint does not have it.
    tied: parameters that the checkpoint does not have, each with the name of the one that it is tied to.
    """

    shapes: Mapping[str, tuple[int, ...]]
    zero: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]


def expected_tensors(
    transformer: Transformer, family: Family, rules: Sequence[Rule], stored: Iterable[str]
) -> ExpectedTensors:
    """Compare the names in a checkpoint with the parameters of a model.

    transformer: may be on the meta device. rules: of the checkpoint. stored: names in the checkpoint.
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
