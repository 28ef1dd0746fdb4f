"""Keeps the packed weights of models in a directory, so that a later load packs nothing.

Each file has the weights of one model. Its name is a digest of the `packed_key`; `server.engine.loading.packed_file` is
its format. Only files and directories that belong to this user, and that no other user may read or write, are used. A
file is written under a temporary name, locked by its writer, and gets its final name when it is on the disk. Processes
that write the same file do not disturb each other: the last one replaces the file. The files together have a limit in
bytes; the least recently used files are removed. See docs/decisions/0161-packed-weights-on-disk.md.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import platform
import secrets
import stat
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from msgspec.structs import replace

from models.backends import choice
from models.backends.tensor_memory import PRIVATE, TensorMemory
from server.engine.loading.packed_file import PackedFile, PackedFileError, PackingMemory, ReadingMemory, ReadTurn
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.workers.weight_memory import files_fingerprint
from weights import errors

log = logging.getLogger("triptych.worker")

_SUFFIX, _UNFINISHED = ".packed", ".writing"
_Loaded = TypeVar("_Loaded")


class _CachedFile(NamedTuple):
    """A file of the cache directory.

    used: modification time in nanoseconds. Reading a file sets it to the present time.
    size: size in bytes.
    """

    used: int
    size: int
    name: str


class PackedCacheReport(NamedTuple):
    """Result of `PackedCache.check`. files: number of files. damaged: number of damaged files, which were removed."""

    files: int
    damaged: int


class PackedCache:
    """Packed weights in the files of a directory, which is created if it is missing.

    If the directory or a file cannot be used, a warning is logged and the model is packed as without a cache.

    max_bytes: limit for the total size of the files. A model that is larger than this is not kept.
    turn: returns a context manager. A thread that reads a file makes each of its system calls inside one.
    """

    def __init__(self, directory: Path, max_bytes: int, turn: ReadTurn = contextlib.nullcontext) -> None:
        self._directory, self._max_bytes, self._turn = directory, max_bytes, turn
        self._has_warned = False

    def load(
        self,
        model: str,
        make_key: Callable[[], str],
        memory: TensorMemory,
        progress: Callable[[int, int], None],
        load: Callable[[TensorMemory], _Loaded],
    ) -> tuple[_Loaded, bool]:
        """Load a model from the cache.

        If the cache does not have the model, load it from its checkpoint, and write its tensors into the cache.
        model: name of the model, for warnings.
        make_key: makes the `packed_key`. It is called again after a load, to detect files that have changed meanwhile.
        memory: keeps the tensors.
        load: loads the model, with the given memory for its tensors.
        progress: called with the bytes read from the cache so far and in total.
        Returns the model, and whether it was read from the cache. Raises the exceptions of `load` and of `memory`.
        """
        with self._open() as directory:
            if directory is None:
                return load(memory), False
            key = make_key()
            with self._find(directory, key, model) as file:
                if file is not None:
                    try:
                        with contextlib.closing(
                            ReadingMemory(file, memory is not PRIVATE, progress, self._turn)
                        ) as reading:
                            loaded = load(reading)
                            reading.finish()
                    except PackedFileError as error:
                        self._discard(directory, key, model, error)
                    else:
                        for tensor in reading.kept:
                            memory.keep(tensor)
                        return loaded, True
            return self._pack(directory, key, make_key, model, memory, load), False

    def check(self) -> PackedCacheReport:
        """Compare all files with the hashes from the time when they were written, and remove files that differ.

        Returns the number of files, and the number of removed files.
        """
        files = damaged = 0
        with self._open() as directory:
            for kept in [] if directory is None else _files(directory):
                if directory is None or not kept.name.endswith(_SUFFIX):
                    continue
                files += 1
                try:
                    with _opened(directory, kept.name) as descriptor:
                        PackedFile(descriptor).check_content()
                except (OSError, PackedFileError):
                    damaged += 1
                    with contextlib.suppress(OSError):
                        os.unlink(kept.name, dir_fd=directory)
        return PackedCacheReport(files, damaged)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int | None]:
        """Context manager: a descriptor of the directory, or None, with a warning, if the directory cannot be used."""
        descriptor = None
        try:
            with contextlib.suppress(FileExistsError):
                self._directory.mkdir(mode=0o700)
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            problem = _why_unsafe(os.fstat(descriptor))
        except OSError as error:
            problem = error.strerror
        if problem is not None and not self._has_warned:
            self._has_warned = True
            log.warning("the packed cache is not used, its directory has a problem: %s", problem)
        try:
            yield descriptor if problem is None else None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    @contextlib.contextmanager
    def _find(self, directory: int, key: str, model: str) -> Iterator[PackedFile | None]:
        """Context manager of the packed file for a key; None if there is no usable file.

        Opening a file counts as a use of it. An unusable file is removed.

        directory: descriptor of the directory. model: name of the model, for warnings.
        """
        with contextlib.ExitStack() as stack:
            file = None
            try:
                descriptor = stack.enter_context(_opened(directory, _name(key)))
                file = PackedFile(descriptor, key)
                with contextlib.suppress(OSError):  # a file system that is mounted read-only
                    os.utime(descriptor)
            except FileNotFoundError:
                pass
            except (OSError, PackedFileError) as error:
                self._discard(directory, key, model, error)
            yield file

    def _discard(self, directory: int, key: str, model: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else error
        log.warning("model %r is packed again, its file in the packed cache cannot be used: %s", model, reason)
        with contextlib.suppress(OSError):
            os.unlink(_name(key), dir_fd=directory)

    def _pack(
        self,
        directory: int,
        key: str,
        make_key: Callable[[], str],
        model: str,
        memory: TensorMemory,
        load: Callable[[TensorMemory], _Loaded],
    ) -> _Loaded:
        """Load a model from its checkpoint, and keep its tensors in the directory if that is possible."""
        unfinished = f"{secrets.token_hex(8)}{_UNFINISHED}"
        try:
            descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        except OSError as error:
            self._warn_of_loss(model, error)
            return load(memory)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:  # a file system without locks
                self._warn_of_loss(model, error)
                return load(memory)
            writing = PackingMemory(descriptor, memory, lambda size: self._make_room(directory, unfinished, size))
            loaded = load(writing)
            try:
                # A checkpoint that was changed meanwhile may have tensors of both versions.
                if make_key() == key:
                    writing.finish(key)
                    os.rename(unfinished, _name(key), src_dir_fd=directory, dst_dir_fd=directory)
                    os.fsync(directory)
            except OSError as error:
                self._warn_of_loss(model, error)
            return loaded
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished, dir_fd=directory)
            os.close(descriptor)

    def _warn_of_loss(self, model: str, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("model %r is not kept in the packed cache: %s", model, error.strerror)

    def _make_room(self, directory: int, unfinished: str, size: int) -> None:
        """Remove the least recently used files until a new file has room, and files whose writers have died.

        unfinished: the name of the new file. size: its size in bytes. Raises OSError if the file has no room.
        """
        others = sorted(kept for kept in _files(directory) if kept.name != unfinished)
        total = sum(kept.size for kept in others) + size
        for kept in others:
            if total <= self._max_bytes and not kept.name.endswith(_UNFINISHED):
                continue
            if size <= self._max_bytes and not _is_being_written(directory, kept.name):
                with contextlib.suppress(FileNotFoundError):  # another process has removed it
                    os.unlink(kept.name, dir_fd=directory)
                total -= kept.size
        if total > self._max_bytes:
            raise OSError(errno.EFBIG, f"the {self._max_bytes:,} bytes of --packed-cache-size have no room for it")


def packed_cache(options: EngineOptions, turn: ReadTurn = contextlib.nullcontext) -> PackedCache | None:
    """The cache in the directory that the options of a worker name; None if the options name no directory.

    turn: returns a context manager. A thread that reads a file makes each of its system calls inside one.
    """
    if not options.packed_cache:
        return None
    return PackedCache(Path(options.packed_cache), options.packed_cache_bytes, turn)


def packed_key(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> str:
    """A text that is equal only for loads that give the same packed tensors.

    It depends on the names, sizes and times of the checkpoint's files, on the settings of the model, on the sources and
    compiled kernels of this version, on the version of torch, and on the instructions of the processor.
    """
    directory = str(Path(spec.directory).resolve())
    # A draft head is packed with its model.
    head = None if spec.speculation is None else replace(spec.speculation, draft_model="", draft_directory="")
    head = head if head is not None and head.head_of(directory) else None
    same = replace(spec, name="", directory=directory, speculation=head, kv_cache_dtype=None)
    return " ".join(
        (
            files_fingerprint([same]),
            str(dtype),
            f"kernels={choice.kernels_version() if choice.has_kernels(dtype, device) else None}",
            _code_version(),
            torch.__version__,
            platform.machine(),
            _instructions(),
        )
    )


@cache
def _code_version() -> str:
    """Digest of the sources and compiled kernels that make packed tensors."""
    digest = hashlib.sha256()
    for package in (Path(choice.__file__).parents[1], Path(errors.__file__).parent):
        for path in sorted((*package.rglob("*.py"), *package.rglob("*.so"))):
            digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def _instructions() -> str:
    """Digest of the instruction sets of the processor, as far as the system names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), lines[0] if lines else "")
    return hashlib.sha256(flags.encode()).hexdigest()


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32] + _SUFFIX


def _files(directory: int) -> list[_CachedFile]:
    """The finished and unfinished files of the cache, without other files. directory: descriptor of the directory."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith((_SUFFIX, _UNFINISHED)):
                with contextlib.suppress(FileNotFoundError):  # another process has removed it
                    status = entry.stat(follow_symlinks=False)
                    found.append(_CachedFile(status.st_mtime_ns, status.st_size, entry.name))
    return found


@contextlib.contextmanager
def _opened(directory: int, name: str) -> Iterator[int]:
    """Context manager: a descriptor of a file in the directory, for reading.

    Raises OSError if the file cannot be opened, and PackedFileError if it is not a regular file or is not private to
    this user.
    """
    # A pipe of this name would block without O_NONBLOCK.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(name, flags, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        problem = _why_unsafe(status) if stat.S_ISREG(status.st_mode) else "it is not a file"
        if problem is not None:
            raise PackedFileError(problem)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_being_written(directory: int, name: str) -> bool:
    """Whether a process holds the lock of an unfinished file. The system releases it when the process ends."""
    if not name.endswith(_UNFINISHED):
        return False
    try:
        with _opened(directory, name) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, PackedFileError):
        pass
    return False


def _why_unsafe(status: os.stat_result) -> str | None:
    """Why a file or directory is not private to this user, as a clause for a log line; None if it is private."""
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    if status.st_mode & 0o077:
        return "other users may read or write it; its mode must be 0700, and 0600 for files"
    return None
