"""Read a checkpoint as a server does, and measure what its refusal costs: seconds, and peak memory of the process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from server.engine.process.loading import LoadError, load
from server.errors import CheckpointError
from server.ipc.wire.descriptions import ModelSpec
from server.model_sources import resolved
from server.text import checkpoint_text

STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Refusal:
    """How a checkpoint was refused.

    message: the error, or empty if it was accepted.
    seconds: processor time until then, which other processes do not change.
    mib: memory that the process gained at its peak.
    """

    message: str
    seconds: float
    mib: float


def read(directory: Path, adapter: Path | None = None) -> str:
    """Read the text parts of a checkpoint, then its model. Returns the error of its refusal, or an empty text.

    The two parts are read by two processes of a server. Errors of other types than theirs are not caught.
    """
    failures = []
    try:
        resolved(str(directory))
        if adapter is not None:
            resolved(str(adapter), ("adapter_model.safetensors",))
        checkpoint_text.load("llm", directory)
    except CheckpointError as error:
        failures.append(str(error))
    adapters = {} if adapter is None else {"tuned": str(adapter)}
    try:
        load(ModelSpec("llm", str(directory), "auto", adapters=adapters), torch.device("cpu"), lambda done, of: None)
    except LoadError as error:
        failures.append(str(error))
    return failures[0] if failures else ""


def measured(directory: Path, adapter: Path | None = None) -> Refusal:
    """Read a checkpoint and measure it."""
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    started = time.process_time()
    message = read(directory, adapter)
    return Refusal(message, time.process_time() - started, (_memory("VmHWM") - before) / 1024)


def _memory(name: str) -> int:
    """A line of the status of this process, in KiB."""
    lines = (line.split() for line in STATUS.read_text(encoding="ascii").splitlines())
    return next(int(fields[1]) for fields in lines if fields[0] == f"{name}:")
