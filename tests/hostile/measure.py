"""Read a checkpoint as a server does, and measure the cost of its refusal: seconds, and peak memory of the process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from server.engine.loading.load import LoadError, load
from server.errors import CheckpointError
from server.ipc.wire.descriptions import ModelSpec, Speculation
from server.model_sources import resolved
from server.text import checkpoint_text

STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Refusal:
    """The refusal of a checkpoint, and its cost.

    message: error message, or empty if the checkpoint was accepted.
    seconds: processor time until the refusal. mib: growth of the process's memory at its peak, in MiB.
    """

    message: str
    seconds: float
    mib: float


def read(directory: Path, adapter: Path | None = None, head: Path | None = None) -> str:
    """Read the text parts of a checkpoint, then its model. Returns the error of its refusal, or an empty text.

    In a server, two processes read these two parts. Only their documented errors are caught.

    head: directory of an EAGLE-3 head. None: the prediction head of the checkpoint drafts, if it has one.
    """
    failures = []
    try:
        resolved(str(directory))
        if adapter is not None:
            resolved(str(adapter), ("adapter_model.safetensors",))
        if head is not None:
            resolved(str(head))
        checkpoint_text.load("llm", directory)
    except CheckpointError as error:
        failures.append(str(error))
    adapters = {} if adapter is None else {"tuned": str(adapter)}
    own_head = Speculation(prediction_head=True, is_optional=True)
    speculation = own_head if head is None else Speculation(eagle_directory=str(head))
    spec = ModelSpec("llm", str(directory), "auto", speculation=speculation, adapters=adapters)
    try:
        load(spec, torch.device("cpu"), lambda done, of: None)
    except LoadError as error:
        failures.append(str(error))
    return failures[0] if failures else ""


def measured(directory: Path, adapter: Path | None = None, head: Path | None = None) -> Refusal:
    """Read a checkpoint, and measure the time and the memory."""
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    started = time.process_time()
    message = read(directory, adapter, head)
    return Refusal(message, time.process_time() - started, (_memory("VmHWM") - before) / 1024)


def _memory(name: str) -> int:
    """The value of a line in the status of this process (/proc/self/status), in KiB. name: such as `VmRSS`."""
    lines = (line.split() for line in STATUS.read_text(encoding="ascii").splitlines())
    return next(int(fields[1]) for fields in lines if fields[0] == f"{name}:")
