"""Write files either completely or not at all, on disks that may be full or read-only."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from server.errors import StorageFailed

log = logging.getLogger("triptych.storage")


@contextmanager
def storing(what: str) -> Iterator[None]:
    """Context manager around work with a file. It logs an OSError as one line, and raises StorageFailed instead.

    what: name of the stored values in messages, such as `glossaries`.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        log.error("%s cannot be stored: %s", what, reason)
        raise StorageFailed(f"the server cannot store {what} now", retry_after=60) from None


def replace_file(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file, or replace an existing one. If this fails, the existing file is unchanged, and OSError is raised.

    parts: parts of the file's content, in order.
    """
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())  # otherwise a power failure could leave the new name with no content
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def append_line(path: Path, line: bytes, max_bytes: int) -> bool:
    """Append a line to a file. Returns False, and writes nothing, if the file would become longer than `max_bytes`.

    Raises OSError; the written part of the line is removed then, if possible.
    """
    with path.open("ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size + len(line) > max_bytes:
            return False
        try:
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a full disk takes a part, then none
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(file.fileno(), size)
            raise
    return True
