"""Rules that convert the tensor names and layouts of a checkpoint to those of a model.

Each family has a list of rules. A rule has a pattern for names in the checkpoint, the names in the model, and the
layout changes between them. The first rule whose pattern matches the full name applies. A name without a rule is
unexpected.
The rules for GPT-2:

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

`Rename`, `Transpose`, `Split`, `Slice`, `Constant` and `Drop` make rules with at most one layout change; `Rule` chains
several.

Two tensors of a checkpoint may get the same name in the model, such as a tied `lm_head.weight` and `wte.weight`. The
checkpoint needs only one of them. If it has both, they must be bit-equal, else loading fails.

Imports no torch: layout changes call methods of the tensors, so rules can be tested on tensors without data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Tensor = Any
"""An object with the methods of a `torch.Tensor`, such as `transpose`, `unflatten`, `split`, `flatten` and `narrow`."""

LayoutChange = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Function that rearranges tensors and returns new ones. Raises ValueError or RuntimeError for unsuitable shapes."""


@dataclass(frozen=True)
class Rule:
    """Converts the tensors whose name in the checkpoint matches a pattern.

    pattern: regular expression for the full name. `names` may use its groups as `\\1`, `\\2` and so on.
    names: names in the model, one for each tensor after the last layout change; empty to ignore the tensor.
    changes: layout changes, in order.
    constant: name in the model of a table that the model computes itself. The tensor is only compared with this table.
        Empty for other tensors.

    Raises ValueError if `names` or `constant` uses a group that `pattern` does not have.
    """

    pattern: str
    names: tuple[str, ...]
    changes: tuple[LayoutChange, ...] = ()
    constant: str = ""

    def __post_init__(self) -> None:
        groups = re.compile(self.pattern).groups
        for name in (*self.names, self.constant):
            if any(int(number) > groups for number in re.findall(r"\\(\d+)", name)):
                raise ValueError(f"{name!r} uses a group that {self.pattern!r} does not have")

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def targets(self, name: str) -> tuple[str, ...] | None:
        """Names in the model for a name in the checkpoint, or None if the pattern does not match."""
        match = self._compiled.fullmatch(name)
        return None if match is None else tuple(match.expand(target) for target in self.names)

    def constant_of(self, name: str) -> str:
        """Name of the computed table for a name in the checkpoint; empty without a table, or if the pattern differs."""
        match = self._compiled.fullmatch(name) if self.constant else None
        return "" if match is None else match.expand(self.constant)

    def change(self, tensor: Tensor) -> Sequence[Tensor]:
        """Apply the layout changes. Returns one tensor for each of `names`, as a view where the layout allows it.

        Raises ValueError, with the shape, for a tensor that cannot be rearranged or gives another number of tensors.
        """
        tensors: Sequence[Tensor] = [tensor]
        try:
            for change in self.changes:
                tensors = change(tensors)
        except (ValueError, RuntimeError, IndexError):
            raise ValueError(f"shape {list(tensor.shape)} cannot be rearranged") from None
        if len(tensors) != len(self.names):
            raise ValueError(f"shape {list(tensor.shape)} gives {len(tensors)} tensors, not {len(self.names)}")
        return tensors


def first_match(rules: Iterable[Rule], name: str) -> tuple[Rule, tuple[str, ...]] | None:
    """The first rule that matches a name in the checkpoint, and the names in the model; None without such a rule."""
    for rule in rules:
        targets = rule.targets(name)
        if targets is not None:
            return rule, targets
    return None


# ---------------------------------------------------------------------------------------------------- layout changes


def transpose(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Layout change that transposes matrices: [in, out], as GPT-2 stores them, to [out, in].

    Raises ValueError for a tensor that is no matrix.
    """
    for tensor in tensors:
        if len(tensor.shape) != 2:
            raise ValueError("only a matrix can be transposed")
    return [tensor.transpose(0, 1) for tensor in tensors]


def split(parts: int | Sequence[int] = 3, dim: int = 0, groups: int = 1) -> LayoutChange:
    """Layout change that splits a dimension into parts, such as queries, keys and values.

    parts: number of equal parts, or the size of each part.
    dim: dimension to split.
    groups: number of times that the sequence of parts repeats along the dimension. Equal parts of all groups are
        concatenated. GPT-NeoX and Falcon store query, key and value of one head (or group of heads) after another.
    """

    def change(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        results: list[Tensor] = []
        for tensor in tensors:
            width, left_over = divmod(tensor.shape[dim], groups)
            sizes = [width // parts] * parts if isinstance(parts, int) else list(parts)
            if left_over or sum(sizes) != width:
                raise ValueError("the parts do not add up to the dimension")
            grouped = tensor.unflatten(dim, (groups, width))
            results += [part.flatten(dim, dim + 1) for part in grouped.split(sizes, dim + 1)]
        return results

    return change


def skip(start: int, dim: int = 0) -> LayoutChange:
    """Layout change that leaves out the first `start` entries of a dimension, such as unused positions (RoBERTa)."""

    def change(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [tensor.narrow(dim, start, tensor.shape[dim] - start) for tensor in tensors]

    return change


def repeat_rows(times: int) -> LayoutChange:
    """Layout change that repeats each row: [rows, in] to [rows * times, in].

    LFM3 stores one gate per head, and the model has one per feature.
    """

    def change(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [tensor.repeat_interleave(times, 0) for tensor in tensors]

    return change


def block_diagonal(groups: int) -> LayoutChange:
    """Layout change from a grouped convolution with kernel size 1 to a matrix: [out, in / groups, 1] to [out, in].

    The matrix has one block per group on its diagonal, and zeros elsewhere (SqueezeBERT).
    """

    def change(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        results: list[Tensor] = []
        for tensor in tensors:
            blocks = tensor.flatten(1).unflatten(0, (groups, tensor.shape[0] // groups))
            matrix = blocks.new_zeros((groups, blocks.shape[1], groups, blocks.shape[2]))
            for index, block in enumerate(blocks):
                matrix[index, :, index] = block
            results.append(matrix.flatten(2).flatten(0, 1))
        return results

    return change


# ------------------------------------------------------------------------------------------------------------- rules


def Rename(pattern: str, name: str) -> Rule:
    """Rule for a tensor that keeps its layout."""
    return Rule(pattern, (name,))


def Transpose(pattern: str, name: str) -> Rule:
    """Rule for a matrix that is stored as [in, out]."""
    return Rule(pattern, (name,), (transpose,))


def Split(
    pattern: str, names: Sequence[str], dim: int = 0, sizes: Sequence[int] | None = None, groups: int = 1
) -> Rule:
    """Rule for a tensor that several tensors of the model were concatenated to, such as query, key and value.

    dim: dimension to split. sizes: size of each part along it; None for equal parts.
    groups: number of times that the sequence of parts repeats along `dim`.
    """
    return Rule(pattern, tuple(names), (split(len(names) if sizes is None else sizes, dim, groups),))


def Slice(pattern: str, name: str, start: int) -> Rule:
    """Rule for a table whose first `start` rows are left out."""
    return Rule(pattern, (name,), (skip(start),))


def Constant(pattern: str, table: str) -> Rule:
    """Rule for a tensor that the model computes itself. The loader only compares the stored with the computed values.

    table: name of the computed table in the model (`models.checkpoint.constant_tables`).
    """
    return Rule(pattern, (), (lambda tensors: [],), table)


def Drop(pattern: str) -> Rule:
    """Rule that ignores a tensor, such as a mask, a table of position indices, or an unused head."""
    return Rule(pattern, (), (lambda tensors: [],))
