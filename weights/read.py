"""Read the tensors of a checkpoint by name, each when it is needed.

Reads safetensors (https://github.com/huggingface/safetensors), one file or shards with an index, memory-mapped. Without
them it reads `pytorch_model.bin` with `torch.load(weights_only=True)`, so that no checkpoint can run code. A checkpoint
may also be a GGUF file instead of a directory.
"""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from weights.bounded_json import BadJson, parse_index
from weights.errors import ResolveError, WeightsError, shown
from weights.gguf.choose import is_gguf
from weights.gguf.container import read_gguf
from weights.quantized.gguf import stored_tensors
from weights.resolve import file_in
from weights.stored import MatrixFormat, Stored, StoredTensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
MAX_TENSORS = 1 << 18
"""Largest number of tensors in a file. Published checkpoints have up to 207,000 in all their files together."""
MAX_HEADER_BYTES = 100_000_000
"""Longest header of a safetensors file that the safetensors library reads."""
MAX_HEADER_COMMAS = 8 * MAX_TENSORS
"""Largest number of commas in the header of a safetensors file. A tensor of four dimensions has seven."""
MAX_OBJECTS_BYTES = 8 << 20
"""Largest list of objects (`data.pkl`) in a pickled checkpoint. A tensor takes about 120 bytes, so 70,000 fit."""


@contextmanager
def open_checkpoint(
    directory: Path, folder: str = "", matrix_format: MatrixFormat | None = None, file: str = ""
) -> Iterator[Mapping[str, Stored]]:
    """Open the tensors of a checkpoint, by name, in the order of the files. They are readable inside the `with` block.

    directory: directory of the checkpoint, or a GGUF file.
    folder: subdirectory of the weight files; empty for the directory itself.
    matrix_format: format of quantised matrices, or None if there are none.
    file: name of the only weight file, safetensors or a pickle of tensors; empty for the usual names.

    Raises WeightsError for a missing, truncated or damaged file, a missing shard, a pickle of other objects than
    tensors, a tensor that is in two files, and a file outside the directory.
    """
    if is_gguf(directory):
        yield _read_gguf(directory)
        return
    try:
        files, indexed, read_file = _find_files(directory, f"{folder}/" if folder else "", file)
        tensors: dict[str, StoredTensor] = {}
        for file in files:
            path = file_in(directory, file)
            if path is None:
                raise WeightsError(f"the shard '{shown(file)}' of the checkpoint is missing")
            for name, tensor in read_file(path).items():
                if name in tensors:
                    raise WeightsError(f"tensor '{shown(name)}' is in both {tensors[name].file!r} and {file!r}")
                tensors[name] = tensor
    except ResolveError as error:
        raise WeightsError(str(error)) from None
    for name, file in indexed.items():
        if name not in tensors:
            raise WeightsError(f"the index lists tensor '{shown(name)}' in {file!r}, but the file does not contain it")
    yield tensors if matrix_format is None else matrix_format.matrices(tensors)


@contextmanager
def open_safetensors(directory: Path, file: str) -> Iterator[Mapping[str, StoredTensor]]:
    """Open the tensors of one safetensors file in a directory. They are readable inside the `with` block.

    Raises WeightsError for a missing or damaged file, and for one outside the directory.
    """
    try:
        path = file_in(directory, file)
    except ResolveError as error:
        raise WeightsError(str(error)) from None
    if path is None:
        raise WeightsError(f"the directory has no {file}")
    yield _read_safetensors(path)


def _find_files(
    directory: Path, prefix: str, file: str
) -> tuple[list[str], Mapping[str, str], Callable[[Path], Mapping[str, StoredTensor]]]:
    """Find the weight files of a directory: only `file`, or safetensors, or else pickles.

    prefix: subdirectory of the weight files with a final slash, or empty.
    Returns the files, the index (file of each tensor by the tensor's name; empty without an index), and a function that
    reads a file. Raises WeightsError if there are none.
    """
    if file:
        return [prefix + file], {}, _read_safetensors if file.endswith(".safetensors") else _read_pickle
    for single, reader in (("model.safetensors", _read_safetensors), ("pytorch_model.bin", _read_pickle)):
        if file_in(directory, prefix + single) is not None:
            return [prefix + single], {}, reader
        index = file_in(directory, f"{prefix}{single}.index.json")
        if index is not None:
            indexed = {name: prefix + file for name, file in _read_index(index).items()}
            return sorted(set(indexed.values())), indexed, reader
    raise WeightsError("the checkpoint directory has neither model.safetensors nor pytorch_model.bin")


def _read_index(path: Path) -> dict[str, str]:
    try:
        return parse_index(path)
    except BadJson as error:
        raise WeightsError(f"{path.name!r} is not an index of weights: {error}") from None


def _read_gguf(path: Path) -> Mapping[str, Stored]:
    try:
        return stored_tensors(read_gguf(path))
    except ResolveError as error:
        raise WeightsError(str(error)) from None


def _read_safetensors(path: Path) -> Mapping[str, StoredTensor]:
    try:
        _check_header(path)
        file: Any = safe_open(path, framework="pt", device="cpu")
        names = file.keys()
        if len(names) > MAX_TENSORS:
            raise WeightsError(f"{path.name!r} has {len(names):,} tensors; the limit is {MAX_TENSORS:,}")
        slices = {name: file.get_slice(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path.name!r} is truncated or damaged: {_one_line(error, path)}") from None
    return {
        name: StoredTensor(
            tuple(part.get_shape()), DTYPES.get(part.get_dtype()), path.name, partial(file.get_tensor, name)
        )
        for name, part in slices.items()
    }


def _check_header(path: Path) -> None:
    """Raise WeightsError for a safetensors header with too many values, before the library parses all of them."""
    with path.open("rb") as file:
        header = file.read(min(int.from_bytes(file.read(8), "little"), MAX_HEADER_BYTES))
    if (tensors := header.count(b'"dtype"')) > MAX_TENSORS:
        raise WeightsError(f"{path.name!r} has {tensors:,} tensors; the limit is {MAX_TENSORS:,}")
    if (commas := header.count(b",")) > MAX_HEADER_COMMAS:
        raise WeightsError(f"{path.name!r} has a header of {commas:,} values; the limit is {MAX_HEADER_COMMAS:,}")


def _read_pickle(path: Path) -> Mapping[str, StoredTensor]:
    _check_archive(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # of other protocols of pickles, in two lines
            try:
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError as error:
                if "mmap" not in str(error):  # files written before torch 1.6 cannot be memory-mapped
                    raise
                content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise WeightsError(
            f"{path.name!r} is damaged, or contains objects that could run code: convert it to safetensors"
        ) from None
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, AttributeError, TypeError, MemoryError) as error:
        raise WeightsError(f"{path.name!r} is truncated or damaged ({type(error).__name__})") from None
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        raise WeightsError(f"{path.name!r} contains other objects than named tensors: convert it to safetensors")
    for name, tensor in content.items():
        if tensor.layout is not torch.strided or tensor.nbytes > tensor.untyped_storage().nbytes():
            raise WeightsError(f"tensor '{shown(name)}' in {path.name!r} has more numbers than the file has for it")
    known = set(DTYPES.values())
    return {
        name: StoredTensor(tuple(value.shape), value.dtype if value.dtype in known else None, path.name, value.detach)
        for name, value in content.items()
    }


def _check_archive(path: Path) -> None:
    """Raise WeightsError for a pickled checkpoint that would take too much memory or time to read.

    Refuses a compressed archive, which torch never writes; an archive whose parts overlap; and an archive whose list of
    objects is larger than `MAX_OBJECTS_BYTES`, because Python takes 8 microseconds for each entry.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return  # an older format, or a damaged file, which torch reports
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.file_size > entry.compress_size for entry in entries):
        raise WeightsError(
            f"{path.name!r} is a compressed archive, which torch does not write: convert it to safetensors"
        )
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise WeightsError(f"{path.name!r} is damaged: parts of the archive overlap")
    objects = sum(entry.file_size for entry in entries if entry.filename.endswith("data.pkl"))
    if objects > MAX_OBJECTS_BYTES:
        raise WeightsError(
            f"{path.name!r} has a list of objects of {objects:,} bytes, more than {MAX_OBJECTS_BYTES:,}: convert it to "
            "safetensors"
        )


def _one_line(error: Exception, path: Path) -> str:
    text = " ".join(str(error).split()).replace(str(path), path.name).replace(str(path.parent), "")
    return text[:160]
