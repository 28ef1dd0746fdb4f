"""Weights that the workers of one server share: packed once by the first worker, mapped read-only by all of them.

The memory is a memfd of the HTTP process (`server.ipc.workers.weight_memory`). It is complete when the kernel has
sealed it against writing, and then never changes. A worker that finds it incomplete takes a lock, loads the models as
it would without sharing, and writes each tensor with which they compute. It then seals the memory, maps it and uses it
like the other workers, so that all of them compute with the same bytes. If the writing worker dies, the kernel releases
its lock, and the next worker starts again. A worker that starts later, for example after a crash, reads no weights of
the checkpoint and packs nothing.

The layout is: tensors, each at a multiple of 64 bytes, in the order in which loading keeps them; an `_Index` in
msgpack; its length. A mapped tensor cannot be written: an attempt is a segmentation fault in the worker that makes it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import time
from collections.abc import Callable, Sequence

import msgspec
import torch
from torch import Tensor

from models.backends import choice
from models.backends.huge_pages import map_in_huge_pages
from server.ipc.wire.descriptions import ModelSpec
from server.ipc.workers.weight_memory import files_fingerprint

log = logging.getLogger("triptych.worker")

_ALIGNMENT = 64
_TRAILER = struct.Struct("<Q")
_POLL_SECONDS = 0.05


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor. offset: position of its first byte in the memory."""

    dtype: str
    shape: list[int]
    offset: int


class _Index(msgspec.Struct, frozen=True):
    """Index at the end of the memory.

    fingerprint: names the files and versions from which the tensors were made.
    tensors: in the order of the calls of `keep`.
    """

    fingerprint: str
    tensors: list[_Entry]


class WritingMemory:
    """Writes tensors to the memfd that the workers share. Implements `TensorMemory`.

    `keep` returns tensors on the meta device, which have no contents.
    descriptor: file descriptor of the memfd, whose previous contents are dropped.
    The constructor and all methods raise OSError if there is no memory left.
    """

    is_filled = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._end = descriptor, 0
        self._entries: list[_Entry] = []
        os.ftruncate(descriptor, 0)

    def keep(self, tensor: Tensor) -> Tensor:
        """Write a tensor. Returns a tensor of the same shape and dtype on the meta device, which has no contents."""
        tensor = tensor.detach()
        self._entries.append(_Entry(_name(tensor.dtype), list(tensor.shape), self._end))
        self._write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        self._end = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    def seal(self, fingerprint: str) -> None:
        """Write the index and seal the memory. After this call no process can change the memory.

        fingerprint: names the files and versions from which the tensors were made.
        """
        index = msgspec.msgpack.encode(_Index(fingerprint, self._entries))
        self._write(memoryview(index + _TRAILER.pack(len(index))))
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)

    def _write(self, content: memoryview) -> None:
        while len(content):
            written = os.pwrite(self._descriptor, content, self._end)
            self._end += written
            content = content[written:]


class MappedMemory:
    """Maps the tensors of sealed memory, read-only. Implements `TensorMemory`.

    fingerprint: a text that names the files of the models, and the versions of the kernels and of torch, from which the
        tensors were made.
    """

    is_filled = True

    def __init__(self, descriptor: int) -> None:
        self._map = map_in_huge_pages(descriptor, os.fstat(descriptor).st_size)
        end = len(self._map) - _TRAILER.size
        (length,) = _TRAILER.unpack_from(self._map, end)
        index = msgspec.msgpack.decode(memoryview(self._map)[end - length : end], type=_Index)
        self.fingerprint = index.fingerprint
        self._entries = iter(index.tensors)

    def keep(self, tensor: Tensor) -> Tensor:
        """Return the next tensor of the memory in place of `tensor`, which must have the same shape and dtype.

        The contents of `tensor` are not used.
        """
        entry = next(self._entries, None)
        found = None if entry is None else (entry.dtype, entry.shape)
        assert entry is not None and found == (_name(tensor.dtype), list(tensor.shape)), (
            f"the shared weights have {found}, but the model has {tensor.dtype} {list(tensor.shape)}"
        )
        if tensor.numel() == 0:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        flat = torch.frombuffer(self._map, dtype=tensor.dtype, count=tensor.numel(), offset=entry.offset)
        return flat.view(tensor.shape)


def map_weights(
    descriptor: int,
    expected_fingerprint: str,
    write: Callable[[WritingMemory], object],
) -> MappedMemory | None:
    """Map the weights that the workers share. If they are not complete, write them first, or wait for another worker.

    descriptor: the memory.
    expected_fingerprint: fingerprint of the models to load.
    write: loads all models, with the given memory.
    Returns None if the memory has the weights of other files, because a checkpoint has changed on disk.
    Raises the exceptions of `write`, and OSError if there is no memory left.
    """
    while not _is_sealed(descriptor):
        if _lock(descriptor):
            try:
                if not _is_sealed(descriptor):
                    memory = WritingMemory(descriptor)
                    write(memory)
                    memory.seal(expected_fingerprint)
            except BaseException:
                os.ftruncate(descriptor, 0)
                raise
            finally:
                fcntl.lockf(descriptor, fcntl.LOCK_UN)
        else:
            time.sleep(_POLL_SECONDS)
    mapped = MappedMemory(descriptor)
    return mapped if mapped.fingerprint == expected_fingerprint else None


def fingerprint(models: Sequence[ModelSpec]) -> str:
    """A text that is equal only for equal tensors. It depends on the models' files and on kernel and torch versions."""
    return f"{files_fingerprint(models)} {choice.kernels_version()} {torch.__version__}"


def _is_sealed(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)


def _lock(descriptor: int) -> bool:
    """Try to take the lock for writing the memory. Returns whether this process has it now.

    The kernel releases the lock when the process ends.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
