"""Run one check in a process of its own."""

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
"""One thread for each process: threads of one matrix product would wait for each other on cores that other checks use.
"""
_LOWER_PRIORITY = 10


def send_record(results: Connection, number: int, scale: str, bug: str | None, beside_others: bool) -> None:
    """Run the check of one promise, and send what it measured to the process that started this one.

    This process leads a process group of its own, so that its servers can be killed with it.

    bug: installed in this process, and in each server that the check starts.
    beside_others: give this process and its servers one thread and a lower priority.
    """
    os.setpgid(0, 0)
    # A collection writes to every object that it visits, so each page of them would be copied.
    gc.freeze()
    if beside_others:
        os.environ.update(ONE_THREAD)
        torch.set_num_threads(1)
        os.nice(_LOWER_PRIORITY)  # within a session: Linux may divide the processor equally among sessions
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
        # A planted bug may cause any exception. A check that cannot run at all has failed too.
        record = Record("run", runs=1)
        record.must(False, f"{type(error).__name__}: {str(error)[:300]}")
    return record.to_json()
