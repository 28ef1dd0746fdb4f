"""Strict loading: a checkpoint must have exactly the tensors of a model. One error lists all differences.

The checkpoint is compared by names and shapes, so that a wrong one is refused before any tensor is converted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from weights.finite import is_finite
from weights.manifest import ManifestError, check_manifest
from weights.read import StoredTensor, WeightsError, open_checkpoint
from weights.rules import Rule, first_match

__all__ = ["LoadReport", "WeightsError", "load_weights"]

_MAX_LISTED = 20
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class LoadReport:
    """Size of the loaded weights.

    parameters: number of parameters; tied ones count once.
    bytes: memory of the loaded tensors.
    """

    parameters: int
    bytes: int


@dataclass(frozen=True)
class _TensorSource:
    """Source of one tensor of the model: result `index` of applying `rule` to a tensor of the checkpoint.

    name: name of the tensor in the checkpoint.
    """

    name: str
    rule: Rule
    index: int

    def read(self, stored: Mapping[str, StoredTensor]) -> Tensor:
        tensor: Tensor = self.rule.change(stored[self.name].read())[self.index]
        return tensor


@dataclass
class _LoadPlan:
    """Sources of the model's tensors, and all differences between checkpoint and model.

    sources: by name in the model.
    copies: further sources of tied tensors, with the name in the model.
    """

    sources: dict[str, _TensorSource] = field(default_factory=dict)
    copies: list[tuple[str, _TensorSource]] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)

    def raise_faults(self) -> None:
        """Raise WeightsError with all differences, if there are any."""
        kinds = {
            "missing": self.missing,
            "unexpected": self.unexpected,
            "misshapen": self.misshapen,
            "contradicting": self.contradictions,
        }
        faults = [f"{len(names)} {kind} ({_shortened(names)})" for kind, names in kinds.items() if names]
        if faults:
            raise WeightsError("the tensors of the checkpoint do not match the model: " + "; ".join(faults))


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
    """Load every tensor of a model and pass it to `assign` once.

    directory: directory of the checkpoint.
    rules: convert names and layouts of the checkpoint to those of the model.
    expected: shape of each tensor of the model, by its name. A tied tensor has one name, even if the checkpoint has
        several copies of it.
    dtype, device: dtype and device of the loaded tensors. They are contiguous and share no memory with the file.
    assign: called with the name in the model and the tensor.
    progress: called with (bytes read so far, total bytes), counted in the dtypes of the checkpoint.
    keep_float32: whether the tensor with this name in the model is float32 for every `dtype`.
    folder: subdirectory of the weight files; empty for the directory itself.

    Raises WeightsError for files that cannot be read or differ from the manifest, and for tensors with NaN or infinity.
    One WeightsError names all missing, unexpected and misshapen tensors.
    """
    try:
        check_manifest(directory)
    except ManifestError as error:
        raise WeightsError(str(error)) from None
    with open_checkpoint(directory, folder) as stored:
        plan = _make_plan(stored, rules, expected)
        plan.raise_faults()
        total_bytes = sum(stored[name].nbytes for name in {source.name for source in plan.sources.values()})
        done_bytes, parameters, loaded_bytes = 0, 0, 0
        not_finite: list[str] = []
        overflowing: list[str] = []
        for stored_name, targets in _by_stored_name(plan.sources).items():
            for name, source in targets:
                target_dtype = torch.float32 if keep_float32(name) else dtype
                view = source.read(stored)
                tensor = torch.empty(view.shape, dtype=target_dtype, device=device)
                tensor.copy_(view)
                if not is_finite(tensor):
                    (overflowing if is_finite(view) else not_finite).append(stored_name)
                assign(name, tensor)
                parameters += tensor.numel()
                loaded_bytes += tensor.numel() * tensor.itemsize
            done_bytes += stored[stored_name].nbytes
            if progress is not None:
                progress(done_bytes, total_bytes)
        _refuse_not_finite(not_finite, overflowing, dtype)
    return LoadReport(parameters, loaded_bytes)


def _refuse_not_finite(not_finite: Sequence[str], overflowing: Sequence[str], dtype: torch.dtype) -> None:
    """Raise WeightsError for tensors of the checkpoint with NaN or infinity, in the file or after conversion."""
    if not_finite:
        names = list(dict.fromkeys(not_finite))
        raise WeightsError(f"{len(names)} tensors contain NaN or infinity ({_shortened(names)})")
    if overflowing:
        names, name = list(dict.fromkeys(overflowing)), str(dtype).removeprefix("torch.")
        raise WeightsError(
            f"{len(names)} tensors contain values too large for {name} ({_shortened(names)}); use --dtype bfloat16 or "
            "float32"
        )


def _make_plan(
    stored: Mapping[str, StoredTensor], rules: Sequence[Rule], expected: Mapping[str, Sequence[int]]
) -> _LoadPlan:
    plan = _LoadPlan()
    stored_names: dict[str, str] = {}
    for stored_name, tensor in stored.items():
        matched = first_match(rules, stored_name)
        if matched is None:
            plan.unexpected.append(stored_name)
            continue
        rule, targets = matched
        if not targets:
            continue
        if any(target not in expected for target in targets):
            plan.unexpected.append(stored_name)
            continue
        stored_names |= dict.fromkeys(targets, stored_name)
        if tensor.dtype not in _FLOATS:
            plan.misshapen.append(f"{stored_name} has no floating-point dtype")
            continue
        try:
            changed = rule.change(torch.empty(tensor.shape, device="meta"))
        except ValueError as error:
            plan.misshapen.append(f"{stored_name}: {error}")
            continue
        for index, (target, result) in enumerate(zip(targets, changed, strict=True)):
            if tuple(result.shape) != tuple(expected[target]):
                plan.misshapen.append(f"{stored_name} is {list(result.shape)}, not {list(expected[target])}")
                break
            if target in plan.sources:
                plan.copies.append((target, _TensorSource(stored_name, rule, index)))
            else:
                plan.sources[target] = _TensorSource(stored_name, rule, index)
    absent = [name for name in expected if name not in stored_names]
    plan.missing = list(dict.fromkeys(_checkpoint_name(name, stored_names) for name in absent))
    for target, copy in plan.copies:
        first = plan.sources[target]
        if not _bit_equal(first.read(stored), copy.read(stored)):
            plan.contradictions.append(f"{copy.name} differs from {first.name}, to which it is tied")
    return plan


def _by_stored_name(sources: Mapping[str, _TensorSource]) -> dict[str, list[tuple[str, _TensorSource]]]:
    """Group the model's tensors by the tensor of the checkpoint that they come from."""
    grouped: dict[str, list[tuple[str, _TensorSource]]] = {}
    for name, source in sources.items():
        grouped.setdefault(source.name, []).append((name, source))
    return grouped


def _bit_equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def _checkpoint_name(missing: str, stored_names: Mapping[str, str]) -> str:
    """Name that a missing tensor should have in the checkpoint.

    The name is derived from the same tensor of another layer. Without such a tensor, it is the name in the model.
    """
    numbers = re.findall(r"\d+", missing)
    shape = re.sub(r"\d+", "#", missing)
    for target, stored_name in stored_names.items():
        same_numbers = re.findall(r"\d+", target) == re.findall(r"\d+", stored_name)
        if same_numbers and re.sub(r"\d+", "#", target) == shape:
            return re.sub(r"\d+", "{}", stored_name).format(*numbers)
    return missing


def _shortened(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _MAX_LISTED} more"] if len(names) > _MAX_LISTED else []
    return ", ".join([*names[:_MAX_LISTED], *more])
