"""Strict loading: a checkpoint must have exactly the tensors of a model. One error lists all differences.

Names and shapes are compared first, so that a wrong checkpoint is refused before any tensor is converted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from weights.errors import WeightsError, shown
from weights.finite import is_finite
from weights.manifest import ManifestError, check_manifest
from weights.quantized_matrix import QuantizedMatrix
from weights.read import open_checkpoint
from weights.rules import Rule, first_match
from weights.stored import MatrixFormat, Stored, StoredMatrix, StoredTensor

__all__ = ["LoadPlan", "LoadReport", "TensorSource", "WeightsError", "load_weights", "plan_load"]

_MAX_LISTED = 20
_MAX_UNEXPECTED = 1000
"""Number of unexpected tensors after which comparing stops, because each one is matched against all rules."""
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class LoadReport:
    """How many weights of a checkpoint were loaded, and how much memory they take.

    parameters: number of parameters; tied parameters are counted once.
    bytes: memory of the loaded tensors.
    matrices: number of quantised matrices that stay quantised.
    dequantized: number of quantised matrices that were dequantised.
    dequantized_bytes: memory of the matrices after dequantising.
    """

    parameters: int
    bytes: int
    matrices: int = 0
    dequantized: int = 0
    dequantized_bytes: int = 0


@dataclass(frozen=True)
class TensorSource:
    """Where one tensor of the model comes from: result `index` of applying `rule` to a tensor of the checkpoint.

    name: name of the tensor in the checkpoint.
    layout: the result on the meta device, which has shapes and no contents.
    """

    name: str
    rule: Rule
    index: int
    layout: Tensor | QuantizedMatrix

    def read(self, stored: Mapping[str, Stored]) -> Tensor | QuantizedMatrix:
        return self.of(stored[self.name].read())

    def of(self, tensor: Tensor | QuantizedMatrix) -> Tensor | QuantizedMatrix:
        """Apply the rule to a tensor that was read from the checkpoint, and return the model's tensor."""
        changed: Tensor | QuantizedMatrix = self.rule.change(tensor)[self.index]
        return changed


@dataclass
class LoadPlan:
    """Sources of the model's tensors, and all differences between checkpoint and model.

    sources: source of each tensor, by its name in the model.
    copies: (name in the model, source) of further tensors in the checkpoint that must equal `sources[name]`.
    unexpected, missing: names in the checkpoint. misshapen, contradictions: descriptions with the names.
    """

    sources: dict[str, TensorSource] = field(default_factory=dict)
    copies: list[tuple[str, TensorSource]] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)

    def compare_copies(self, stored: Mapping[str, Stored]) -> None:
        """Compare the copies of tied tensors bit by bit, and describe each difference in `contradictions`."""
        for target, copy in self.copies:
            first = self.sources[target]
            if not _bit_equal(first.read(stored), copy.read(stored)):
                self.contradictions.append(f"{copy.name} differs from {first.name}, to which it is tied")

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
    assign: Callable[[str, Tensor | QuantizedMatrix], None],
    progress: Callable[[int, int], None] | None = None,
    keep_float32: Callable[[str], bool] = lambda name: False,
    folder: str = "",
    matrix_format: MatrixFormat | None = None,
    keep_quantized: Callable[[Mapping[str, QuantizedMatrix]], Collection[str]] = lambda layouts: (),
    shapes_only: bool = False,
    file: str = "",
) -> LoadReport:
    """Load every tensor of a model and pass it to `assign` once.

    directory: directory of the checkpoint.
    rules: convert names and layouts of the checkpoint to those of the model.
    expected: shape of each tensor of the model, by its name. A tied tensor has one name, even if the checkpoint has
        several copies of it.
    dtype, device: dtype and device of the loaded tensors, which are contiguous and share no memory with the file.
    assign: called with the name in the model and the tensor, or the matrix if `keep_quantized` keeps it.
    progress: called with the number of bytes read so far and in total, counted in the dtypes of the checkpoint.
    keep_float32: returns whether the tensor with this name in the model stays float32 whatever `dtype` is.
    folder: subdirectory of the weight files; empty for the directory itself.
    matrix_format: format of the quantised matrices of the checkpoint, or None.
    keep_quantized: called with the quantised matrices on the meta device, by their names in the model. Returns the
        names of the matrices that stay quantised. The others are dequantised.
    shapes_only: whether to read no tensor, and to assign tensors without contents on the meta device.
    file: name of the only weight file; empty for the usual names.

    Raises WeightsError for files that cannot be read or differ from the manifest, and for tensors with NaN or infinity.
    One WeightsError names all missing, unexpected and misshapen tensors.
    """
    try:
        if not shapes_only:
            check_manifest(directory)
    except ManifestError as error:
        raise WeightsError(str(error)) from None
    with open_checkpoint(directory, folder, matrix_format, file) as stored:
        plan = plan_load(stored, rules, expected)
        if not shapes_only:
            plan.compare_copies(stored)
        plan.raise_faults()
        layouts = {name: source.layout for name, source in plan.sources.items()}
        kept = keep_quantized({name: layout for name, layout in layouts.items() if isinstance(layout, QuantizedMatrix)})
        loaded = _Loaded(dtype, device, keep_float32, kept)
        sizes = {name: stored[name].nbytes for name in {source.name for source in plan.sources.values()}}
        done_bytes = 0
        for stored_name, targets in _by_stored_name(plan.sources).items():
            tensor = None if shapes_only else stored[stored_name].read()
            for name, source in targets:
                assign(name, loaded.convert(name, source, None if tensor is None else source.of(tensor)))
            done_bytes += sizes[stored_name]
            if progress is not None and not shapes_only:
                progress(done_bytes, sum(sizes.values()))
        _refuse_not_finite(loaded.not_finite, loaded.overflowing, dtype)
    return loaded.report


class _Loaded:
    """Converts tensors to their dtype and device, and counts them.

    dtype, device: dtype and device to which tensors are converted.
    keep_float32: returns whether the tensor with this name in the model stays float32 whatever `dtype` is.
    kept: names in the model of the matrices that stay quantised.
    not_finite: names of tensors that have NaN or infinity in the checkpoint.
    overflowing: names of tensors that have NaN or infinity only after conversion to `dtype`.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device | str,
        keep_float32: Callable[[str], bool],
        kept: Collection[str],
    ) -> None:
        self._dtype, self._device = dtype, device
        self._keep_float32, self._kept = keep_float32, kept
        self.report = LoadReport(0, 0)
        self.not_finite: list[str] = []
        self.overflowing: list[str] = []

    def convert(
        self, name: str, source: TensorSource, value: Tensor | QuantizedMatrix | None
    ) -> Tensor | QuantizedMatrix:
        """Convert one tensor and count it in `report`.

        name: name in the model. value: the tensor after its rule, or None for an empty tensor on the meta device.
        """
        layout, report = source.layout, self.report
        dtype = torch.float32 if self._keep_float32(name) else self._dtype
        kept = name in self._kept
        result: Tensor | QuantizedMatrix
        if isinstance(layout, QuantizedMatrix) and kept:
            result = layout if value is None else self._copied(source.name, value)
        else:
            result = self._dense(source.name, layout.shape, dtype, value)
        size = result.numel() * dtype.itemsize
        is_dequantized = isinstance(layout, QuantizedMatrix) and not kept
        self.report = LoadReport(
            parameters=report.parameters + result.numel(),
            bytes=report.bytes + (result.nbytes if kept else size),
            matrices=report.matrices + kept,
            dequantized=report.dequantized + is_dequantized,
            dequantized_bytes=report.dequantized_bytes + size * is_dequantized,
        )
        return result

    def _copied(self, stored_name: str, matrix: Tensor | QuantizedMatrix) -> QuantizedMatrix:
        assert isinstance(matrix, QuantizedMatrix)
        if not matrix.is_finite():
            self.not_finite.append(stored_name)
        return matrix.clone()

    def _dense(
        self, stored_name: str, shape: torch.Size, dtype: torch.dtype, value: Tensor | QuantizedMatrix | None
    ) -> Tensor:
        if value is None:
            return torch.empty(shape, dtype=dtype, device="meta")
        if isinstance(value, QuantizedMatrix):
            tensor = value.dequantized(dtype).to(self._device)
        else:
            tensor = torch.empty(shape, dtype=dtype, device=self._device)
            tensor.copy_(value)
        if not is_finite(tensor):
            finite_before = value.is_finite() if isinstance(value, QuantizedMatrix) else is_finite(value)
            (self.overflowing if finite_before else self.not_finite).append(stored_name)
        return tensor


def _refuse_not_finite(not_finite: Sequence[str], overflowing: Sequence[str], dtype: torch.dtype) -> None:
    """Raise WeightsError if there are tensors with NaN or infinity.

    not_finite: names of tensors with NaN or infinity in the file.
    overflowing: names of tensors that have NaN or infinity only after conversion to `dtype`.
    """
    if not_finite:
        names = list(dict.fromkeys(not_finite))
        raise WeightsError(f"{len(names)} tensors contain NaN or infinity ({_shortened(names)})")
    if overflowing:
        names, name = list(dict.fromkeys(overflowing)), str(dtype).removeprefix("torch.")
        advice = "; use --dtype bfloat16 or float32" if dtype == torch.float16 else ""
        raise WeightsError(f"{len(names)} tensors contain values too large for {name} ({_shortened(names)}){advice}")


def plan_load(stored: Mapping[str, Stored], rules: Sequence[Rule], expected: Mapping[str, Sequence[int]]) -> LoadPlan:
    """Find the source of each tensor of a model, and all differences, by names and shapes.

    Reads no tensor, except unexpected tensors that may be ignored if all their elements are zero.

    stored: tensors and matrices of the checkpoint, by name.
    rules: convert names and layouts of the checkpoint to those of the model.
    expected: shape of each tensor of the model, by its name.
    Raises WeightsError for more than 1,000 unexpected tensors; other differences are listed in the result.
    """
    plan = LoadPlan()
    stored_names: dict[str, str] = {}
    for stored_name, tensor in stored.items():
        matched = first_match(rules, stored_name)
        if matched is None or any(target not in expected for target in matched[1]):
            if not _is_unused(tensor):
                plan.unexpected.append(stored_name)
            if len(plan.unexpected) > _MAX_UNEXPECTED:
                raise WeightsError(
                    f"more than {_MAX_UNEXPECTED:,} tensors of the checkpoint are unexpected "
                    f"({_shortened(plan.unexpected[:_MAX_LISTED])})"
                )
            continue
        rule, targets = matched
        if not targets:
            continue
        stored_names |= dict.fromkeys(targets, stored_name)
        try:
            changed = rule.change(_layout(tensor))
        except ValueError as error:
            plan.misshapen.append(f"{stored_name}: {error}")
            continue
        for index, (target, result) in enumerate(zip(targets, changed, strict=True)):
            if tuple(result.shape) != tuple(expected[target]):
                plan.misshapen.append(f"{stored_name} is {list(result.shape)}, not {list(expected[target])}")
                break
            source = TensorSource(stored_name, rule, index, result)
            if target in plan.sources:
                plan.copies.append((target, source))
            else:
                plan.sources[target] = source
    absent = [name for name in expected if name not in stored_names]
    plan.missing = list(dict.fromkeys(_checkpoint_name(name, stored_names) for name in absent))
    return plan


def _is_unused(tensor: Stored) -> bool:
    return isinstance(tensor, StoredTensor) and tensor.unused_if_zero and not tensor.read().any()


def _layout(tensor: Stored) -> Tensor | QuantizedMatrix:
    """The tensor or matrix on the meta device.

    Raises ValueError for a plain tensor without a float dtype, and if the parts of a quantised matrix do not fit
    together.
    """
    if isinstance(tensor, StoredMatrix):
        return tensor.layout
    if tensor.dtype not in _FLOATS:
        name = "" if tensor.dtype is None else f" {str(tensor.dtype).removeprefix('torch.')}"
        raise ValueError(f"dtype{name} is not supported for a tensor that is not quantized")
    return torch.empty(tensor.shape, device="meta")


def _by_stored_name(sources: Mapping[str, TensorSource]) -> dict[str, list[tuple[str, TensorSource]]]:
    """Group the model's tensors by the name of the tensor in the checkpoint that they come from.

    Each entry of a group is (name in the model, source).
    """
    grouped: dict[str, list[tuple[str, TensorSource]]] = {}
    for name, source in sources.items():
        grouped.setdefault(source.name, []).append((name, source))
    return grouped


def _bit_equal(one: Tensor | QuantizedMatrix, other: Tensor | QuantizedMatrix) -> bool:
    if isinstance(one, QuantizedMatrix) or isinstance(other, QuantizedMatrix):
        return isinstance(one, QuantizedMatrix) and isinstance(other, QuantizedMatrix) and one.equal(other)
    return one.dtype == other.dtype and torch.equal(one, other)


def _checkpoint_name(missing: str, stored_names: Mapping[str, str]) -> str:
    """Guess the name in the checkpoint of a missing tensor, for the error message.

    The guess follows the same tensor in another layer, or else another tensor of the same module, such as the weight
    for a bias. Without such a tensor, it is the name in the model.

    missing: name in the model. stored_names: names in the checkpoint of the tensors that were found, by name in the
        model.
    """
    numbers = re.findall(r"\d+", missing)
    shape = re.sub(r"\d+", "#", missing)
    for target, stored_name in stored_names.items():
        same_numbers = re.findall(r"\d+", target) == re.findall(r"\d+", stored_name)
        if same_numbers and re.sub(r"\d+", "#", target) == shape:
            return re.sub(r"\d+", "{}", stored_name).format(*numbers)
    module, _, part = missing.rpartition(".")
    for target, stored_name in stored_names.items():
        other_module, _, other_part = target.rpartition(".")
        if other_module == module and stored_name.endswith(f".{other_part}"):
            return stored_name.removesuffix(other_part) + part
    return missing


def _shortened(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _MAX_LISTED} more"] if len(names) > _MAX_LISTED else []
    return ", ".join([*(shown(name, 160) for name in names[:_MAX_LISTED]), *more])
