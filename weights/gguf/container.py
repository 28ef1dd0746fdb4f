"""Read the header of a GGUF file: its metadata, and the type, shape and offset of each tensor.

The file is memory-mapped. Arrays in the metadata, such as the vocabulary, are decoded when they are needed.
No length or offset in the file is used before it is compared with the size of the file.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from weights.errors import GgufError
from weights.gguf.choose import pieces
from weights.gguf.key_kinds import KEY_KINDS
from weights.gguf.types import OTHER_NAMES, TYPES, BlockType

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_MAX_KEY_BYTES = 65535
_MAX_TENSORS, _MAX_KEYS, _MAX_ELEMENTS = 1 << 16, 1 << 12, 1 << 22
"""Largest number of tensors, of metadata keys, and of elements in all arrays together, because each takes time to read.

Published files have up to 2,000 tensors, 100 keys and 1,500,000 elements."""
_MAX_TEXT_BYTES = 1 << 28
"""Largest size in bytes of all single texts in the metadata together, and of the texts in one array.

Published vocabularies have up to 10 MB, chat templates up to 1 MB."""
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor is stored, and how.

    shape: as in torch, outputs before inputs (files have the reverse order).
    offset: index of the tensor's first byte in the file. nbytes: number of its bytes.
    file: the file that contains it.
    """

    shape: tuple[int, ...]
    type: BlockType
    offset: int
    nbytes: int
    file: GgufFile

    def data(self) -> memoryview:
        """The bytes of the tensor, as a view of the memory-mapped file."""
        return memoryview(self.file.mapped)[self.offset : self.offset + self.nbytes]


@dataclass(frozen=True)
class _Array:
    """An array in the metadata that is not decoded yet.

    kind: GGUF type of its elements. start: offset of its first element in the file.
    """

    kind: int
    length: int
    start: int


class GgufFile:
    """The header of one GGUF file. Opening a damaged, unsupported or too large file raises GgufError.

    tensors: by their names in the file.
    mapped: the whole file, memory-mapped.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        if not path.is_file():  # opening a pipe would wait for a writer
            raise GgufError(f"{self.name!r} is not a regular file")
        try:
            with path.open("rb") as file:
                self.mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            reason = "is empty" if isinstance(error, ValueError) else "cannot be read"
            raise GgufError(f"{self.name!r} {reason}") from None
        self._at = self._num_elements = self._text_bytes = 0
        try:
            self._values, tensors = self._read_header()
        except (struct.error, OverflowError):
            raise self._truncated() from None
        self.tensors = {name: self._place(name, *place) for name, place in tensors.items()}
        self._check_overlaps()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key, an array as a list; `default` without this key.

        Raises GgufError for text that is not UTF-8.
        """
        value = self._values.get(key, default)
        return self._decoded(key, value) if isinstance(value, _Array) else value

    def length(self, key: str) -> int:
        """Length of an array in the metadata; 0 if the metadata has no array under this key."""
        value = self._values.get(key)
        return value.length if isinstance(value, _Array) else 0

    def texts(self, key: str, indices: Collection[int]) -> dict[int, str]:
        """The elements at `indices` of an array of texts, by index.

        Raises GgufError if the key has no such array, for an index beyond its end, and for text that is not UTF-8.
        """
        array, wanted = self._values.get(key), sorted(set(indices))
        if not isinstance(array, _Array) or array.kind != _STRING or (wanted and wanted[-1] >= array.length):
            raise GgufError(f"{self.name!r} is damaged: {key!r} is not a list of texts, or too short")
        found, index, at, unpack, mapped = {}, 0, array.start, struct.Struct("<Q").unpack_from, self.mapped
        for next_index in wanted:
            for _ in range(next_index - index):
                at += 8 + unpack(mapped, at)[0]
            (length,) = unpack(mapped, at)
            found[next_index] = self._utf8(mapped[at + 8 : at + 8 + length])
            index, at = next_index + 1, at + 8 + length
        return found

    def _read_header(self) -> tuple[dict[str, Any], dict[str, tuple[tuple[int, ...], int, int]]]:
        if self.mapped[:4] != MAGIC:
            raise GgufError(f"{self.name!r} is not a GGUF file")
        self._at = 4
        version = self._scalar("I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            reason = "is written for big-endian processors" if swapped in _VERSIONS else f"has GGUF version {version}"
            raise GgufError(f"{self.name!r} {reason}, which is not supported; versions 2 and 3 are")
        num_tensors, num_keys = self._scalar("Q"), self._scalar("Q")
        if num_tensors + num_keys > len(self.mapped) // 8:  # each tensor or key takes more than eight bytes
            raise self._truncated()
        for count, most, what in ((num_tensors, _MAX_TENSORS, "tensors"), (num_keys, _MAX_KEYS, "keys")):
            if count > most:
                raise GgufError(f"{self.name!r} has {count:,} {what}; the limit is {most:,}")
        values: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._text(_MAX_KEY_BYTES)
            if key in values:
                raise GgufError(f"{self.name!r} is damaged: it has the key {key[:80]!r} twice")
            kind = self._scalar("I")
            values[key] = self._value(kind)
            self._check_kind(key, kind, values[key])
        tensors: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(num_tensors):
            name, dimensions = self._text(_MAX_KEY_BYTES), self._scalar("I")
            if dimensions > _MAX_DIMENSIONS:
                raise GgufError(f"{self.name!r} is damaged: tensor {name[:80]!r} has {dimensions} dimensions")
            shape = tuple(self._scalar("Q") for _ in range(dimensions))[::-1]
            if name in tensors:
                raise GgufError(f"{self.name!r} is damaged: it has the tensor {name[:80]!r} twice")
            tensors[name] = (shape, self._scalar("I"), self._scalar("Q"))
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            raise GgufError(f"{self.name!r} is damaged: 'general.alignment' must be a multiple of 8")
        self._data_start = -(-self._at // alignment) * alignment
        return values, tensors

    def _place(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
        block = TYPES.get(kind)
        if block is None:
            named = OTHER_NAMES.get(kind, f"number {kind}")
            supported = ", ".join(known.name for known in TYPES.values())
            raise GgufError(
                f"{self.name!r}: tensor {name[:80]!r} has type {named}, which is not supported, only {supported}"
            )
        if not shape or 0 in shape or shape[-1] % block.weights:
            raise GgufError(
                f"{self.name!r} is damaged: tensor {name[:80]!r} of shape {list(shape)} does not consist of "
                f"{block.name} blocks of {block.weights}"
            )
        nbytes, start = prod(shape) // block.weights * block.nbytes, self._data_start + offset
        if start + nbytes > len(self.mapped):
            raise self._truncated()
        return GgufTensor(shape, block, start, nbytes, self)

    def _check_kind(self, key: str, kind: int, value: Any) -> None:
        """Raise GgufError if `value` does not have the type that `KEY_KINDS` states for the key.

        kind: GGUF type of the value.
        """
        expected = KEY_KINDS.get(key)
        if expected is None:
            return
        is_list = isinstance(value, _Array)
        if is_list != expected.is_list or (value.kind if is_list else kind) not in expected.elements:
            raise GgufError(f"{self.name!r} is damaged: {key!r} is not {expected.words}")

    def _check_overlaps(self) -> None:
        """Raise GgufError for tensors that share bytes, because a small file could describe a model of any size."""
        end, before = 0, ""
        for start, name in sorted((tensor.offset, name) for name, tensor in self.tensors.items()):
            if start < end:
                raise GgufError(f"{self.name!r} is damaged: tensors {before[:80]!r} and {name[:80]!r} overlap")
            end, before = start + self.tensors[name].nbytes, name

    def _truncated(self) -> GgufError:
        return GgufError(f"{self.name!r} is truncated or damaged: it has only {len(self.mapped):,} bytes")

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.mapped, self._at)
        self._at += struct.calcsize(f"<{code}")
        return value

    def _skip(self, nbytes: int) -> int:
        """Advance the read position by `nbytes`, and return the position before. Raises GgufError at the file's end."""
        start = self._at
        if nbytes > len(self.mapped) - start:
            raise self._truncated()
        self._at = start + nbytes
        return start

    def _text(self, max_bytes: int = _MAX_TEXT_BYTES) -> str:
        length = self._scalar("Q")
        if length > max_bytes:
            raise GgufError(f"{self.name!r} is damaged: a name or text has {length:,} bytes, more than {max_bytes:,}")
        start = self._skip(length)
        self._text_bytes += length
        if self._text_bytes > _MAX_TEXT_BYTES:
            raise GgufError(
                f"{self.name!r} has texts of {self._text_bytes:,} or more bytes in its metadata; the limit is "
                f"{_MAX_TEXT_BYTES:,}"
            )
        return self._utf8(self.mapped[start : start + length])

    def _utf8(self, content: bytes) -> str:
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise GgufError(f"{self.name!r} is damaged: a text in it is not UTF-8") from None

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        if kind == _BOOL:
            return self._scalar("B") != 0
        if kind not in _SCALARS:
            raise GgufError(f"{self.name!r} is damaged: a value of the metadata has type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> _Array:
        kind, length = self._scalar("I"), self._scalar("Q")
        start = self._at
        if length > len(self.mapped) - start:
            raise self._truncated()
        self._num_elements += length
        if self._num_elements > _MAX_ELEMENTS:
            raise GgufError(
                f"{self.name!r} has {self._num_elements:,} or more elements in its arrays; the limit is "
                f"{_MAX_ELEMENTS:,}"
            )
        if kind == _STRING:
            if length > (len(self.mapped) - start) // 8:
                raise self._truncated()
            mapped, at, unpack = self.mapped, start, struct.Struct("<Q").unpack_from
            for _ in range(length):
                at += 8 + unpack(mapped, at)[0]
            if at > len(mapped):
                raise self._truncated()
            if at - start > _MAX_TEXT_BYTES:
                raise GgufError(
                    f"{self.name!r} has an array of texts of {at - start:,} bytes; the limit is {_MAX_TEXT_BYTES:,}"
                )
            self._at = at
        elif kind in _SCALARS:
            self._skip(length * struct.calcsize(f"<{_SCALARS[kind]}"))
        else:
            raise GgufError(f"{self.name!r} is damaged: an array of the metadata has elements of type {kind}")
        return _Array(kind, length, start)

    def _decoded(self, key: str, array: _Array) -> list[Any]:
        if array.kind != _STRING:
            code = _SCALARS[array.kind]
            return list(struct.unpack_from(f"<{array.length}{code}", self.mapped, array.start))
        texts, at, unpack, mapped = [], array.start, struct.Struct("<Q").unpack_from, self.mapped
        try:
            for _ in range(array.length):
                (length,) = unpack(mapped, at)
                texts.append(mapped[at + 8 : at + 8 + length].decode("utf-8"))
                at += 8 + length
        except UnicodeDecodeError:
            raise GgufError(f"{self.name!r} is damaged: element {len(texts)} of {key!r} is not UTF-8") from None
        return texts


class Gguf:
    """A model in one GGUF file or in several pieces, each with a part of the tensors.

    tensors: the tensors of all files, by name. Raises GgufError for a tensor that is in two files.
    """

    def __init__(self, files: list[GgufFile]) -> None:
        self._first = files[0]
        self.tensors: dict[str, GgufTensor] = {}
        for file in files:
            for name, tensor in file.tensors.items():
                if name in self.tensors:
                    raise GgufError(
                        f"tensor {name[:80]!r} is in both {self.tensors[name].file.name!r} and {file.name!r}"
                    )
                self.tensors[name] = tensor

    @property
    def name(self) -> str:
        return self._first.name

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key in the first file, an array as a list; `default` without this key."""
        return self._first.get(key, default)

    def length(self, key: str) -> int:
        """Length of an array in the metadata; 0 if the metadata has no array under this key."""
        return self._first.length(key)

    def texts(self, key: str, indices: Collection[int]) -> dict[int, str]:
        """The elements at `indices` of an array of texts in the metadata, by index.

        Raises GgufError if the key has no such array, for an index beyond its end, and for text that is not UTF-8.
        """
        return self._first.texts(key, indices)

    def floats(self, name: str) -> tuple[float, ...]:
        """Read a small float32 tensor, such as a table of rotary factors. Raises GgufError for another tensor type."""
        tensor = self.tensors[name]
        if tensor.type.name != "F32":
            raise GgufError(f"{self.name!r}: tensor {name!r} has type {tensor.type.name}, not F32")
        return struct.unpack(f"<{prod(tensor.shape)}f", tensor.data())


def read_gguf(path: Path) -> Gguf:
    """Read the headers of the model whose first file is `path`. Raises GgufError for damaged or missing files."""
    try:
        statuses = tuple((str(piece), piece.stat().st_size, piece.stat().st_mtime_ns) for piece in pieces(path))
    except OSError:
        raise GgufError(f"{path.name!r} cannot be read") from None
    return _read(statuses)


@lru_cache(maxsize=2)
def _read(statuses: tuple[tuple[str, int, int], ...]) -> Gguf:
    """Read the headers of the files of a model.

    statuses: path, size in bytes and time of modification in nanoseconds of each file. The result is cached by these
        values, because several callers need the same headers.
    """
    files = [GgufFile(Path(path)) for path, _, _ in statuses]
    stated = files[0].get("split.count", 1)
    if isinstance(stated, int) and stated > 1 and stated != len(files):
        raise GgufError(
            f"{files[0].name!r} is one of {stated} pieces, and its name must end in -00001-of-{stated:05}.gguf"
        )
    return Gguf(files)
