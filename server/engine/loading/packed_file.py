"""A file of packed weights: the tensors with which a loaded model computes, in the order in which loading keeps them.

The layout is: a header of 64 bytes; tensors, each at a multiple of 64 bytes; a `_StoredIndex` in msgpack. The header
has the offset and the SHA-256 of the index. An incomplete file is never used: its header is written last, and the file
gets its final name after that (`server.engine.loading.packed_cache`).
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import msgspec
import torch
from torch import Tensor

from models.backends.huge_pages import empty_in_huge_pages, map_in_huge_pages
from models.backends.tensor_memory import TensorMemory

_MAGIC = b"TRIPACK1"
_HEADER = struct.Struct("<8sQQ32s8x")
"""Header of the file: the magic number, and the offset, the length and the SHA-256 of the index."""
_ALIGNMENT = 64
_MAX_INDEX_BYTES = 64 << 20
_SYNCED_BYTES = 64 << 20
"""Bytes after which the file is flushed to the disk. A larger flush would delay the heartbeats of a loading worker."""
_HASHED_BYTES = 16 << 20
_READ_BYTES = 16 << 20
"""Bytes that a thread is given at a time, so that a large tensor is read by all threads."""
_CALL_BYTES = 2 << 20
"""Bytes that one system call reads. During the call, the kernel may not give the core to another thread."""
_MAX_THREADS = 4
"""Threads that read a file. More threads would only wait for the memory."""


ReadTurn = Callable[[], AbstractContextManager[None]]
"""Makes the context manager in which a thread makes one system call that reads a file."""


class PackedFileError(Exception):
    """A file of packed weights cannot be used. The message says why, without its path."""


class _StoredTensor(msgspec.Struct, frozen=True, array_like=True):
    """One tensor. offset: position of its first byte in the file. size: number of bytes."""

    dtype: str
    shape: list[int]
    offset: int
    size: int


class _StoredIndex(msgspec.Struct, frozen=True):
    """Index at the end of the file.

    key: the `packed_key`, which names the files and the code from which the tensors were made.
    sha256: digest of all bytes between the header and the index.
    """

    key: str
    sha256: bytes
    tensors: list[_StoredTensor]


class PackingMemory:
    """Writes each tensor to a file, and keeps it in other memory. Implements `TensorMemory`.

    After an error of the file system nothing more is written, and the load goes on. `problem` then has the error.

    descriptor: an empty file. memory: keeps the tensors.
    make_room: called with the size that the file will have next; raises OSError if the file must not become so large.
    """

    is_filled = False

    def __init__(self, descriptor: int, memory: TensorMemory, make_room: Callable[[int], None]) -> None:
        self.problem: OSError | None = None
        self._descriptor, self._memory, self._make_room = descriptor, memory, make_room
        self._entries: list[_StoredTensor] = []
        self._hash = hashlib.sha256()
        self._end = self._synced = _HEADER.size

    def keep(self, tensor: Tensor) -> Tensor:
        if self.problem is None:
            try:
                self._add(tensor.detach().contiguous())
            except OSError as error:
                self.problem = error
        return self._memory.keep(tensor)

    def finish(self, key: str) -> None:
        """Write the index and the header, and wait until the file is on the disk.

        Raises OSError if this fails, or if an earlier write has failed.
        """
        if self.problem is not None:
            raise self.problem
        index = msgspec.msgpack.encode(_StoredIndex(key, self._hash.digest(), self._entries))
        self._make_room(self._end + len(index))
        self._write(memoryview(index), self._end)
        header = _HEADER.pack(_MAGIC, self._end, len(index), hashlib.sha256(index).digest())
        self._write(memoryview(header), 0)
        os.fsync(self._descriptor)

    def _add(self, tensor: Tensor) -> None:
        content = tensor.flatten().view(torch.uint8).numpy()
        padding = bytes(-content.nbytes % _ALIGNMENT)
        end = self._end + content.nbytes + len(padding)
        self._make_room(end)
        self._entries.append(_StoredTensor(_name(tensor.dtype), list(tensor.shape), self._end, content.nbytes))
        for part in (memoryview(content.data), memoryview(padding)):
            self._hash.update(part)
            self._write(part, self._end)
            self._end += len(part)
        if self._end - self._synced >= _SYNCED_BYTES:
            os.fsync(self._descriptor)
            self._synced = self._end

    def _write(self, content: memoryview, offset: int) -> None:
        while len(content):
            written = os.pwrite(self._descriptor, content, offset)
            content, offset = content[written:], offset + written


class PackedFile:
    """A file that `PackingMemory` has finished. Its header, index and sizes are checked; its tensors are not.

    descriptor: the file, which the caller closes.
    key: the `packed_key` that the file must have; None to accept every key.
    Raises PackedFileError if the file cannot be read, is damaged, or has another key.
    """

    def __init__(self, descriptor: int, key: str | None = None) -> None:
        self.descriptor = descriptor
        try:
            size = os.fstat(descriptor).st_size
            header = os.pread(descriptor, _HEADER.size, 0)
            if len(header) != _HEADER.size:
                raise PackedFileError("it is shorter than its header")
            magic, self._end, length, digest = _HEADER.unpack(header)
            if magic != _MAGIC:
                raise PackedFileError("it has another format")
            if length > _MAX_INDEX_BYTES or self._end + length != size or self._end < _HEADER.size:
                raise PackedFileError(f"its size is {size:,} bytes, not the size in its header")
            index = os.pread(descriptor, length, self._end)
        except OSError as error:
            raise PackedFileError(f"it cannot be read ({error.strerror})") from error
        if hashlib.sha256(index).digest() != digest:
            raise PackedFileError("its index is damaged")
        try:
            self._index = msgspec.msgpack.decode(index, type=_StoredIndex)
        except msgspec.DecodeError as error:
            raise PackedFileError("its index has another format") from error
        if key is not None and self._index.key != key:
            raise PackedFileError("it was made from other files or settings")
        last = _HEADER.size
        for entry in self._index.tensors:
            if entry.size < 0 or entry.offset % _ALIGNMENT or not last <= entry.offset <= self._end - entry.size:
                raise PackedFileError("a tensor lies outside the file")
            last = entry.offset + entry.size
        self.tensors = self._index.tensors

    def check_content(self) -> None:
        """Compare the tensors with the hash from the time when they were written.

        Raises PackedFileError if they differ or cannot be read.
        """
        found, offset = hashlib.sha256(), _HEADER.size
        while offset < self._end:
            part = self._read(min(_HASHED_BYTES, self._end - offset), offset)
            found.update(part.numpy().data)
            offset += part.nbytes
        if found.digest() != self._index.sha256:
            raise PackedFileError("its tensors have changed since they were written")

    def read_into(self, target: memoryview, offset: int, turn: ReadTurn = nullcontext) -> None:
        """Fill memory with the bytes of the file from `offset` on. turn: see `ReadTurn`. Raises PackedFileError."""
        try:
            while len(target):
                with turn():
                    count = os.preadv(self.descriptor, [target[:_CALL_BYTES]], offset)
                if count == 0:
                    raise PackedFileError("it was cut off")
                target, offset = target[count:], offset + count
        except OSError as error:
            raise PackedFileError(f"it cannot be read ({error.strerror})") from error

    def _read(self, size: int, offset: int) -> Tensor:
        content = empty_in_huge_pages(size, _BYTES)
        self.read_into(memoryview(content.numpy().data), offset)
        return content


class _TensorReads:
    """Reads all tensors of a file in their order, with several threads, while the model is built.

    The threads have the priority of the thread that creates this object. turn: see `ReadTurn`.
    """

    def __init__(self, file: PackedFile, turn: ReadTurn) -> None:
        self._turn = turn
        self._pool = ThreadPoolExecutor(min(torch.get_num_threads(), _MAX_THREADS), "read")
        self._reads: list[tuple[Tensor, list[Future[None]]]] = []
        for entry in file.tensors:
            content = empty_in_huge_pages(entry.size, _BYTES)
            view = memoryview(content.numpy().data)
            parts = range(0, entry.size, _READ_BYTES)
            self._reads.append(
                (content, [self._submit(file, view[at : at + _READ_BYTES], entry.offset + at) for at in parts])
            )

    def _submit(self, file: PackedFile, target: memoryview, offset: int) -> Future[None]:
        return self._pool.submit(file.read_into, target, offset, self._turn)

    def tensor(self, index: int) -> Tensor:
        """A tensor as bytes, [size], in huge pages where the system has them. Raises PackedFileError."""
        content, parts = self._reads[index]
        for part in parts:
            part.result()
        return content

    def close(self) -> None:
        """End the threads. Reads that have not begun are cancelled."""
        self._pool.shutdown(cancel_futures=True)


class ReadingMemory:
    """A `TensorMemory` that replaces each tensor of a model by the next tensor of a packed file.

    file: the file, which must stay open while tensors are kept.
    maps: True to map the file, for tensors that will be copied; False to read it into memory of this process.
    progress: called with the bytes of the kept tensors so far and in total.
    turn: see `ReadTurn`; not used for a mapped file.
    """

    is_filled = True

    def __init__(
        self, file: PackedFile, maps: bool, progress: Callable[[int, int], None], turn: ReadTurn = nullcontext
    ) -> None:
        self.kept: list[Tensor] = []
        self._file, self._progress, self._turn = file, progress, turn
        self._entries = iter(file.tensors)
        self._done, self._total = 0, sum(entry.size for entry in file.tensors)
        size = os.fstat(file.descriptor).st_size
        self._map = map_in_huge_pages(file.descriptor, size) if maps else None
        self._reads: _TensorReads | None = None

    def close(self) -> None:
        """Stop reading the file. Tensors that `keep` has returned stay valid."""
        if self._reads is not None:
            self._reads.close()
            self._reads = None

    def keep(self, tensor: Tensor) -> Tensor:
        """Return the next tensor of the file in place of `tensor`.

        Raises PackedFileError if there is none, or if its dtype or shape differs.
        """
        entry = next(self._entries, None)
        size = tensor.numel() * tensor.dtype.itemsize
        expected = (_name(tensor.dtype), list(tensor.shape), size)
        if entry is None or (entry.dtype, entry.shape, entry.size) != expected:
            raise PackedFileError("its tensors are those of another model")
        # The first report ends the limit of the memory before a weight is read.
        self._progress(self._done, self._total)
        if size == 0:
            content = torch.empty(0, dtype=torch.uint8)
        elif self._map is None:
            if self._reads is None:
                self._reads = _TensorReads(self._file, self._turn)
            content = self._reads.tensor(len(self.kept))
        else:
            content = torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=entry.offset)
        self._done += size
        found = content.view(tensor.dtype).view(tensor.shape)
        self.kept.append(found)
        return found

    def finish(self) -> None:
        """Report that all bytes are read. Raises PackedFileError if the file has further tensors."""
        if next(self._entries, None) is not None:
            raise PackedFileError("its tensors are those of another model")
        self._progress(self._total, self._total)


_BYTES = torch.empty(0, dtype=torch.uint8)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
