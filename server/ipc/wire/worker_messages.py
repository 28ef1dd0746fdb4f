"""Messages about the worker process: its settings, its start, its heartbeats, and its end."""

from __future__ import annotations

from server.ipc.wire.descriptions import Device, DeviceChoice, EngineOptions, ModelInfo, ModelSpec
from server.ipc.wire.message_base import Message


class Configure(Message, frozen=True):
    """First message to a new worker.

    epoch: unique number of the worker process, counted up at each start. Every message of the worker contains it.
    weights_descriptor: descriptor of the memory for weights that the workers share, inherited by the worker; None if
        each worker has its own weights. Workers on CUDA ignore it. See `server.ipc.workers.weight_memory`.
    """

    epoch: int
    device: DeviceChoice
    models: list[ModelSpec]
    options: EngineOptions
    weights_descriptor: int | None = None


class Shutdown(Message, frozen=True):
    """Exit with status 0. Running requests are dropped."""


class Loading(Message, frozen=True):
    """Heartbeat of a worker that is loading models (`server.engine.process.loading_beats`)."""

    epoch: int


class Computing(Message, frozen=True):
    """Heartbeat of a worker that computes a long step (`server.engine.process.step_beats`)."""

    epoch: int


class Progress(Message, frozen=True):
    """Progress of loading a model, in bytes of weights."""

    epoch: int
    model: str
    done_bytes: int
    total_bytes: int


class PreparingKernels(Message, frozen=True):
    """Progress of the kernels of a device, which are compiled at their first launch, or read from a directory.

    num_kernels, seconds: kernels that are prepared so far, and the time that they took.
    directory: where they are kept for the next start. is_complete: whether all kernels of the start are prepared.
    """

    epoch: int
    num_kernels: int
    seconds: float
    directory: str
    is_complete: bool


class Ready(Message, frozen=True):
    """All models are loaded and warmed up; the worker accepts requests.

    num_devices: number of devices of this kind on the machine; 1 for a CPU.
    device_bytes: memory that models on demand may take of the worker's CUDA device; 0 on a CPU and without such models.
    about_device: name, memory and kernels of the device in one line; empty for a CPU.
    """

    epoch: int
    models: list[ModelInfo]
    device: Device = "cpu"
    num_devices: int = 1
    device_bytes: int = 0
    about_device: str = ""


class LoadFailed(Message, frozen=True):
    """A model cannot be loaded, and a restart would not help. message: one line with the model and the reason."""

    epoch: int
    message: str
