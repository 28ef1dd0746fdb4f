"""Run the check of one promise in a separate process."""

from __future__ import annotations

import gc
import os
from multiprocessing.connection import Connection
from typing import Any

import torch

from tests.chaos import bugs, server
from tests.chaos.promises import PROMISES
from tests.chaos.record import Record

ONE_THREAD = {"OMP_NUM_THREADS": "1", "TRIPTYCH_THREADS": "1"}
"""Environment variables for one thread per process. Several threads would wait for each other on busy cores."""
_LOWER_PRIORITY = 10


def send_record(results: Connection, number: int, scale: str, bug: str | None, beside_others: bool) -> None:
    """Run the check of one promise in this process, and send its record to the process that started this one.

    This process becomes the leader of a new process group, so that its servers can be killed together with it.

    number: number of the promise. scale: `full` or `small`, the counts of the check.
    bug: name of the bug to plant in this process and in each server that the check starts, or None.
    beside_others: whether to give this process and its servers one thread and a lower priority.
    """
    os.setpgid(0, 0)
    # Garbage collection would write to all objects of the parent, so that the kernel would copy their memory pages.
    gc.freeze()
    if beside_others:
        os.environ.update(ONE_THREAD)
        torch.set_num_threads(1)
        os.nice(_LOWER_PRIORITY)  # has an effect only within a session: Linux may share the processor among sessions
    results.send(_record(number, scale, bug))


def _record(number: int, scale: str, bug: str | None) -> dict[str, Any]:
    (promise,) = (known for known in PROMISES if known.number == number)
    server.planted = bug
    if bug is not None:
        bugs.install(bug, "http", "worker")
    try:
        record = promise.check(**(promise.full if scale == "full" else promise.small))
    except server.StartFailed as error:
        record = Record("run")
        record.must(False, f"the server did not start: {str(error)[-300:]}")
    except Exception as error:
        # A planted bug may cause any exception. A check that raises one has failed.
        record = Record("run", runs=1)
        record.must(False, f"{type(error).__name__}: {str(error)[:300]}")
    return record.to_json()
