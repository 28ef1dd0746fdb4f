"""The Triton kernels of a CUDA device at the start of a worker: their directory, a first launch, and their progress.

Triton compiles a kernel at its first launch, which takes a second or more, and keeps it in a directory. It also
compiles a C module for each kernel, so that a machine without a C compiler can launch none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from models.backends import choice
from models.backends.kernel_preparation import PREPARATION
from server.engine.loading.load import LoadError
from server.engine.process.worker_socket import ConnectionClosed, WorkerSocket
from server.ipc.wire.worker_messages import Computing, PreparingKernels

log = logging.getLogger("triptych.worker")

DIRECTORY = "TRITON_CACHE_DIR"
"""Environment variable with the directory in which Triton keeps compiled kernels."""
QUIET_SECONDS = 2.0
"""Kernels are reported only if preparing them takes longer than this.

Loading compiled kernels from Triton's directory is faster than this.
"""
REPORT_SECONDS = 5.0
"""Time between two reports of kernels in progress."""
BEAT_SECONDS = 0.5
MAX_KERNEL_SECONDS = 120.0
"""Longest time that one kernel may take. Then the worker counts as hanging."""


def kernel_directory() -> Path:
    """The directory in which Triton keeps compiled kernels. Raises RuntimeError if there is no home directory."""
    if given := os.environ.get(DIRECTORY):
        return Path(given)
    return Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


def make_directory_writable() -> None:
    """If Triton cannot write to its kernel directory, make it use a new temporary directory, and log a warning."""
    try:
        directory = kernel_directory()
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        os.environ[DIRECTORY] = tempfile.mkdtemp(prefix="triptych-kernels-")
        log.warning(
            "compiled kernels cannot be kept for the next start (%s), so each start compiles them again; %s names a "
            "directory for them",
            reason,
            DIRECTORY,
        )


def check_kernels(device: torch.device) -> None:
    """Launch one kernel. Raises LoadError, with the reason, if kernels cannot be compiled or launched."""
    try:
        x = torch.ones(1, 16, device=device)
        choice.backend(x).rms_norm(x, x[0], 1e-6)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:
        log.debug("the first kernel", exc_info=error)
        raise LoadError(f"the Triton kernels of the device cannot run: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The reason why a kernel cannot run, for the operator."""
    if "C compiler" in str(error):
        return "no C compiler was found, which Triton needs to launch them; install gcc, or name a compiler in CC"
    if isinstance(error, subprocess.CalledProcessError):
        program = error.cmd[0] if isinstance(error.cmd, list | tuple) else error.cmd
        return f"{program} failed (status {error.returncode}); it needs the headers of Python and of the C library"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]


def describe(device: torch.device) -> str:
    """Name, memory and kernels of a CUDA device in one line, for operators."""
    properties = torch.cuda.get_device_properties(device)
    text = f"{properties.name}, compute capability {properties.major}.{properties.minor}"
    text += f", {properties.total_memory / 2**30:.1f} GiB"
    if not choice.runs_cuda_kernels(device):
        return f"{text}; no Triton kernels for it: torch computes, which is slower"
    return f"{text}; Triton kernels, kept in {kernel_directory()}"


class KernelReports:
    """Reports to the HTTP process which kernels are being prepared, while models load and later.

    send: sends a message to the HTTP process.
    """

    def __init__(self, epoch: int, send: Callable[[PreparingKernels], None]) -> None:
        self._epoch, self._send = epoch, send
        self._reported: float | None = None
        PREPARATION.on_start = self._on_start

    def end_of_start(self) -> None:
        """Report that all kernels of the start are prepared, if any of them was reported before."""
        if self._reported is not None:
            self._report(is_complete=True)

    def _on_start(self) -> None:
        now = time.monotonic()
        if PREPARATION.seconds >= QUIET_SECONDS and (self._reported is None or now - self._reported >= REPORT_SECONDS):
            self._reported = now
            self._report(is_complete=False)

    def _report(self, is_complete: bool) -> None:
        found = PREPARATION
        directory = str(kernel_directory())
        self._send(PreparingKernels(self._epoch, found.num_kernels, found.seconds, directory, is_complete))


class KernelBeats:
    """Sends heartbeats from a thread while a kernel is prepared, so that the worker does not count as hanging.

    A step of a ready worker may need a kernel that no earlier step needed. No beats are sent during other steps. They
    would hide a device that hangs: its step keeps a thread of the process busy, as a working step does.
    """

    def __init__(self, connection: WorkerSocket, epoch: int) -> None:
        self._connection, self._beat = connection, Computing(epoch)
        threading.Thread(target=self._run, name="kernel beats", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            if is_preparing(time.monotonic()):
                with contextlib.suppress(ConnectionClosed):  # the main thread detects the closed connection itself
                    self._connection.send_between(self._beat)


def is_preparing(now: float) -> bool:
    """Whether a kernel has been in preparation for at most `MAX_KERNEL_SECONDS`. now: time of time.monotonic()."""
    since = PREPARATION.since
    return since is not None and now - since <= MAX_KERNEL_SECONDS
