"""Anonymous memory for the weights of all models, shared by all CPU workers of a server.

The HTTP process owns the memory. The workers fill and map it (`server.engine.loading.shared_weights`). The HTTP process
has to:

1. Create one `WeightMemory` before the first worker starts.
2. For each worker process, at every start, call `current`. Add the descriptor to `pass_fds`, and set
   `Configure.weights_descriptor` to the same number.
3. Call `close` when the server stops.

Workers may start at the same time: the first worker packs the weights, and the other workers wait for it. If it dies,
the next worker starts again. The memory has no name in a file system, so the system frees it with the last process.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from server.ipc.wire.descriptions import ModelSpec
from weights.errors import ResolveError
from weights.gguf.choose import is_gguf, pieces

log = logging.getLogger("triptych.supervisor")


class WeightMemory:
    """A memfd (anonymous file in memory) for the weights of some models. Without memfd, workers share nothing."""

    def __init__(self, models: Sequence[ModelSpec]) -> None:
        self._models = list(models)
        self._fingerprint = ""
        self._descriptor: int | None = None

    def current(self) -> int | None:
        """Descriptor of the memory for the checkpoints as they are on disk now; None if it cannot be created.

        If a file has changed since the last call, the memory is new and empty. Running workers keep the old memory,
        which the system frees when the last of these workers ends.
        """
        fingerprint = files_fingerprint(self._models)
        if self._descriptor is None or fingerprint != self._fingerprint:
            self.close()
            self._descriptor, self._fingerprint = _create(), fingerprint
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor. The memory is freed when the last worker that maps it ends."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def files_fingerprint(models: Sequence[ModelSpec]) -> str:
    """Digest that changes with the specifications of the models, and with the names, sizes and times of their files."""
    digest = hashlib.sha256(msgspec.json.encode(list(models)))
    for model in models:
        way = model.speculation
        drafts = [] if way is None else [path for path in (way.draft_directory, way.eagle_directory) if path]
        for directory in (model.directory, *model.adapters.values(), *drafts):
            checkpoint = Path(directory)
            for path in _files(checkpoint):
                with contextlib.suppress(OSError):
                    status = path.stat()
                    name = path.relative_to(checkpoint.parent)
                    digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _files(checkpoint: Path) -> list[Path]:
    """All files of a checkpoint, also in subfolders, where modules of sentence-transformers have weights.

    checkpoint: a directory, or a GGUF file.
    """
    try:
        return pieces(checkpoint) if is_gguf(checkpoint) else sorted(checkpoint.rglob("*"))
    except ResolveError:  # a piece is missing
        return [checkpoint]


def _create() -> int | None:
    if not hasattr(os, "memfd_create"):
        return None
    try:
        return os.memfd_create("triptych-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        log.warning("cannot create shared memory (%s): each worker has weights of its own", error.strerror)
        return None
