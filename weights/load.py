"""Strict loading: exactly the tensors a model expects, or one error that lists everything that is wrong.

The plan is made on shapes alone, so that a wrong checkpoint is refused before a byte of it is converted.
Does not know what the tensors are for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from weights.manifest import ManifestError, check_manifest
from weights.read import StoredTensor, WeightsError, open_checkpoint
from weights.rules import Rule, first_match

__all__ = ["LoadReport", "WeightsError", "load_weights"]

_LISTED = 20
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class LoadReport:
    """What was loaded. parameters: numbers, tied ones once. bytes: what they take in the dtypes they now have."""

    parameters: int
    bytes: int


@dataclass(frozen=True)
class _Piece:
    """One of our tensors as the checkpoint has it: result `index` of what `rule` makes of the tensor `source`."""

    source: str
    rule: Rule
    index: int

    def read(self, stored: Mapping[str, StoredTensor]) -> Tensor:
        piece: Tensor = self.rule.change(stored[self.source].read())[self.index]
        return piece


@dataclass
class _Plan:
    pieces: dict[str, _Piece] = field(default_factory=dict)
    copies: list[tuple[str, _Piece]] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)

    def refuse_faults(self) -> None:
        kinds = {
            "missing": self.missing,
            "unexpected": self.unexpected,
            "misshapen": self.misshapen,
            "contradicting": self.contradictions,
        }
        faults = [f"{len(names)} {kind} ({_some(names)})" for kind, names in kinds.items() if names]
        if faults:
            raise WeightsError("the checkpoint's tensors are not the model's: " + "; ".join(faults))


def load_weights(
    directory: Path,
    rules: Sequence[Rule],
    expected: Mapping[str, Sequence[int]],
    dtype: torch.dtype,
    device: torch.device | str,
    assign: Callable[[str, Tensor], None],
    progress: Callable[[int, int], None] | None = None,
    keep_float32: Callable[[str], bool] = lambda name: False,
    folder: str = "",
) -> LoadReport:
    """Give every expected tensor to `assign`, once, by our name.

    expected: our names with their shapes; a tied tensor is one name here, however often the checkpoint has it.
    dtype, device: of the tensors handed to `assign`; they are contiguous and share no memory with the file.
    progress: told (bytes read so far, bytes in all), in the checkpoint's dtypes.
    keep_float32: our names whose tensors stay float32 whatever `dtype` says.
    folder: where in the directory the files are, if not at its top.

    Raises WeightsError for files that cannot be read or differ from the checkpoint's manifest, and for missing,
    unexpected and misshapen tensors, all at once.
    """
    try:
        check_manifest(directory)
    except ManifestError as error:
        raise WeightsError(str(error)) from None
    with open_checkpoint(directory, folder) as stored:
        plan = _make_plan(stored, rules, expected)
        plan.refuse_faults()
        total_bytes = sum(stored[source].nbytes for source in {piece.source for piece in plan.pieces.values()})
        done_bytes, parameters, loaded_bytes = 0, 0, 0
        for source, targets in _by_source(plan.pieces).items():
            for name, piece in targets:
                target_dtype = torch.float32 if keep_float32(name) else dtype
                view = piece.read(stored)
                tensor = torch.empty(view.shape, dtype=target_dtype, device=device)
                tensor.copy_(view)
                assign(name, tensor)
                parameters += tensor.numel()
                loaded_bytes += tensor.numel() * tensor.itemsize
            done_bytes += stored[source].nbytes
            if progress is not None:
                progress(done_bytes, total_bytes)
    return LoadReport(parameters, loaded_bytes)


def _make_plan(
    stored: Mapping[str, StoredTensor], rules: Sequence[Rule], expected: Mapping[str, Sequence[int]]
) -> _Plan:
    plan = _Plan()
    sources: dict[str, str] = {}
    for source, tensor in stored.items():
        matched = first_match(rules, source)
        if matched is None:
            plan.unexpected.append(source)
            continue
        rule, targets = matched
        if not targets:
            continue
        if any(target not in expected for target in targets):
            plan.unexpected.append(source)
            continue
        sources |= dict.fromkeys(targets, source)
        if tensor.dtype not in _FLOATS:
            plan.misshapen.append(f"{source} is not of a floating-point type")
            continue
        try:
            changed = rule.change(torch.empty(tensor.shape, device="meta"))
        except ValueError as error:
            plan.misshapen.append(f"{source}: {error}")
            continue
        for index, (target, piece) in enumerate(zip(targets, changed, strict=True)):
            if tuple(piece.shape) != tuple(expected[target]):
                plan.misshapen.append(f"{source} is {list(piece.shape)}, not {list(expected[target])}")
                break
            if target in plan.pieces:
                plan.copies.append((target, _Piece(source, rule, index)))
            else:
                plan.pieces[target] = _Piece(source, rule, index)
    plan.missing = list(dict.fromkeys(_checkpoint_name(name, sources) for name in expected if name not in sources))
    for target, copy in plan.copies:
        first = plan.pieces[target]
        if not _bit_equal(first.read(stored), copy.read(stored)):
            plan.contradictions.append(f"{copy.source} differs from {first.source}, to which it is tied")
    return plan


def _by_source(pieces: Mapping[str, _Piece]) -> dict[str, list[tuple[str, _Piece]]]:
    grouped: dict[str, list[tuple[str, _Piece]]] = {}
    for name, piece in pieces.items():
        grouped.setdefault(piece.source, []).append((name, piece))
    return grouped


def _bit_equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def _checkpoint_name(missing: str, sources: Mapping[str, str]) -> str:
    """What the checkpoint would call a missing tensor, told from the same tensor of another layer; else our name."""
    numbers = re.findall(r"\d+", missing)
    shape = re.sub(r"\d+", "#", missing)
    for target, source in sources.items():
        same_numbers = re.findall(r"\d+", target) == re.findall(r"\d+", source)
        if same_numbers and re.sub(r"\d+", "#", target) == shape:
            return re.sub(r"\d+", "{}", source).format(*numbers)
    return missing


def _some(names: Iterable[str]) -> str:
    names = list(names)
    more = [f"and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
    return ", ".join(names[:_LISTED] + more)
