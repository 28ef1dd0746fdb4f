"""Anonymous memory that holds the weights of a server, once for all its CPU workers.

The HTTP process owns it. The workers fill and map it (`server.engine.shared_weights`). The HTTP process does this:

1. Create one `WeightMemory` before the first worker starts.
2. Add `descriptor` to `pass_fds` of each worker, and set `Configure.weights_descriptor` to the same number.
3. To read changed checkpoints (a reload), call `replace` before the first new worker starts. Workers that run keep the
   old memory, which the system frees when the last of them ends.
4. Call `close` when the last worker has ended.

Workers may start at the same time: the first one packs the weights, and the others wait for it. If it dies, the next
one starts again. The memory has no name in a file system, so it cannot outlive the processes that use it.
"""

from __future__ import annotations

import logging
import os

log = logging.getLogger("triptych.supervisor")


class WeightMemory:
    """A sealable memfd, or nothing on a system without memfd; each worker then has weights of its own.

    descriptor: descriptor of the memory, which child processes do not inherit unless it is passed to them; None on a
        system without memfd, and after `close`.
    """

    def __init__(self) -> None:
        self.descriptor = _create()

    def replace(self) -> None:
        """Use empty memory for the workers that start from now on."""
        self.close()
        self.descriptor = _create()

    def close(self) -> None:
        """Close the descriptor. The memory is freed when the last worker that maps it ends."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _create() -> int | None:
    if not hasattr(os, "memfd_create"):
        return None
    try:
        return os.memfd_create("triptych-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        log.warning("cannot create shared memory (%s): each worker has weights of its own", error.strerror)
        return None
