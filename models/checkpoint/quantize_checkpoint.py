"""Write a checkpoint with linears of 4, 6 or 8 bits, in the format of compressed-tensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.checkpoint.checkpoint_heads import CheckpointFiles, read_files
from models.checkpoint.expected_tensors import ExpectedTensors, expected_tensors
from models.checkpoint.kept_quantized import rounded_linears
from models.checkpoint.loader import tensor_rules
from models.checkpoint.quantizing.calibration import Calibration
from models.checkpoint.quantizing.schemes import Precision, rounded, scheme_of, sensitive_linears
from models.checkpoint.stored_size import check_count, check_size
from models.config import ConfigError
from models.transformer import Transformer
from weights.finite import is_finite
from weights.gguf.choose import is_gguf
from weights.load import TensorSource, plan_load
from weights.manifest import ManifestError, check_manifest
from weights.quantized.formats import is_quantized, quantized_format
from weights.quantized.write_compressed_tensors import Scheme, parts_of, quantization_config
from weights.quantized_matrix import QuantizedMatrix
from weights.read import open_checkpoint
from weights.resolve import file_in, files_besides_weights
from weights.rules import first_match
from weights.sentence_modules import transformer_folder
from weights.stored import Stored, StoredMatrix, StoredTensor
from weights.write import SafetensorsWriter

_MIN_GROUP = 32
"""The number of inputs of a linear that is rounded in groups must be a multiple of this, because the last group of
compressed-tensors is never shorter."""
_MIN_CALIBRATION_TOKENS = 2


@dataclass(frozen=True)
class QuantizeReport:
    """Facts about a quantised checkpoint that was written.

    family, architecture: family of the model, and its class in transformers.
    description: format of the rounded matrices, for users.
    matrices, weights: number of rounded matrices, and number of weights in them.
    calibrated: number of matrices that were rounded by calibration, with the inputs that texts give them.
    others: number of matrices that keep their dtype.
    bytes_before, bytes_after: size of the weights in the files of the original and of the copy.
    """

    family: str
    architecture: str
    description: str
    matrices: int
    weights: int
    calibrated: int
    others: int
    bytes_before: int
    bytes_after: int


class _RoundingPlan(NamedTuple):
    """Which tensors of a checkpoint are rounded, and how.

    transformer: the model on the meta device.
    schemes: scheme of each tensor to round, by its name in the checkpoint.
    sources: where each parameter is read from, by its name in the model.
    expected: which parameters the checkpoint has, and which are zero or tied.
    """

    transformer: Transformer
    schemes: Mapping[str, Scheme]
    sources: Mapping[str, TensorSource]
    expected: ExpectedTensors


def quantize_checkpoint(
    directory: Path,
    out: Path,
    precision: Precision,
    progress: Callable[[int, int], None] | None = None,
    texts: Sequence[Sequence[int]] = (),
) -> QuantizeReport:
    """Write a quantised copy of a checkpoint. Only one matrix at a time is in memory, or one layer if there are texts.

    The directory `out` appears when the copy is complete; after an error nothing of it is left.

    directory: directory of the checkpoint.
    out: directory to create; it must not exist.
    precision: `int8`, `int6`, `int8-fast` and `int4-128` round as these settings of `--quantize` do. `int4`: groups of
        32 with 4 bits, or with 6 bits for the weights that have 6 bits with `--quantize int4`. `fp8`: one scale per
        output feature.
    progress: called with (bytes read so far, total bytes).
    texts: token ids of texts to calibrate with, at most as long as the context of the model; empty to round without
        data. Only precisions with groups can be calibrated.

    Raises ConfigError for a checkpoint that cannot be quantised, WeightsError or ResolveError for missing or invalid
    files, and OSError for files that cannot be written. Messages are one line, as for `load_model`.
    """
    partial = out.with_name(f"{out.name}.partial")
    for taken in (out, partial):
        if taken.exists() or taken.is_symlink():
            raise ConfigError(f"{taken.name!r} exists already; remove it or choose another name")
    files = _read(directory)
    with open_checkpoint(directory) as stored:
        tensors = {name: tensor for name, tensor in stored.items() if isinstance(tensor, StoredTensor)}
        plan = _make_plan(files, tensors, precision)
        schemes = plan.schemes
        others = [_module(name) for name, tensor in tensors.items() if name not in schemes and _is_matrix(name, tensor)]
        settings = quantization_config({_module(name): scheme for name, scheme in schemes.items()}, others)
        config = {**files.hf, "quantization_config": settings}
        _check_config(files, config)
        calibration = _calibration(plan, tensors, precision, texts)
        partial.mkdir(parents=True)
        try:
            values = _values(tensors, schemes, precision, calibration)
            size = _write_weights(partial, tensors, schemes, values, precision, progress)
            _write_json(partial / "config.json", config)
            for name in files_besides_weights(directory):
                source, target = file_in(directory, name), partial / name
                assert source is not None, "the file was listed"
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(source, target)
            partial.rename(out)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    written = quantized_format(config)
    assert written is not None
    return QuantizeReport(
        family=files.family.name,
        architecture=files.name,
        description=written.description,
        matrices=len(schemes),
        weights=sum(torch.Size(tensors[name].shape).numel() for name in schemes),
        calibrated=0 if calibration is None else calibration.calibrated,
        others=len(others),
        bytes_before=sum(tensor.nbytes for tensor in tensors.values()),
        bytes_after=size,
    )


def _read(directory: Path) -> CheckpointFiles:
    """Read the settings files of a checkpoint. Raises ConfigError if they show that it cannot be quantised.

    The tensors are checked later.
    """
    if is_gguf(directory):
        raise ConfigError("llama.cpp quantizes GGUF files; give the checkpoint directory that the file was made of")
    try:
        check_manifest(directory)
    except ManifestError as error:
        raise ConfigError(str(error)) from None
    folder = transformer_folder(directory)
    if folder:
        raise ConfigError(f"its transformer is in the folder {folder!r}, which is not supported by `quantize`")
    files = read_files(directory)
    if is_quantized(files.hf):
        raise ConfigError("the checkpoint is quantized already; give the one that it was made of")
    if files.gliner is not None:
        raise ConfigError("GLiNER checkpoints have no place for 'quantization_config'")
    return files


def _make_plan(files: CheckpointFiles, stored: Mapping[str, StoredTensor], precision: Precision) -> _RoundingPlan:
    """Choose the tensors to round, and check that the checkpoint has all tensors of the model.

    Raises ConfigError for a linear that cannot be written as one quantised matrix, and WeightsError for tensors that
    are missing, unexpected or misshapen.
    """
    config = files.config()
    check_size(config, stored)
    with torch.device("meta"):
        transformer = Transformer(config)
    check_count(len(stored), sum(1 for _ in transformer.parameters()))
    rules, linears = tensor_rules(files, config), rounded_linears(transformer)
    sensitive = sensitive_linears(transformer)
    schemes: dict[str, Scheme] = {}
    for name, tensor in stored.items():
        matched = first_match(rules, name)
        targets = set(() if matched is None else matched[1])
        if not linears.isdisjoint(targets):
            reason = "a part of it keeps its dtype with --quantize" if targets - linears else ""
            reason = reason or _fault(name, tensor, precision)
            if reason:
                raise _refusal(files, name, reason)
            schemes[name] = scheme_of(precision, tensor.shape[1], not targets.isdisjoint(sensitive))
    matrices: dict[str, Stored] = {name: _matrix(stored[name], scheme) for name, scheme in schemes.items()}
    expected = expected_tensors(transformer, files.family, rules, stored)
    plan = plan_load({**stored, **matrices}, rules, expected.shapes)
    plan.raise_faults()
    for source in (*plan.sources.values(), *(copy for _, copy in plan.copies)):
        if source.name in schemes and not isinstance(source.layout, QuantizedMatrix):
            raise _refusal(files, source.name, "it is stored transposed, or its inputs are rearranged")
    if not schemes:
        raise ConfigError(f"{files.family.name}: the checkpoint has no linear that --quantize rounds")
    return _RoundingPlan(transformer, schemes, plan.sources, expected)


def _calibration(
    plan: _RoundingPlan, stored: Mapping[str, StoredTensor], precision: Precision, texts: Sequence[Sequence[int]]
) -> Calibration | None:
    """The calibration with texts; None without texts.

    Raises ConfigError if the precision has no groups, or if the texts have too few tokens.
    """
    if not texts:
        return None
    if any(scheme.group is None for scheme in plan.schemes.values()):
        raise ConfigError("--calibrate is for int8, int6, int4 and int4-128, whose scales belong to groups of inputs")
    if sum(map(len, texts)) < _MIN_CALIBRATION_TOKENS:
        raise ConfigError("the texts of --calibrate have no tokens")
    return Calibration(plan.transformer, plan.sources, plan.expected, stored, plan.schemes, precision, texts)


def _is_matrix(name: str, tensor: StoredTensor) -> bool:
    is_float = tensor.dtype is not None and tensor.dtype.is_floating_point
    return is_float and len(tensor.shape) == 2 and name.endswith(".weight")


def _fault(name: str, tensor: StoredTensor, precision: Precision) -> str:
    """Why the weight of a linear layer cannot be stored as one quantised matrix; empty if it can."""
    if not name.endswith(".weight"):
        return "compressed-tensors needs a tensor named 'weight' for each linear"
    if not _is_matrix(name, tensor):
        return f"compressed-tensors needs a matrix of floats, and its shape is {list(tensor.shape)}"
    if precision not in ("int8-fast", "fp8") and tensor.shape[1] % _MIN_GROUP:
        return f"its {tensor.shape[1]} inputs are no multiple of {_MIN_GROUP}; int8-fast and fp8 have no such limit"
    return ""


def _refusal(files: CheckpointFiles, name: str, reason: str) -> ConfigError:
    return ConfigError(f"{files.family.name}: {name!r} cannot be quantized: {reason}")


def _check_config(files: CheckpointFiles, config: Mapping[str, Any]) -> None:
    """Raise ConfigError if the family does not accept a configuration with `quantization_config`."""
    try:
        files.family.config(config, files.architecture)
    except ConfigError as error:
        raise ConfigError(f"{files.family.name}: quantized checkpoints are not supported: {error}") from None


def _matrix(tensor: StoredTensor, scheme: Scheme) -> StoredMatrix:
    """Describe a tensor as the quantised checkpoint will store it. The description has no data to read."""

    def read() -> QuantizedMatrix:
        raise AssertionError("only the layout of the matrix is known")

    return StoredMatrix(tensor.file, tensor.nbytes, lambda: (scheme.layout(tensor.shape), read))


def _values(
    stored: Mapping[str, StoredTensor],
    schemes: Mapping[str, Scheme],
    precision: Precision,
    calibration: Calibration | None,
) -> Iterator[tuple[str, Tensor | QuantizedMatrix]]:
    """Yield the name and value of each tensor of the checkpoint: rounded if it has a scheme, else as it is stored."""
    done: set[str] = set()
    for name, matrix in () if calibration is None else calibration.run():
        done.add(name)
        yield name, matrix
    for name, tensor in stored.items():
        if name not in done:
            value = tensor.read()
            yield name, rounded(value, precision, schemes[name]) if name in schemes else value


def _write_weights(
    folder: Path,
    stored: Mapping[str, StoredTensor],
    schemes: Mapping[str, Scheme],
    values: Iterator[tuple[str, Tensor | QuantizedMatrix]],
    precision: Precision,
    progress: Callable[[int, int], None] | None,
) -> int:
    """Write one safetensors file for each weight file of the checkpoint, and an index if there are several.

    values: name and value of each tensor, in any order.
    Returns the size of the written files in bytes. Raises ConfigError for NaN or infinity in a rounded matrix.
    """
    by_file: dict[str, list[str]] = {}
    for name, tensor in stored.items():
        if tensor.dtype is None:
            raise ConfigError(f"{name!r} has a dtype that cannot be written")
        by_file.setdefault(tensor.file, []).append(name)
    total, done = sum(tensor.nbytes for tensor in stored.values()), 0
    index: dict[str, str] = {}
    writers: dict[str, SafetensorsWriter] = {}
    with ExitStack() as opened:
        for file, names in by_file.items():
            written = file.replace("pytorch_model", "model").replace(".bin", ".safetensors")
            parts = [_empty_parts(name, stored[name], schemes.get(name)) for name in names]
            layout_of_file = {part: tensor for some in parts for part, tensor in some.items()}
            index |= dict.fromkeys(layout_of_file, written)
            writers[file] = opened.enter_context(SafetensorsWriter(folder / written, layout_of_file))
        for name, value in values:
            if isinstance(value, QuantizedMatrix) and not is_finite(value.scales):
                raise ConfigError(f"{name!r} contains NaN or infinity, or values too large for {precision}")
            for part, numbers in _parts(name, value, schemes.get(name)).items():
                writers[stored[name].file].write(part, numbers)
            done += stored[name].nbytes
            if progress is not None:
                progress(done, total)
    size = sum(writer.nbytes for writer in writers.values())
    if set(index.values()) != {"model.safetensors"}:
        _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": index})
    return size


def _parts(name: str, value: Tensor | QuantizedMatrix, scheme: Scheme | None) -> dict[str, Tensor]:
    """The tensors, by name, that represent one tensor of the checkpoint: codes, scales and so on, or the tensor itself.

    name: name of the tensor in the checkpoint. value: the tensor, or the matrix that it was rounded to.
    scheme: how the matrix was rounded; None for a tensor that was not.
    """
    if isinstance(value, Tensor):
        return {name: value}
    assert scheme is not None
    return {f"{_module(name)}.{ending}": part for ending, part in parts_of(value, scheme).items()}


def _empty_parts(name: str, tensor: StoredTensor, scheme: Scheme | None) -> dict[str, Tensor]:
    """The tensors that `_parts` returns, with shapes and dtypes only, on the meta device."""
    if scheme is not None:
        return _parts(name, scheme.layout(tensor.shape), scheme)
    return {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")}


def _module(name: str) -> str:
    return name.removesuffix(".weight")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
