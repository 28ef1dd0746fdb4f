"""How a checkpoint's names and layouts become ours: a table of rules, read from the top.

A rule is a pattern over the checkpoint's names, the names its tensors get here, and the steps between. The first rule
whose pattern matches a whole name wins; a name that no rule matches is unexpected. A GPT-2 table reads like this:

    (
        Rename(r"wte\\.weight", "decoder.embedding.tokens.weight"),
        Transpose(r"h\\.(\\d+)\\.mlp\\.c_fc\\.weight", r"decoder.layers.\\1.feed_forward.up.weight"),
        Rule(
            r"h\\.(\\d+)\\.attn\\.c_attn\\.weight",
            tuple(rf"decoder.layers.\\1.attention.{part}.weight" for part in ("query", "key", "value")),
            (transpose, split()),
        ),
        Drop(r"h\\.\\d+\\.attn\\.(bias|masked_bias)"),
    )

`Rename`, `Transpose`, `Split`, `Slice` and `Drop` are rules of no or one step; `Rule` itself chains several.

Two checkpoint tensors may land on one name: that is how tied tensors are written (`lm_head.weight` beside
`wte.weight`). Either of them will do; where both are there they must be bit-equal, else loading fails by name.

No torch: steps call methods of whatever tensors they are given, so a table can be tried on tensors without data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Tensor = Any
"""A tensor by its methods (`transpose`, `unflatten`, `split`, `flatten`, `narrow`): `torch.Tensor` in practice."""

Step = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""One change of layout: tensors in, tensors out. Raises ValueError or RuntimeError for shapes it cannot change."""


@dataclass(frozen=True)
class Rule:
    """Tensors whose checkpoint name matches `pattern` (a whole match) go through `steps` and get `names`.

    pattern: a regular expression; its groups may be used in `names` as `\\1`, `\\2`...
    names: one for each tensor that the last step gives; empty to ignore the tensor.
    """

    pattern: str
    names: tuple[str, ...]
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        groups = re.compile(self.pattern).groups
        for name in self.names:
            if any(int(number) > groups for number in re.findall(r"\\(\d+)", name)):
                raise ValueError(f"{name!r} uses a group that {self.pattern!r} does not have")

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def targets(self, name: str) -> tuple[str, ...] | None:
        """Our names for the checkpoint's `name`; None when this rule is not about it."""
        match = self._compiled.fullmatch(name)
        return None if match is None else tuple(match.expand(target) for target in self.names)

    def change(self, tensor: Tensor) -> Sequence[Tensor]:
        """The tensors that `names` are for, as views where the layout allows it. Raises ValueError with the shape."""
        tensors: Sequence[Tensor] = [tensor]
        try:
            for step in self.steps:
                tensors = step(tensors)
        except (ValueError, RuntimeError, IndexError):
            raise ValueError(f"shape {list(tensor.shape)} cannot be rearranged") from None
        if len(tensors) != len(self.names):
            raise ValueError(f"shape {list(tensor.shape)} gives {len(tensors)} tensors, not {len(self.names)}")
        return tensors


def first_match(rules: Iterable[Rule], name: str) -> tuple[Rule, tuple[str, ...]] | None:
    """The rule for the checkpoint's `name` and our names for it; None when the name is unexpected."""
    for rule in rules:
        targets = rule.targets(name)
        if targets is not None:
            return rule, targets
    return None


# ------------------------------------------------------------------------------------------------------------- steps


def transpose(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """[in, out] to [out, in]: a matrix stored the other way round, as GPT-2's Conv1D does."""
    for tensor in tensors:
        if len(tensor.shape) != 2:
            raise ValueError("only a matrix can be transposed")
    return [tensor.transpose(0, 1) for tensor in tensors]


def split(parts: int | Sequence[int] = 3, dim: int = 0, groups: int = 1) -> Step:
    """Cut dimension `dim` into `parts` equal pieces, or into pieces of the given sizes.

    groups: with more than one, the dimension is `groups` repeats of those pieces one after the other (GPT-NeoX and
    Falcon store query, key and value of each head together); equal pieces of all groups are joined again.
    """

    def step(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        results: list[Tensor] = []
        for tensor in tensors:
            width, left_over = divmod(tensor.shape[dim], groups)
            sizes = [width // parts] * parts if isinstance(parts, int) else list(parts)
            if left_over or sum(sizes) != width:
                raise ValueError("the pieces do not add up to the dimension")
            grouped = tensor.unflatten(dim, (groups, width))
            results += [piece.flatten(dim, dim + 1) for piece in grouped.split(sizes, dim + 1)]
        return results

    return step


def skip(start: int, dim: int = 0) -> Step:
    """Leave out the first `start` entries of `dim`: RoBERTa and BART number positions from 2."""

    def step(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [tensor.narrow(dim, start, tensor.shape[dim] - start) for tensor in tensors]

    return step


# ------------------------------------------------------------------------------------------------------------- rules


def Rename(pattern: str, name: str) -> Rule:
    """The same tensor under our name."""
    return Rule(pattern, (name,))


def Transpose(pattern: str, name: str) -> Rule:
    """A matrix stored as [in, out]."""
    return Rule(pattern, (name,), (transpose,))


def Split(
    pattern: str, names: Sequence[str], dim: int = 0, sizes: Sequence[int] | None = None, groups: int = 1
) -> Rule:
    """A fused tensor, such as query, key and value in one; equal pieces unless `sizes` says otherwise (see `split`)."""
    return Rule(pattern, tuple(names), (split(len(names) if sizes is None else sizes, dim, groups),))


def Slice(pattern: str, name: str, start: int) -> Rule:
    """A table whose first `start` rows are never looked up."""
    return Rule(pattern, (name,), (skip(start),))


def Drop(pattern: str) -> Rule:
    """A tensor that carries nothing to load: a mask, a table of position numbers, an unused head."""
    return Rule(pattern, (), (lambda tensors: [],))
